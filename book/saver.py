import os, struct, sys, zlib

how, path, step = sys.argv[1], sys.argv[2], 0
while True:
    step += 1
    body = struct.pack("<Q", step) + bytes([step % 256]) * 8_000_000
    data = struct.pack("<I", zlib.crc32(body)) + body
    target = path if how == "in place" else path + ".part"
    with open(target, "wb") as file:
        for start in range(0, len(data), 1 << 18):
            file.write(data[start : start + (1 << 18)])
        file.flush()
        os.fsync(file.fileno())
    if target != path:
        os.replace(target, path)
