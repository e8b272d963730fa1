"""perflab.memory against public tools, on this machine in this run.

Each comparison alternates the two, a round each, in random order, and takes the median of the rounds' ratios
with its 99 % order-statistic interval. Allowed: 5 % for bandwidth, 10 % for latency. A tool that isn't
installed is named with its Debian package. Exit status 1 when an interval lies wholly outside what is
allowed; an interval that straddles the limit is this machine's noise, and said to be.

    python benchmarks/bench_memory.py [--json] [--rounds N]
"""

import argparse
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perflab import machine, memory
from perflab.bench import median_interval

MIB = memory.MIB
BANDWIDTH, LATENCY = 0.05, 0.10


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def found(text: str, pattern: str) -> float:
    match = re.search(pattern, text)
    if not match:
        raise RuntimeError(f"no {pattern!r} in {text!r}")
    return float(match[1])


# ---- the pairs: (what, unit, allowed, ours, theirs); each function measures once ---------------------------


def mean_rate(reading, kernel: str) -> float:
    """What likwid-bench and mbw report: all bytes over all time, where STREAM takes the best pass."""
    return statistics.harmonic_mean(reading.select(kernel=kernel)[0]["samples"])


def bandwidth_pairs(folder: str):
    """likwid-bench's assembly kernels: the same bytes, counted the same way, in the same small pages."""
    if not shutil.which("likwid-bench"):
        return "likwid-bench (Debian: likwid)"
    known = output("likwid-bench", "-a")
    features = " ".join(memory._cpu_features())
    pairs = []
    for kernel, names, arrays in (
        ("copy", ("copy_avx512", "copy_avx", "copy"), 2),
        ("triad", ("stream_avx512_fma", "stream_avx_fma", "stream"), 3),
    ):
        needs = {"avx512": "avx512f", "avx": "avx2"}
        test = next(
            name
            for name in names
            if re.search(rf"^{name} -", known, re.M)
            and all(flag in features for part, flag in needs.items() if part in name.split("_"))
        )
        size_mb = 96 * arrays

        def theirs(test=test, size_mb=size_mb):
            text = output("likwid-bench", "-t", test, "-w", f"N:{size_mb}MB:1", "-i", "12")
            return found(text, r"MByte/s:\s+([\d.]+)") / 1e3

        def ours(kernel=kernel):
            return mean_rate(memory.bandwidth(96_000_000, repeats=12, huge=False), kernel)

        pairs.append((f"bandwidth, {kernel}: likwid-bench {test}", "GB/s", BANDWIDTH, ours, theirs))
    return pairs


