"""perflab.links: the bandwidth that is reached against the one that is set, and what a message costs.

Four ranks in a ring send both ways at once at 50 MB/s a direction, eight messages in flight; 5 % are allowed from
64 kB up. The second table is the round trip of an empty message, which is the α of a cost model twice. Exit status 1
when the median of a size's repeats is off by more than 5 %; single ones are this machine's noise.

    python benchmarks/bench_links.py [--json] [--repeats N]
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from perflab import links, machine

BANDWIDTH = 50e6
ALLOWED = 0.05


def both_ways(rank, world, size, count):
    """Seconds for `count` messages of `size` bytes to each neighbour."""
    right, left = (rank + 1) % world, (rank - 1) % world
    out = torch.ones(size, dtype=torch.uint8)
    into = [[torch.ones(size, dtype=torch.uint8) for _ in range(8)] for _ in range(2)]
    flying = []
    dist.barrier()
    start = time.perf_counter()
    for i in range(count):
        flying.append([dist.irecv(into[0][i % 8], left, tag=1), dist.irecv(into[1][i % 8], right, tag=2),
                       dist.isend(out, right, tag=1), dist.isend(out, left, tag=2)])  # fmt: skip
        while len(flying) > (7 if i < count - 1 else 0):
            for work in flying.pop(0):
                work.wait()
    return time.perf_counter() - start


def round_trips(rank, world, count):
    x = torch.zeros(0)
    times_s = []
    for _ in range(count):
        start = time.perf_counter()
        if rank == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times_s.append(time.perf_counter() - start)
    return statistics.median(times_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="the raw values as one JSON object")
    parser.add_argument("--repeats", type=int, default=7, metavar="N")
    options = parser.parse_args()
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    reached = {}
    for size in (1 << 16, 1 << 18, 1 << 20, 1 << 23):
        count = max(1, (16 << 20) // size)
        reached[size] = [
            size * count / max(links.run(both_ways, 4, size, count, bandwidth_bytes_per_s=BANDWIDTH, pairs=ring).values)
            for _ in range(options.repeats)
        ]
    trips_s = {latency_s: max(links.run(round_trips, 2, 200, latency_s=latency_s).values) for latency_s in (0.0, 0.001)}
    failed = [size for size, values in reached.items() if abs(statistics.median(values) / BANDWIDTH - 1) > ALLOWED]
    if options.json:
        print(json.dumps({"machine": machine.describe(), "set": BANDWIDTH, "reached": reached, "round_trip_s": trips_s}))
        return bool(failed)
    print(machine.line())
    for size, values in reached.items():
        share = sorted(v / BANDWIDTH for v in values)
        print(f"{size >> 10:6d} KiB: {statistics.median(share):.3f} of 50 MB/s each way"
              f" ({share[0]:.3f}–{share[-1]:.3f}, n = {len(share)})")  # fmt: skip
    for latency_s, trip_s in trips_s.items():
        print(f"round trip of an empty message, {latency_s * 1e3:g} ms latency: {trip_s * 1e3:.2f} ms (median, n = 200)")
    for size in failed:
        print(f"FAILED: {size >> 10} KiB: the median is not within {ALLOWED:.0%} of what was set")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
