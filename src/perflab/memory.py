"""Probes of the memory system: what one access costs here, and what it depends on.

Each probe returns a :class:`Reading`: numbers with their unit, every sample behind them, the conditions they
were taken under (page size, threads, file cache …) and, where this machine can't show the effect, a sentence
that says why in place of numbers. A probe never raises because a machine lacks something.

The timed loops are C (``csrc/probes.c``), compiled once for this processor into the user's cache folder.
Needs a C compiler; works on Linux and macOS, with or without sysfs, on x86 and Arm (there only shown to compile).

=====================  ===================================================================================
:func:`latency`        one load, by working set: the staircase           ns
:func:`cache_sizes`    where that staircase steps up                     bytes
:func:`bandwidth`      STREAM's four kernels                             GB/s
:func:`mountain`       reads by working set and stride                   ns an access
:func:`stride`         one pass over a long array, by stride             ns an access
:func:`alignment`      8-byte loads and stores, by address               ns an access
:func:`false_sharing`  two threads, two counters, by distance            ns an addition
:func:`tlb`            as many lines, in few pages or in many            ns a load
:func:`associativity`  a few lines that compete for one set              ns a load
:func:`arithmetic`     float32 multiply-adds from registers              GFLOP/s
:func:`file_reads`     sequential and random, from the device and cached MB/s, reads/s, µs
:func:`loopback`       TCP to another process on this machine            µs, GB/s
=====================  ===================================================================================

Timings of small things are minima over passes that go round all points in random order: interference only
ever adds time, and a burst of it then falls on one pass, not on one point. What waits for a device or for
another process is given by its median.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import json
import mmap
import os
import platform
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perflab import machine, units

KIB, MIB = 1 << 10, 1 << 20
_SOURCE = Path(__file__).with_name("csrc") / "probes.c"
_HUGE_BYTES = 2 * MIB  # the usual second page size: x86, and Arm with 4 KiB pages


# ---- what a probe returns ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What a probe found.

    points: one dict a point: its labels (``bytes``, ``stride_bytes`` …), ``value`` in ``unit``, and
    ``samples``, all that was measured for it. conditions: what the numbers hold under. cannot: empty, or why
    this machine can't show it (then no points).
    """

    what: str
    unit: str
    statistic: str
    points: tuple[dict, ...] = ()
    conditions: dict = field(default_factory=dict)
    cannot: str = ""

    def __bool__(self) -> bool:
        return not self.cannot

    def select(self, **labels) -> list[dict]:
        """The points whose labels are these."""
        return [p for p in self.points if all(p.get(k) == v for k, v in labels.items())]

    def value(self, **labels) -> float:
        """The value of the one point with these labels. KeyError if there is none, or more than one."""
        found = self.select(**labels)
        if len(found) != 1:
            raise KeyError(f"{self.what}: {len(found)} points are labelled {labels}; expected exactly one")
        return found[0]["value"]

    def curve(self, label: str, **labels) -> tuple[np.ndarray, np.ndarray]:
        """(x, value) over the points with these labels, in the order of ``label``."""
        found = sorted(self.select(**labels), key=lambda p: p[label])
        return np.array([p[label] for p in found]), np.array([p["value"] for p in found])

    def to_json(self) -> str:
        """Everything, raw samples included, as one JSON object."""
        return json.dumps(
            {
                "what": self.what,
                "unit": self.unit,
                "statistic": self.statistic,
                "conditions": self.conditions,
                "cannot": self.cannot,
                "points": self.points,
            }
        )

    def __str__(self) -> str:
        if self.cannot:
            return f"{self.what}: {self.cannot}"
        lines = [f"{self.what} [{self.unit}], {self.statistic}"]
        for p in self.points:
            labels = "  ".join(f"{_label(k, v)}" for k, v in p.items() if k not in ("value", "samples"))
            spread = ""
            if len(p["samples"]) > 1:
                q1, q2, q3 = np.percentile(p["samples"], [25, 50, 75])
                spread = f"   median {q2:.3g}, middle half {q1:.3g}–{q3:.3g}, n = {len(p['samples'])}"
            lines.append(f"  {labels:<34s} {p['value']:8.3g}{spread}")
        lines += [f"  {key}: {value}" for key, value in self.conditions.items()]
        return "\n".join(lines)


def _label(key: str, value) -> str:
    if key == "bytes" or key.endswith("_bytes"):
        size = units.size(value) if value % 256 == 0 else f"{value} B"  # 4092 B is not "4 KiB"
        return size if key == "bytes" else f"{key.removesuffix('_bytes').replace('_', ' ')} {size}"
    return value if isinstance(value, str) else f"{key.replace('_', ' ')} {value}"


# ---- the C library -----------------------------------------------------------------------------------------


class NoCompiler(RuntimeError):
    """No C compiler that works. The message says what to install."""


def _cache_folder() -> Path:
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "perflab"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perflab"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a home that can't be written, as in many containers
        folder = Path(tempfile.mkdtemp(prefix="perflab-"))
    return folder


