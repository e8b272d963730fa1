"""Makes the recorded latency curves that `estimate` of exercise cache-size is judged by.

    python grader/hidden/cache-size/make_curves.py record     # measure this machine → measured.json
    python grader/hidden/cache-size/make_curves.py            # measured.json + the models below → both curve files

Two kinds of curves come out. *Measured*: the median of this machine's runs, its caches as its system
reports them; the last level's size is null, since a virtual machine has a share of it that nobody states. *Modelled*: machines of
known caches, by

    latency(W) = l₁ + Σₖ (lₖ₊₁ − lₖ) · missₖ(W) + TLB(W)
    missₖ(W)   = the fraction of a working set W that cache k misses: 0 up to C·(1 − a), then linear, 1 from C·(1 + b)

    a, b: how soft the edge is. A virtually indexed L1 with near-LRU replacement is a cliff (0, 0.15). A physically indexed
    cache under 4 KiB pages loses lines to page colouring before it is full and keeps some beyond (0.25, 0.7), under huge
    pages less (0.08, 0.35).
    TLB(W): with 4 KiB pages only. Beyond the first TLB's reach each load costs `tlb1_ns` more (a second-level hit), beyond the second's `walk_ns`
    (a page walk that hits a cache), each times the fraction of pages that miss.

and multiplied by noise that was measured, not invented: the ratios between single runs (minimum of six rounds a
size) and their median, on this machine, quiet and beside a memory-bound neighbour. Each modelled curve draws a stretch
of consecutive residuals from one such run, so that the noise keeps its correlation from size to size. Of the busy runs
only the private caches' sizes serve: the neighbour takes the shared cache away altogether, which is no noise.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MEASURED, HIDDEN = HERE / "measured.json", HERE / "latency-curves.json"
PUBLIC = ROOT / "src" / "perflab" / "exercises" / "data" / "latency-curves.json"
KIB, MIB = 1 << 10, 1 << 20

# name, public, pages, noise, sizes an octave, from, to, first-TLB entries, its extra ns, second-TLB entries, walk ns, [(cache, ns) …], memory ns.
# The shapes follow processors that exist; levels lie at least 3 octaves and a factor of 1.8 in latency apart.
MODELS = [
    ("server, three levels", True, "huge", "quiet", 4, 4 * KIB, 256 * MIB, 64, 0, 2048, 0, [(32 * KIB, 1.3), (512 * KIB, 4.1), (16 * MIB, 15)], 105),
    ("small board, two levels", True, "4K", "quiet", 4, 4 * KIB, 64 * MIB, 48, 1.0, 1024, 20, [(32 * KIB, 2.2), (1 * MIB, 10)], 150),
    ("desktop with a fourth level", True, "huge", "busy", 4, 4 * KIB, 1024 * MIB, 64, 0, 1536, 0,
     [(32 * KIB, 1.1), (256 * KIB, 3.3), (6 * MIB, 10.5), (128 * MIB, 38)], 88),
    ("laptop, three levels", False, "4K", "busy", 4, 4 * KIB, 256 * MIB, 64, 0.6, 1536, 9, [(48 * KIB, 1.2), (1280 * KIB, 4.6), (12 * MIB, 18)], 95),
    ("phone core, two levels", False, "huge", "quiet", 3, 8 * KIB, 128 * MIB, 48, 0, 1024, 0, [(64 * KIB, 1.4), (8 * MIB, 11)], 125),
    ("old server, three levels", False, "4K", "quiet", 4, 4 * KIB, 512 * MIB, 64, 0.9, 512, 12, [(32 * KIB, 1.6), (256 * KIB, 4.4), (20 * MIB, 21)], 98),
    ("large server, three levels", False, "huge", "busy", 3, 4 * KIB, 1024 * MIB, 96, 0, 3072, 0, [(32 * KIB, 1.0), (2 * MIB, 4.3), (96 * MIB, 34)], 140),
    ("wide core, two levels", False, "4K", "busy", 4, 8 * KIB, 256 * MIB, 160, 0.4, 3000, 14, [(128 * KIB, 0.9), (12 * MIB, 5.4)], 97),
    ("board with a system cache, three levels", False, "4K", "quiet", 4, 4 * KIB, 128 * MIB, 48, 0.8, 1280, 16,
     [(64 * KIB, 1.5), (512 * KIB, 5.0), (4 * MIB, 26)], 118),
    ("workstation with a fourth level", False, "4K", "busy", 4, 4 * KIB, 1024 * MIB, 64, 0.5, 2048, 8,
     [(32 * KIB, 1.0), (256 * KIB, 3.1), (8 * MIB, 11), (96 * MIB, 42)], 92),
    ("dense server with a fourth level", False, "huge", "quiet", 3, 4 * KIB, 1024 * MIB, 96, 0, 3072, 0,
     [(48 * KIB, 1.3), (1 * MIB, 4.2), (16 * MIB, 16), (256 * MIB, 58)], 130),
]  # fmt: skip


def miss(working_set, cache, a, b):
    """The fraction of a working set (bytes) that a cache of `cache` bytes misses."""
    return np.clip((working_set - cache * (1 - a)) / (cache * (a + b)), 0, 1)


def modelled(sizes, pages, tlb1, tlb1_ns, tlb2, walk_ns, caches, memory_ns):
    """Latency (ns) by size (bytes) of a machine, without noise."""
    sizes = np.asarray(sizes, float)
    latencies = [ns for _, ns in caches] + [memory_ns]
    total = np.full(sizes.shape, float(latencies[0]))
    for k, (cache, ns) in enumerate(caches):
        a, b = (0.0, 0.15) if k == 0 else (0.25, 0.7) if pages == "4K" else (0.08, 0.35)
        total += (latencies[k + 1] - ns) * miss(sizes, cache, a, b)
    if pages == "4K":
        for entries, ns in ((tlb1, tlb1_ns), (tlb2, walk_ns)):
            reach = entries * 4 * KIB
            total += ns * np.clip(1 - reach / sizes, 0, 1)
    return total


def make() -> None:
    measured = json.loads(MEASURED.read_text())
    rng = np.random.default_rng(20261201)
    public, hidden = [], []
    for name, is_public, pages, noise, per_octave, low, high, tlb1, tlb1_ns, tlb2, walk_ns, caches, memory_ns in MODELS:
        n = round(np.log2(high / low) * per_octave)
        sizes = [round(low * 2 ** (i / per_octave) / 64) * 64 for i in range(n + 1)]
        ns = modelled(sizes, pages, tlb1, tlb1_ns, tlb2, walk_ns, caches, memory_ns)
        residuals = np.array(measured["residuals"][noise])
        if noise == "busy":
            residuals = residuals[:, np.array(measured["curves"][0]["sizes_bytes"]) < 0.9 * measured["curves"][0]["caches_bytes"][1]]
        run = residuals[rng.integers(len(residuals))]
        start = int(rng.integers(run.size))
        ns = ns * np.take(run, np.arange(start, start + len(sizes)), mode="wrap")
        curve = {"name": name, "kind": "modelled", "pages": pages, "noise": noise, "caches_bytes": [size for size, _ in caches],
                 "sizes_bytes": sizes, "ns": [round(float(v), 3) for v in ns]}  # fmt: skip
        (public if is_public else hidden).append(curve)
    for curve in measured["curves"]:
        hidden.append({"kind": "measured"} | curve)
    for path, curves in ((PUBLIC, public), (HIDDEN, hidden)):
        how = "made by grader/hidden/cache-size/make_curves.py; caches_bytes: the truth, null where it is not known"
        text = json.dumps({"how": how, "curves": curves}, ensure_ascii=False)
        path.write_text(text.replace('{"name"', '\n{"name"').replace('{"kind"', '\n{"kind"') + "\n")


def record() -> None:
    """Measures this machine: eight runs quiet and eight beside a neighbour that streams through memory on another core."""
    import multiprocessing
    import time

    from perflab import machine
    from perflab.exercises import _c_answers, cache_size
    from perflab.launch import Launcher

    sizes = [round(4 * KIB * 2 ** (i / 4) / 64) * 64 for i in range(61)]
    found, curves = {}, []
    with Launcher() as launcher:
        for noise in ("quiet", "busy"):
            neighbour = multiprocessing.Process(target=_stream, daemon=True)
            if noise == "busy":
                neighbour.start()
                time.sleep(0.5)
            runs = []
            for run in range(8):
                with launcher.start(cpus={0}) as host:
                    host.define(cache_size.PROBE)
                    host.call("$probe", np.frombuffer(_c_answers.probe_library("cache_size_probe.c"), np.uint8), inference=False)
                    host.call("$prepare", sizes, run, timeout_s=120, inference=False)
                    curve = cache_size.Curve(sizes, lambda s, host=host: host.call("$measure", s, timeout_s=60, inference=False))
                    curve.rounds(6, random.Random(run))
                    runs.append(list(curve.ns.values()))
                print(noise, run, flush=True)
            if noise == "busy":
                neighbour.terminate()
                neighbour.join()
            runs = np.array(runs)
            middle = np.median(runs, axis=0)
            found[noise] = np.round(runs / middle, 4).tolist()
            if noise == "quiet":
                caches = {cache["level"]: cache["size_bytes"] for cache in machine.caches()}
                curves.append({
                    "name": machine.line(), "pages": "huge", "noise": noise, "caches_bytes": [caches[1], caches[2], None],
                    "sizes_bytes": sizes, "ns": np.round(middle, 3).tolist(),
                })  # fmt: skip
    how = "python grader/hidden/cache-size/make_curves.py record: residuals of eight runs each, minimum of six rounds a size"
    MEASURED.write_text(json.dumps({"how": how, "residuals": found, "curves": curves}) + "\n")


def _stream() -> None:
    import os

    os.sched_setaffinity(0, {os.cpu_count() - 1})
    a, b = np.ones(8 * MIB), np.ones(8 * MIB)
    while True:
        np.multiply(b, 3.0, out=a)


if __name__ == "__main__":
    record() if sys.argv[1:] == ["record"] else make()
