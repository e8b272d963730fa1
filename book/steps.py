import os, sys, time

path, interval_s, work_s, save_s = sys.argv[1], *map(float, sys.argv[2:5])
done = float(open(path).read()) if os.path.exists(path) else 0.0
while done < work_s - 1e-9:
    stretch = min(interval_s, work_s - done)
    time.sleep(stretch)
    done += stretch
    if done < work_s - 1e-9:
        time.sleep(save_s)
    with open(path + ".part", "w") as file:
        file.write(str(done))
    os.replace(path + ".part", path)