def latency_pairs(folder: str):
    """The plain C chase beside this file; its huge pages are ours, too."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return "a C compiler (Debian: gcc)"
    program = Path(folder) / "chase"
    output(compiler, "-O2", "-o", str(program), str(Path(__file__).with_name("chase.c")))
    pairs = []
    # The last is larger than what any cache holds: between, the two would have to keep the neighbours out alike.
    for size in (16 * memory.KIB, 256 * memory.KIB, 512 * MIB):
        steps = 20_000 if size > MIB else 400_000

        def theirs(size=size, steps=steps):
            return float(output(str(program), str(size), str(steps), "1"))

        def ours(size=size, steps=steps):
            return memory.latency([size], passes=5).value(bytes=size)

        pairs.append((f"latency, {memory.units.size(size)}: chase.c", "ns", LATENCY, ours, theirs))
    return pairs


def file_pairs(folder: str):
    """fio with the same engine (pread), block size, depth and file; both round the page cache."""
    if not shutil.which("fio"):
        return "fio (Debian: fio)"
    path = os.path.join(folder, "data")
    with open(path, "wb") as file:
        for _ in range(128):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    if not memory.file_reads(path=path, reads=16, passes=1).select(how="device"):
        return f"direct reads in {folder}; set TMPDIR to a folder on a disk"

    def fio(*more: str) -> dict:
        common = ("--name=x", f"--filename={path}", "--direct=1", "--ioengine=psync", "--readonly", "--size=128M")
        return json.loads(output("fio", *common, "--output-format=json", *more))["jobs"][0]["read"]

    def ours(access: str, key: str):
        reading = memory.file_reads(path=path, reads=2000, depths=(1,), passes=1)
        return reading.select(how="device", access=access)[0][key]

    return [
        (
            "file, sequential 1 MiB: fio psync",
            "MB/s",
            BANDWIDTH,
            lambda: ours("sequential", "value"),
            lambda: fio("--rw=read", "--bs=1M")["bw_bytes"] / 1e6,
        ),
        (
            "file, random 4 KiB, one at a time: fio psync",
            "µs",
            LATENCY,
            lambda: ours("random", "us"),
            lambda: fio("--rw=randread", "--bs=4k", "--number_ios=2000")["clat_ns"]["percentile"]["50.000000"] / 1e3,
        ),
    ]


def loopback_pairs(folder: str):
    """iperf3: one TCP stream on 127.0.0.1, in writes of 128 KiB."""
    if not shutil.which("iperf3"):
        return "iperf3 (Debian: iperf3)"

    def theirs():
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        server = subprocess.Popen(
            ["iperf3", "--server", "--one-off", "--bind", "127.0.0.1", "--port", port],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        client = ("iperf3", "--client", "127.0.0.1", "--port", port, "--bytes", "1G", "--length", "128K", "--json")
        try:
            for attempt in range(50):
                done = subprocess.run(client, capture_output=True, text=True, timeout=60)
                received = json.loads(done.stdout or "{}").get("end", {}).get("sum_received")
                if received:
                    return received["bits_per_second"] / 8e9
                time.sleep(0.02 * (attempt + 1))  # the server isn't listening yet
            raise RuntimeError(f"iperf3 failed: {done.stdout}")
        finally:
            server.kill()
            server.wait()

    def ours():
        return memory.loopback(round_trips=10, bulk_bytes=1024 * MIB, repeats=1).value(quantity="one way")

    return [("loopback, one way: iperf3", "GB/s", BANDWIDTH, ours, theirs)]


# ---- the comparison ----------------------------------------------------------------------------------------


def compare(what, unit, allowed, ours, theirs, rounds: int) -> dict:
    """One row: medians of both, the ratio's median and interval, and the verdict; up to twice the rounds
    where the first ones do not decide."""
    a, b = [], []
    verdict = ""
    while not verdict:
        for _ in range(rounds if not a else len(a)):
            for side in random.sample((0, 1), 2):
                (a if side == 0 else b).append((ours if side == 0 else theirs)())
        ratio, low, high = median_interval([x / y for x, y in zip(a, b, strict=True)])
        if low > 1 + allowed or high < 1 - allowed:
            verdict = "outside"
        elif low >= 1 - allowed and high <= 1 + allowed:
            verdict = "within"
        elif len(a) >= 2 * rounds:
            verdict = "within, but noisy" if abs(ratio - 1) <= allowed else "can't tell: noise"
    return {
        "what": what,
        "unit": unit,
        "ours": statistics.median(a),
        "theirs": statistics.median(b),
        "ratio": ratio,
        "low": low,
        "high": high,
        "allowed": allowed,
        "rounds": len(a),
        "verdict": verdict,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a comparison")
    parser.add_argument("--rounds", type=int, default=11, help="pairs a comparison (at least 8)")
    arguments = parser.parse_args()
    if not arguments.json:
        print(machine.line())
        print(f"{'':48s}{'ours':>9s}{'theirs':>9s}        ratio  99 % interval")
    failed = False
    with tempfile.TemporaryDirectory(prefix="perflab-") as folder:
        for make in (bandwidth_pairs, latency_pairs, file_pairs, loopback_pairs):
            pairs = make(folder)
            if isinstance(pairs, str):
                print(f"not compared: needs {pairs}", file=sys.stderr if arguments.json else sys.stdout)
                continue
            for pair in pairs:
                row = compare(*pair, arguments.rounds)
                failed |= row["verdict"] == "outside"
                if arguments.json:
                    print(json.dumps(row), flush=True)
                    continue
                print(
                    f"{row['what']:48s}{row['ours']:9.3g}{row['theirs']:9.3g} {row['unit']:5s}"
                    f"{row['ratio']:8.3f}  {row['low']:.3f}–{row['high']:.3f}"
                    f"  {row['verdict']} ±{row['allowed']:.0%}, n = {row['rounds']}",
                    flush=True,
                )
    return failed


if __name__ == "__main__":
    sys.exit(main())