@functools.cache
def _library() -> ctypes.CDLL:
    """csrc/probes.c, compiled for this processor. Raises NoCompiler."""
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if compiler is None:
        raise NoCompiler(
            "no C compiler was found (cc, gcc and clang were tried); install one: 'apt install gcc' on "
            "Debian and Ubuntu, 'xcode-select --install' on macOS\n"
            "没有找到 C 编译器（试过 cc、gcc 和 clang）。请安装：Debian 和 Ubuntu 用 apt install gcc，"
            "macOS 用 xcode-select --install"
        )
    source = _SOURCE.read_bytes()
    flags = ["-O3", "-shared", "-fPIC", "-pthread", "-ffp-contract=fast"]
    # The flags of the first are gcc's (the second keeps STREAM's copy from becoming a call of memcpy), of the
    # second clang's on x86, of the third either's on Arm; the last is for a compiler that knows none of them.
    candidates = (
        ["-march=native", "-fno-tree-loop-distribute-patterns"],
        ["-march=native"],
        ["-mcpu=native"],
        [],
    )
    # Built for one processor: a home folder shared between machines needs one file for each.
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30).stdout
    cpu = json.dumps([platform.machine(), sorted(_cpu_features()), version])
    name = hashlib.sha256(source + cpu.encode()).hexdigest()[:16] + ".so"
    target = _cache_folder() / name
    said = ""
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            built = Path(scratch) / name
            for extra in candidates:
                done = subprocess.run(
                    [compiler, *flags, *extra, "-o", str(built), str(_SOURCE)],
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                if done.returncode == 0:
                    os.replace(built, target)  # atomic: another process may be building the same file
                    break
                said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[0]
            else:
                raise NoCompiler(
                    f"{compiler} can't build the probes: {said}; expected a compiler for C11 with pthreads; "
                    f"set the environment variable CC to another one\n{compiler} 无法编译探针程序：{said}。"
                    "需要支持 C11 和 pthread 的编译器，可用环境变量 CC 另指定一个"
                )
    library = ctypes.CDLL(str(target))
    p, n, i, d = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double
    for function, result, arguments in (
        ("pl_chase", d, (p, n)),
        ("pl_sweep", d, (p, n, n, n, n, p)),
        ("pl_scatter", d, (p, n, p)),
        ("pl_load_latency", d, (p, n)),
        ("pl_load", d, (p, n)),
        ("pl_store", d, (p, n)),
        ("pl_stream", i, (p, p, p, n, n, i, p, p)),
        ("pl_sharing", i, (p, n, n, i, p, p)),
        ("pl_arithmetic", i, (n, i, p, p, p)),
        ("pl_arithmetic_flops", d, (n,)),
        ("pl_vector_bytes", i, ()),
    ):
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


def _cpu_features() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {platform.processor()}
    return {
        line
        for line in text.splitlines()
        if line.split(":")[0].strip() in ("flags", "Features", "model name")
    }


def _or_cannot(what: str, unit: str):
    """A probe that needs the C library says so where it can't be built."""

    def wrap(probe):
        @functools.wraps(probe)
        def run(*args, **kwargs) -> Reading:
            try:
                return probe(*args, **kwargs)
            except NoCompiler as problem:
                return Reading(what, unit, "", cannot=str(problem))

        return run

    return wrap


# ---- memory, pages, processors -----------------------------------------------------------------------------


def buffer(n_bytes: int, huge: bool | None = None) -> np.ndarray:
    """(n_bytes,) uint8, zeroed, written, aligned to 2 MiB. huge: ask for huge pages, refuse them, or leave it
    to the system.
    """
    region = mmap.mmap(-1, n_bytes + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    if huge is not None and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            region.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        except OSError as problem:  # a kernel without them; page_state then says what came of it
            if problem.errno != errno.EINVAL:
                raise
    whole = np.frombuffer(region, dtype=np.uint8)
    skip = -whole.ctypes.data % _HUGE_BYTES
    array = whole[skip : skip + n_bytes]
    array[:] = 0
    return array


def page_state(array: np.ndarray) -> str:
    """What pages an array of :func:`buffer` lies in, by the kernel's word: '2 MiB pages for 100 % of it'."""
    small = units.size(mmap.PAGESIZE)
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError:
        return f"{small} pages (this system doesn't report huge pages)"
    address = array.ctypes.data
    inside, resident, huge = False, 0, 0
    for line in text.splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            inside = low <= address < high
        elif inside and first == "Rss:":
            resident = int(line.split()[1])
        elif inside and first == "AnonHugePages:":
            huge = int(line.split()[1])
    if not huge or not resident:
        return f"{small} pages"
    return f"{units.size(_HUGE_BYTES)} pages for {min(100, round(100 * huge / resident))} % of it"


def line_bytes() -> int:
    """The size of a cache line as the system reports it; 64 where it doesn't."""
    lines = {level["line_bytes"] for level in machine.caches() if level.get("line_bytes")}
    return max(lines) if lines else 64


def processors(threads: int) -> list[int]:
    """The numbers of ``threads`` processors this process may use, one of each core before a second of any."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(threads))
    allowed = sorted(os.sched_getaffinity(0))
    by_core: dict[str, list[int]] = {}
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        by_core.setdefault(path.read_text() if path.exists() else str(cpu), []).append(cpu)
    rounds = itertools.zip_longest(*by_core.values())
    turns = [cpu for one_of_each in rounds for cpu in one_of_each if cpu is not None]
    return (turns * (threads // len(turns) + 1))[:threads]


def _ints(values: list[int]):
    return (ctypes.c_int * len(values))(*values)


def _pinning(cpus: list[int], unpinned: int) -> str:
    if unpinned < 0:
        raise RuntimeError(
            f"the system refused to start {len(cpus)} threads; close other programs or raise the limit "
            "(ulimit -u)\n"
            f"系统拒绝启动 {len(cpus)} 个线程。请关闭其他程序，或放宽限制（ulimit -u）"
        )
    if unpinned:
        return f"{len(cpus)}, placed by the system"
    return f"{len(cpus)}, pinned to processors {', '.join(map(str, cpus))}"


# ---- passes ------------------------------------------------------------------------------------------------


def _interleave(measures: dict, passes: int, rng: np.random.Generator) -> dict:
    """Call every measure once a pass, in an order drawn anew; key → list of what it returned."""
    samples: dict = {key: [] for key in measures}
    keys = list(measures)
    for _ in range(passes):
        for index in rng.permutation(len(keys)):
            samples[keys[index]].append(measures[keys[index]]())
    return samples


def _minimum(passes: int) -> str:
    return f"minimum over {passes} interleaved passes"


# ---- latency -----------------------------------------------------------------------------------------------


def _ring(array: np.ndarray, offsets: np.ndarray, rng: np.random.Generator) -> ctypes.c_void_p:
    """Link the 8-byte words at these byte offsets into one cycle in random order; where the chase starts.

    One cycle, not just any permutation: a permutation falls apart into several, and a chase would stay in one
    of them.
    """
    order = offsets[rng.permutation(len(offsets))].astype(np.uint64)
    words = array.view(np.uint64)
    words[order // np.uint64(8)] = np.uint64(array.ctypes.data) + np.roll(order, -1)
    return ctypes.c_void_p(array.ctypes.data + int(order[0]))


def _chase_measure(library, position: ctypes.c_void_p, elements: int, sample_ns: float, sweep=None):
    """A function that fills the caches (not timed), then times about sample_ns of chase.

    They are filled by one round of the chase. Round a large set that would take so long that neighbours evict what
    came first: there ``sweep`` reads it from end to end, and a chase of a 64th of it brings its page tables back.
    """
    where = ctypes.byref(position)
    state = {"steps": 0}

    def measure() -> float:
        if sweep:
            sweep()
        library.pl_chase(where, max(elements >> 6, 1 << 14) if sweep else elements)
        if not state["steps"]:
            state["steps"] = max(256, int(sample_ns / (library.pl_chase(where, 1024) / 1024))) // 16 * 16
        return library.pl_chase(where, state["steps"]) / state["steps"]

    return measure


def octaves(low_bytes: int, high_bytes: int, per_octave: int = 4, multiple: int = 64) -> list[int]:
    """Sizes from low to high, evenly spaced on a logarithmic axis, each a multiple of ``multiple`` bytes."""
    count = round(np.log2(high_bytes / low_bytes) * per_octave)
    return sorted({int(low_bytes * 2 ** (i / per_octave)) // multiple * multiple for i in range(count + 1)})


@_or_cannot("load latency by working set", "ns")
def latency(
    sizes=None, *, huge: bool = True, passes: int = 10, sample_ns: float = 5e5, seed: int = 12
) -> Reading:
    """ns a dependent load, by working set.

    sizes: bytes, multiples of 64; by default four an octave from 4 KiB to four times the last cache (at least
    128, at most 512 MiB). huge: ask for huge pages, so that the cost of translating addresses stays out of
    it; ``conditions`` says what was had. Each working set is one random cycle through its cache lines
    (Sattolo's cycle), every load's address the result of the one before. Method: lmbench's lat_mem_rd (McVoy
    and Staelin 1996) with a random order, so that no prefetcher can guess it.
    """
    library = _library()
    sizes = sorted(sizes if sizes is not None else octaves(4 * KIB, max(128 * MIB, stream_array_bytes())))
    rng = np.random.default_rng(seed)
    line = line_bytes()
    measures, arrays = {}, []
    # A line has room for several rings, one word each: eight sizes share an array as long as the largest of
    # them.
    for index, size in enumerate(reversed(sizes)):
        slot = index % (line // 8)
        if slot == 0:
            arrays.append(buffer(size, huge))
        offsets = np.arange(0, size, line, dtype=np.int64) + 8 * slot
        position = _ring(arrays[-1], offsets, rng)
        read = (arrays[-1].ctypes.data, size // 8, line // 8, 1, 1, ctypes.byref(ctypes.c_uint64()))
        sweep = functools.partial(library.pl_sweep, *read) if size > 512 * KIB else None
        measures[size] = _chase_measure(library, position, len(offsets), sample_ns, sweep)
    samples = _interleave(measures, passes, rng)
    return Reading(
        "load latency by working set",
        "ns",
        _minimum(passes),
        tuple({"bytes": size, "value": min(samples[size]), "samples": samples[size]} for size in sizes),
        {
            "pages": page_state(arrays[0]),
            "line": units.size(line),
            "order": "one random cycle of lines",
            "threads": 1,
        },
    )


def cache_sizes(sizes, ns, *, step: float = 1.5, penalty: float = 0.05) -> list[dict]:
    """Where a latency curve steps up: one dict a level, ``bytes`` (where it is left) and ``ns`` (its
    plateau).

    sizes: (n,) bytes, ascending, several an octave; ns: (n,). The logarithm of latency is cut into the
    piecewise constant with the least squared error plus ``penalty`` a piece (dynamic programming; Jackson et
    al. 2005). A piece shorter than an octave, or one that rises, is a slope and no plateau; plateaus closer
    than ``step`` are one. A level ends where the curve crosses the geometric mean of its plateau and the
    next. The last plateau is memory, or whatever lies beyond the largest size, and is not returned.
    ValueError for anything but a curve.
    """
    sizes, ns = np.asarray(sizes, float), np.asarray(ns, float)
    if len(sizes) != len(ns) or len(sizes) < 4 or (np.diff(sizes) <= 0).any() or not (ns > 0).all():
        raise ValueError(
            f"expected ascending sizes and as many positive latencies, at least 4; got {len(sizes)} sizes "
            f"and {len(ns)} latencies\n需要递增的大小和同样多的正延迟，至少 4 个；"
            f"得到 {len(sizes)} 个大小、{len(ns)} 个延迟"
        )
    y = np.log(ns)
    y[1:-1] = np.median([y[:-2], y[1:-1], y[2:]], axis=0)  # a single disturbed point is no step
    plateaus: list[dict] = []
    for first, last in _pieces(y, penalty):
        third = max(1, (last - first + 1) // 3)
        rise = np.mean(y[last - third + 1 : last + 1]) - np.mean(y[first : first + third])
        if sizes[last] < 1.9 * sizes[first] or rise > 0.3:
            continue
        level = float(np.exp(np.median(y[first : last + 1])))
        if not plateaus or level >= step * plateaus[-1]["ns"]:
            plateaus.append({"ns": level})
    # The curve made monotone, so that it crosses each wall once.
    rising = (np.maximum.accumulate(y) + np.minimum.accumulate(y[::-1])[::-1]) / 2
    found = []
    for low, high in zip(plateaus, plateaus[1:], strict=False):
        wall = (np.log(low["ns"]) + np.log(high["ns"])) / 2
        # The last size below the wall; the next lies above it.
        k = min(max(int(np.searchsorted(rising, wall)) - 1, 0), len(sizes) - 2)
        share = (wall - rising[k]) / max(rising[k + 1] - rising[k], 1e-12)
        found.append({"bytes": int(sizes[k] * (sizes[k + 1] / sizes[k]) ** share), "ns": low["ns"]})
    return found


def _pieces(y: np.ndarray, penalty: float) -> list[tuple[int, int]]:
    """Optimal partition of y into constants: [(first, last)], both inclusive."""
    n = len(y)
    s1, s2 = np.concatenate([[0], np.cumsum(y)]), np.concatenate([[0], np.cumsum(y * y)])
    best, cut = np.zeros(n + 1), np.zeros(n + 1, int)
    for end in range(1, n + 1):
        start = np.arange(end)
        cost = best[:end] + penalty + (s2[end] - s2[:end]) - (s1[end] - s1[:end]) ** 2 / (end - start)
        cut[end] = int(np.argmin(cost))
        best[end] = cost[cut[end]]
    pieces, end = [], n
    while end:
        pieces.append((int(cut[end]), end - 1))
        end = cut[end]
    return pieces[::-1]


@_or_cannot("load latency of lines spread over pages", "ns")
def tlb(counts=None, *, passes: int = 7, sample_ns: float = 5e5, seed: int = 12) -> Reading:
    """ns a dependent load from n cache lines, n = ``counts``: ``layout`` 'packed' side by side, 'one a page'
    in pages of the system's ordinary size, and 'one a page, huge pages' at the very same offsets within huge
    pages (left out where none are had).

    The lines are as many in all three, so the data caches hold them alike; what differs is how many
    addresses' translations are needed.
    """
    library = _library()
    counts = sorted(
        counts
        if counts is not None
        else [2**k for k in range(3, 14)] + [48, 72, 96, 192, 384, 768, 1536, 3072]
    )
    rng = np.random.default_rng(seed)
    line, page = line_bytes(), mmap.PAGESIZE
    layouts = {"packed": False, "one a page": False, "one a page, huge pages": True}
    measures, states, keep = {}, {}, []
    for layout, huge in layouts.items():
        spread = layout != "packed"
        for count in counts:
            array = buffer(count * (page if spread else line), huge)
            if huge and f"{units.size(_HUGE_BYTES)} pages" not in page_state(array):
                if len(array) >= _HUGE_BYTES:
                    states[layout] = "not to be had on this system"
                continue
            numbers = np.arange(count, dtype=np.int64)
            # The lines of a page are used equally often, so that no set of the cache gets more than its
            # share, and in random order: a core may find lines by a hash that a regular pattern makes
            # collide.
            offsets = numbers * page + rng.permutation(numbers * line % page) if spread else numbers * line
            position = _ring(array, offsets, rng)
            keep.append(array)
            measures[layout, count] = _chase_measure(library, position, count, sample_ns)
            states[layout] = page_state(array)
    samples = _interleave(measures, passes, rng)
    return Reading(
        "load latency of lines spread over pages",
        "ns",
        _minimum(passes),
        tuple(
            {"layout": k[0], "lines": k[1], "value": min(v), "samples": v} for k, v in sorted(samples.items())
        ),
        {"pages": "; ".join(f"{k}: {v}" for k, v in states.items()), "page": units.size(page), "threads": 1},
    )


@_or_cannot("load latency of lines that share a set", "ns")
def associativity(
    distances=None, lines=range(1, 33), *, passes: int = 7, sample_ns: float = 1e5, seed: int = 12
) -> Reading:
    """ns a dependent load from K cache lines, K = ``lines``, placed ``distance_bytes`` apart.

    distances: by default one page (where the first-level cache is addressed within a page, as in most
    processors, such lines share a set) and one page and a line (the control: neighbouring sets).
    """
    library = _library()
    page, line = mmap.PAGESIZE, line_bytes()
    distances = list(distances) if distances is not None else [page, page + line]
    rng = np.random.default_rng(seed)
    measures, arrays = {}, []
    for distance in distances:
        for count in lines:
            arrays.append(buffer(distance * count + line, huge=True))
            position = _ring(arrays[-1], np.arange(count, dtype=np.int64) * distance, rng)
            measures[distance, count] = _chase_measure(library, position, count, sample_ns)
    samples = _interleave(measures, passes, rng)
    return Reading(
        "load latency of lines that share a set",
        "ns",
        _minimum(passes),
        tuple(
            {"distance_bytes": d, "lines": k, "value": min(v), "samples": v} for (d, k), v in samples.items()
        ),
        {"line": units.size(line), "threads": 1},
    )


# ---- throughput --------------------------------------------------------------------------------------------

STREAM_BYTES = {
    "copy": 16,
    "scale": 16,
    "add": 24,
    "triad": 24,
}  # an element, as STREAM counts; a store's own read is not counted


def stream_array_bytes() -> int:
    """STREAM's rule: each array at least four times the last-level cache (32 MiB where the system is silent);
    here at least 32 and at most 512 MiB.
    """
    last = max((level["size_bytes"] for level in machine.caches() if level["size_bytes"]), default=32 * MIB)
    return int(min(512 * MIB, max(32 * MIB, 4 * last)))


@_or_cannot("memory bandwidth, STREAM's kernels", "GB/s")
def bandwidth(
    array_bytes: int | None = None, *, threads: int = 1, repeats: int = 10, huge: bool = True
) -> Reading:
    """GB/s (10⁹ bytes a second) of ``kernel`` 'copy', 'scale', 'add', 'triad' over three float64 arrays of
    array_bytes each.

    Bytes counted as STREAM does (McCalpin 1995): those the program names. A cache that reads a line before it
    is overwritten moves half as much again for copy and a third more for add and triad. Best of ``repeats``,
    the first left out, as STREAM reports. RuntimeError when a result is wrong.
    """
    library = _library()
    array_bytes = (array_bytes or stream_array_bytes()) // 64 * 64
    a, b, c = (buffer(array_bytes, huge).view(np.float64) for _ in range(3))
    cpus = processors(threads)
    ns = np.zeros((repeats + 1, 4))
    unpinned = library.pl_stream(
        a.ctypes.data, b.ctypes.data, c.ctypes.data, a.size, repeats + 1, threads, _ints(cpus), ns.ctypes.data
    )
    conditions = {
        "threads": _pinning(cpus, unpinned),
        "array": units.size(array_bytes),
        "pages": page_state(a),
        "bytes": "as the program names them; lines read before being overwritten are not counted",
    }
    expected = [1.0, 2.0, 0.0]
    for _ in range(repeats + 1):
        expected[2] = expected[0]
        expected[1] = 3.0 * expected[2]
        expected[2] = expected[0] + expected[1]
        expected[0] = expected[1] + 3.0 * expected[2]
    for array, right in zip((a, b, c), expected, strict=True):
        if not np.allclose(array[:: max(1, array.size // 1000)], right, rtol=1e-9):
            raise RuntimeError(
                "STREAM's kernels computed a wrong result: this compiler or this memory is broken"
            )
    points = []
    for k, kernel in enumerate(STREAM_BYTES):
        rates = (STREAM_BYTES[kernel] * a.size / ns[1:, k]).tolist()
        points.append({"kernel": kernel, "value": max(rates), "samples": rates})
    return Reading(
        "memory bandwidth, STREAM's kernels", "GB/s", f"best of {repeats}", tuple(points), conditions
    )


@_or_cannot("reads by working set and stride", "ns")
def mountain(
    sizes=None, strides=None, *, passes: int = 3, sample_accesses: int = 60_000, seed: int = 12
) -> Reading:
    """ns an independent 8-byte read, by working set ``bytes`` and ``stride_bytes``: the memory mountain
    (Bryant and O'Hallaron).

    Sweeps over the first ``bytes`` of an array at a stride, again and again; the first sweep fills the caches
    and is not timed.
    """
    library = _library()
    sizes = list(sizes if sizes is not None else octaves(16 * KIB, 64 * MIB, 1))
    strides = list(strides if strides is not None else [8, 16, 32, 64, 128, 256, 512, 1024])
    array = buffer(max(sizes), huge=True)
    total = ctypes.c_uint64()

    def one(size: int, stride: int):
        n, step = size // 8, stride // 8
        reads = (n - 1) // step + 1
        sweeps = max(1, sample_accesses // reads)

        def measure() -> float:
            library.pl_sweep(array.ctypes.data, n, step, 1, 1, ctypes.byref(total))
            ns = library.pl_sweep(array.ctypes.data, n, step, 1, sweeps, ctypes.byref(total))
            return ns / (sweeps * reads)

        return measure

    measures = {
        (size, stride): one(size, stride) for size in sizes for stride in strides if stride * 16 <= size
    }
    samples = _interleave(measures, passes, np.random.default_rng(seed))
    return Reading(
        "reads by working set and stride",
        "ns",
        _minimum(passes),
        tuple(
            {"bytes": k[0], "stride_bytes": k[1], "value": min(v), "samples": v} for k, v in samples.items()
        ),
        {"pages": page_state(array), "threads": 1},
    )


@_or_cannot("one pass over an array, by stride", "ns")
def stride(
    strides=None, *, array_bytes: int = 64 * MIB, huge: bool | None = None, passes: int = 5, seed: int = 12
) -> Reading:
    """ns an 8-byte read when an array is read once, every element, in the order 0, s, 2s, …, 1, 1+s, …;
    ``stride_bytes`` is s in bytes.

    The same number of reads at every stride. ``stride_bytes`` 0 is a random order. array_bytes: a power of
    two.
    """
    library = _library()
    strides = list(strides if strides is not None else [8 * 2**k for k in range(10)])
    array = buffer(array_bytes, huge).view(np.uint64)
    array[:] = np.arange(array.size, dtype=np.uint64)
    total = ctypes.c_uint64()
    right = int(array.size) * (int(array.size) - 1) // 2

    def one(stride_bytes: int):
        def measure() -> float:
            if stride_bytes == 0:
                ns = library.pl_scatter(array.ctypes.data, array.size, ctypes.byref(total))
            else:
                step = stride_bytes // 8
                ns = library.pl_sweep(array.ctypes.data, array.size, step, step, 1, ctypes.byref(total))
            if total.value != right:
                raise RuntimeError(
                    f"stride {stride_bytes} B: the sum is {total.value}, expected {right}: not every element "
                    "was read once"
                )
            return ns / array.size

        return measure

    samples = _interleave({s: one(s) for s in [*strides, 0]}, passes, np.random.default_rng(seed))
    return Reading(
        "one pass over an array, by stride",
        "ns",
        _minimum(passes),
        tuple({"stride_bytes": s, "value": min(v), "samples": v} for s, v in samples.items()),
        {"array": units.size(array_bytes), "pages": page_state(array.view(np.uint8)), "threads": 1},
    )


@_or_cannot("8-byte accesses by address", "ns")
def alignment(offsets=None, *, count: int = 20_000, passes: int = 9, seed: int = 12) -> Reading:
    """ns an access of the 8-byte word at ``offset_bytes`` from a page's start, for ``access`` 'load latency'
    (each waits for the one before), 'load' (independent) and 'store'.

    offsets: by default every byte around the first line boundary and around the page's end. The same word
    each time: it stays in the first-level cache, so nothing but the address differs.
    """
    library = _library()
    line, page = line_bytes(), mmap.PAGESIZE
    if offsets is None:
        offsets = sorted({*range(0, line + 9), *range(page - 16, page + 9)})
    array = buffer(2 * page + 16, huge=False)
    base = array.ctypes.data
    kinds = {"load latency": library.pl_load_latency, "load": library.pl_load, "store": library.pl_store}

    def one(function, offset: int):
        def measure() -> float:
            function(base + offset, 64)
            return function(base + offset, count) / count

        return measure

    measures = {
        (kind, offset): one(function, offset) for kind, function in kinds.items() for offset in offsets
    }
    samples = _interleave(measures, passes, np.random.default_rng(seed))
    return Reading(
        "8-byte accesses by address",
        "ns",
        _minimum(passes),
        tuple(
            {"access": k[0], "offset_bytes": k[1], "value": min(v), "samples": v} for k, v in samples.items()
        ),
        {"line": units.size(line), "page": units.size(page), "threads": 1},
    )


def alignment_cases(line: int | None = None, page: int | None = None) -> dict[str, int]:
    """One offset from a page's start for each case: aligned, unaligned within a line, across a line's end,
    across a page's end.
    """
    line, page = line or line_bytes(), page or mmap.PAGESIZE
    return {"aligned": 0, "unaligned": 3, "line split": line - 4, "page split": page - 4}


@_or_cannot("two threads, two counters, by distance", "ns")
def false_sharing(
    distances=(8, 16, 32, 64, 128, 256, 512), *, count: int = 200_000, passes: int = 7, seed: int = 12
) -> Reading:
    """ns an atomic addition to a counter of one's own, ``threads`` 1 or 2, the two counters
    ``distance_bytes`` apart.

    The slower thread counts. Needs two processors.
    """
    what = "two threads, two counters, by distance"
    available = machine.usable_cores()
    if available < 2:
        return Reading(
            what,
            "ns",
            "",
            cannot="this process may use one processor only; false sharing needs two at the same time\n"
            "本进程只能使用一个处理器；伪共享需要两个同时运行的处理器",
        )
    library = _library()
    array = buffer(4096 + max(distances))
    unpinned = {}

    def one(threads: int, distance: int):
        cpus = processors(threads)

        def measure() -> float:
            ns = (ctypes.c_double * threads)()
            unpinned[threads] = library.pl_sharing(
                array.ctypes.data, distance, count, threads, _ints(cpus), ns
            )
            _pinning(cpus, unpinned[threads])
            return max(ns) / count

        return measure

    measures = {(2, distance): one(2, distance) for distance in distances}
    measures[1, distances[0]] = one(1, distances[0])
    samples = _interleave(measures, passes, np.random.default_rng(seed))
    return Reading(
        what,
        "ns",
        f"median of {passes} interleaved passes",
        tuple(
            {"threads": k[0], "distance_bytes": k[1], "value": statistics.median(v), "samples": v}
            for k, v in samples.items()
        ),
        {"threads": _pinning(processors(2), unpinned[2]), "line": units.size(line_bytes())},
    )


@_or_cannot("float32 multiply-adds from registers", "GFLOP/s")
def arithmetic(*, threads: int = 1, count: int = 1_000_000, passes: int = 9) -> Reading:
    """GFLOP/s of float32 multiply-adds (two operations each) on data in registers: the most this processor's
    vector units give.

    Twelve independent chains of the widest vectors the compiler offers for this processor.
    """
    library = _library()
    cpus, sink = processors(threads), (ctypes.c_float * threads)()
    rates, unpinned = [], 0
    for _ in range(passes):
        ns = (ctypes.c_double * threads)()
        unpinned = library.pl_arithmetic(count, threads, _ints(cpus), ns, sink)
        _pinning(cpus, unpinned)
        if not np.allclose(list(sink), 24.0, rtol=1e-4):  # each chain converges to 2, and there are twelve
            raise RuntimeError(
                f"the multiply-adds gave {list(sink)}, expected 24: this compiler or this processor is broken"
            )
        rates.append(threads * library.pl_arithmetic_flops(count) / max(ns))
    return Reading(
        "float32 multiply-adds from registers",
        "GFLOP/s",
        f"best of {passes}",
        ({"threads": threads, "value": max(rates), "samples": rates},),
        {"threads": _pinning(cpus, unpinned), "vector": f"{8 * library.pl_vector_bytes()} bits"},
    )


# ---- files -------------------------------------------------------------------------------------------------


def _drop(fd: int) -> bool:
    """Ask the kernel to forget a file's cached pages; whether it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _open_uncached(path: str) -> tuple[int, str]:
    """(descriptor, how): 'O_DIRECT', 'F_NOCACHE', 'posix_fadvise', or '' where the page cache can't be
    avoided.
    """
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), "O_DIRECT"
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # a file system without it: older tmpfs, some network ones
                raise
    fd = os.open(path, os.O_RDONLY)
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, getattr(fcntl, "F_NOCACHE", 48), 1)
        return fd, "F_NOCACHE"
    return fd, "posix_fadvise" if _drop(fd) else ""


def _file_system(path: str) -> str:
    """The type of the file system that holds a path, as /proc/mounts names it; '' where that is not known."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    real = os.path.realpath(path)
    inside = [
        (where, kind) for where, kind in mounts if real == where or real.startswith(where.rstrip("/") + "/")
    ]
    return max(inside, key=lambda m: len(m[0]))[1] if inside else ""


def file_reads(
    folder: str | os.PathLike | None = None,
    *,
    file_bytes: int = 128 * MIB,
    reads: int = 1500,
    depths=(1, 16),
    passes: int = 3,
    seed: int = 12,
    path: str | None = None,
) -> Reading:
    """Reads of a file of incompressible bytes: ``how`` 'device' or 'page cache', ``access`` 'sequential' (1
    MiB at a time, MB/s) or 'random' (4 KiB at aligned places, ``depth`` threads at once: reads a second, with
    ``us``, the median time of one read).

    'device' goes round the page cache by O_DIRECT (F_NOCACHE on macOS; else the cache is dropped before each
    pass), and there are no such points where that can't be done, as in a file system that lies in memory. The
    device's own cache, and in a virtual machine the host's, can't be switched off from here. folder: where to
    put the file, by default the system's temporary folder; path: read this file instead, written by the
    caller.
    """
    rng = np.random.default_rng(seed)
    folder = str(folder or tempfile.gettempdir())
    what, unit = "file reads", "MB/s or reads/s"
    with contextlib.ExitStack() as stack:
        if path is None:
            try:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="perflab-", dir=folder))
                path = os.path.join(scratch, "data")
                with open(path, "wb") as file:
                    for _ in range(file_bytes // MIB):
                        file.write(rng.bytes(MIB))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as problem:
                why = f"{problem.strerror} ({folder})"
                return Reading(
                    what,
                    unit,
                    "",
                    cannot=f"a file of {units.size(file_bytes)} can't be written: {why}; name another "
                    "folder\n"
                    f"无法写入 {units.size(file_bytes)} 的文件：{why}。请另指定一个目录",
                )
        file_bytes = os.path.getsize(path)
        kind = _file_system(path)
        direct, how = _open_uncached(path)
        stack.callback(os.close, direct)
        cached = os.open(path, os.O_RDONLY)
        stack.callback(os.close, cached)
        modes = {"page cache": cached}
        if how and kind not in ("tmpfs", "ramfs"):
            modes = {"device": direct, **modes}
        points = []
        for mode, fd in modes.items():
            forget = mode == "device" and how == "posix_fadvise"
            if mode == "page cache":
                _read_sequential(fd, file_bytes)  # fill it
            rates = []
            for _ in range(passes):
                if forget:
                    _drop(fd)
                rates.append(file_bytes / _read_sequential(fd, file_bytes) / 1e6)
            labels = {"how": mode, "access": "sequential", "depth": 1}
            points.append({**labels, "value": statistics.median(rates), "samples": rates})
            for depth in depths:
                if forget:
                    _drop(fd)
                rate, each_us = _read_random(fd, file_bytes, reads, depth, rng)
                labels = {"how": mode, "access": "random", "depth": depth, "us": round(each_us, 2)}
                points.append({**labels, "value": rate, "samples": [rate]})
    if "device" in modes:
        device = "page cache dropped before each pass" if how == "posix_fadvise" else how
    else:
        device = f"not to be had: {kind} lies in memory" if how else "not to be had on this system"
    return Reading(
        what,
        unit,
        f"sequential: median of {passes} passes; random: {reads} reads by Python threads",
        tuple(points),
        {"file": units.size(file_bytes), "file system": kind or "unknown", "device": device},
    )


def _read_sequential(fd: int, file_bytes: int) -> float:
    """Seconds to read a file from start to end, 1 MiB at a time, into page-aligned memory (O_DIRECT asks for
    that).
    """
    block = mmap.mmap(-1, MIB)
    start = time.perf_counter()
    for offset in range(0, file_bytes - file_bytes % MIB, MIB):
        if os.preadv(fd, [block], offset) != MIB:
            raise OSError(f"a read of {MIB} bytes at {offset} came back short")
    return time.perf_counter() - start


def _read_random(
    fd: int, file_bytes: int, reads: int, depth: int, rng: np.random.Generator
) -> tuple[float, float]:
    """(reads a second, median µs of one): 4 KiB reads at random aligned places, ``depth`` threads at once."""
    places = (rng.integers(0, file_bytes // 4096, size=(depth, max(1, reads // depth))) * 4096).tolist()
    took_s: list[list[float]] = [[] for _ in range(depth)]
    errors: list[BaseException] = []
    gate = threading.Barrier(depth + 1)

    def worker(index: int) -> None:
        block, took, clock = mmap.mmap(-1, 4096), took_s[index], time.perf_counter
        gate.wait()
        try:
            for offset in places[index]:
                before = clock()
                os.preadv(fd, [block], offset)
                took.append(clock() - before)
        except OSError as problem:
            errors.append(problem)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(depth)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if errors:
        raise errors[0]
    every = [t for took in took_s for t in took]
    return len(every) / seconds, statistics.median(every) * 1e6


# ---- network -----------------------------------------------------------------------------------------------

# The other end: a process of its own, as two threads of one Python process would wait for each other's
# interpreter lock. A request is a letter and two counts: 'e' echo `times` messages of `size` bytes; 's'
# swallow `size` bytes and acknowledge.
_PEER = """
import socket, struct
listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(30)
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
peer.settimeout(30)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
block = memoryview(bytearray(1 << 20))
def fill(n):
    got = 0
    while got < n:
        new = peer.recv_into(block[got:n])
        if not new:
            raise SystemExit
        got += new
while True:
    fill(17)
    what, size, times = struct.unpack("<cQQ", block[:17])
    if what == b"e":
        for _ in range(times):
            fill(size)
            peer.sendall(block[:size])
    else:
        while size:
            size -= peer.recv_into(block[:min(size, 1 << 20)]) or exit()
        peer.sendall(b"k")
"""


def loopback(*, round_trips: int = 3000, bulk_bytes: int = 256 * MIB, repeats: int = 5) -> Reading:
    """TCP over 127.0.0.1 to another process: ``quantity`` 'round trip' of 1 byte (µs, median) and 'one way'
    bulk (GB/s, median).

    No wire and no network card: what is left is the system calls, the copies into and out of the kernel, and
    waking the other process.
    """
    what, unit = "TCP over the loopback", "µs or GB/s"
    peer = subprocess.Popen([sys.executable, "-I", "-c", _PEER], stdout=subprocess.PIPE, text=True)
    try:
        port = peer.stdout.readline().strip()
        if not port:
            return Reading(
                what,
                unit,
                "",
                cannot="the second process could not open a socket on 127.0.0.1: this machine or sandbox "
                "has no loopback network\n"
                "第二个进程无法在 127.0.0.1 上打开套接字：这台机器或沙箱没有回环网络",
            )
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips, clock = [], time.perf_counter
            link.sendall(struct.pack("<cQQ", b"e", 1, round_trips))
            for _ in range(round_trips):
                start = clock()
                link.sendall(b"x")
                link.recv(1)
                trips.append((clock() - start) * 1e6)
            rates, block = [], bytes(128 * KIB)
            for _ in range(repeats):
                link.sendall(struct.pack("<cQQ", b"s", bulk_bytes, 0))
                start = clock()
                for _ in range(bulk_bytes // len(block)):
                    link.sendall(block)
                link.recv(1)
                rates.append(bulk_bytes / (clock() - start) / 1e9)
    finally:
        peer.kill()
        peer.wait()
        peer.stdout.close()
    return Reading(
        what,
        unit,
        "median",
        (
            {"quantity": "round trip", "value": statistics.median(trips), "samples": trips},
            {"quantity": "one way", "value": statistics.median(rates), "samples": rates},
        ),
        {
            "message": f"1 B there and back; {units.size(bulk_bytes)} one way in writes of 128 KiB",
            "processes": 2,
        },
    )
