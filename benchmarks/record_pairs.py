"""Records paired timings of work whose ratio is known, on this machine, quiet and under made noise.

usage: python benchmarks/record_pairs.py tests/data/pairs.json   (about three minutes)

tests/test_bench.py replays the file, so that the verdict's error rates are tested on a real machine's noise
without a clock.
"""

import json
import random
import sys
import time
from pathlib import Path

from grader.trial import NOISES, noise
from perflab import machine

ROWS, WORK, THRESHOLD = 250, 60_000, 1.15


def work(n):
    total = 0
    for i in range(n):
        total += i & 7
    return total


def timed(n):
    start = time.perf_counter()
    work(n)
    return round((time.perf_counter() - start) * 1e6, 1)


def main(path):
    rng = random.Random(1)
    cases = []
    for kind in NOISES:
        with noise(kind):
            for ratio in (1.0, 1.05, 1.3, 2.0):
                rows = []
                for _ in range(ROWS):
                    row = [0.0, 0.0, 0.0]  # reference, reference again, answer
                    for column in rng.sample(range(3), 3):
                        row[column] = timed(round(WORK / ratio) if column == 2 else WORK)
                    rows.append(row)
                cases.append({"noise": kind, "ratio": ratio, "samples_us": rows})
    Path(path).write_text(json.dumps({"machine": machine.line(), "threshold": THRESHOLD, "cases": cases}))


if __name__ == "__main__":
    main(sys.argv[1])
