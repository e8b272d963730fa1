"""12.4: how large are the caches? The answer is a chain of dependent loads in C, a ring to chase, and an estimator.

Judged are, one by one: `chase` (exact, under the sanitizers), `make_ring` (one cycle through all lines, in no order a
prefetcher could follow), `latency` (against a chase of the judge's that really waits a secret time, then against
the judge's own curve of this machine) and `estimate` (on recorded curves of other machines whose caches are known,
then on the answer's own curve).

The judge's module has no estimator. Here it compares with the system's figures for the first two levels. The last
level is never compared with its label, since a virtual machine passes the label on but not the cache: it is compared
with where the judge's own curve crosses the geometric mean of the plateaus beside it.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np

from perflab import machine, native
from perflab.exercises import _c_answers as c
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Proxy, type_name

SLUG = "cache-size"
TITLE = ("How large are the caches?", "缓存有多大？")
ENTRY_POINTS = ("C_SOURCE", "make_ring", "latency", "estimate")
MAX_POINTS = 12
PROTOTYPES = {"chase": "__SIZE_TYPE__ chase(const __SIZE_TYPE__ *, __SIZE_TYPE__, __SIZE_TYPE__)"}

KIB, MIB = 1 << 10, 1 << 20
LINE_BYTES, LINE = 64, 8  # a line's bytes, and its elements
ROUNDS, MORE_ROUNDS = 6, 6
DEVICE_TRIES = 6
CURVE_WITHIN = 1.5
CACHE_WITHIN, LAST_WITHIN, SMALLER_BY = 1.5, 2.0, 3.0
FAR_BYTES = 64 * MIB
VISIBLE = 1.8  # levels closer than this in latency are not told apart
PUBLIC_CURVES = Path(__file__).with_name("data") / "latency-curves.json"


def bind(library: ctypes.CDLL) -> SimpleNamespace:
    """The answer's function for NumPy arrays: ``chase(next, start, steps) -> int``.

    next: a C-contiguous array of dtype uintp that holds element indices; start: an element. Raises TypeError, ValueError.
    """
    size = ctypes.c_size_t
    library.chase.restype, library.chase.argtypes = size, [ctypes.c_void_p, size, size]

    def chase(next, start, steps):
        if not isinstance(next, np.ndarray) or next.dtype != np.uintp or not next.flags.c_contiguous:
            raise TypeError("next must be a C-contiguous NumPy array of dtype uintp")
        if not 0 <= start < next.size or steps < 0:
            raise ValueError(f"start = {start} is no element of a ring of {next.size}, or steps = {steps} is negative")
        return library.chase(next.ctypes.data, int(start), int(steps))

    return SimpleNamespace(chase=chase)


HOST = '''
def one_chase(ring, start, steps):
    return functions.chase(ring, start, steps)

def latency_here(n_bytes):
    return answer["latency"](functions.chase, n_bytes)

def latency_on_device(device, n_bytes):
    def chase(next, start, steps):
        if type(next) is not np.ndarray or next.dtype != np.uintp or not next.flags.c_contiguous:
            raise TypeError("next must be a C-contiguous NumPy array of dtype uintp")
        device(int(next.size), int(start), int(steps))
        return int(functions.chase(next, start, steps % max(1, next.size // 8)))
    return answer["latency"](chase, n_bytes)
'''

# In the probe: rings of the judge's own, in byte offsets, and its own C alone, so that its clock may be inside. Which
# pages of memory a ring gets decides how much of it an L2 can hold, so a ring of about that size is made afresh each time.
PROBE = '''
import ctypes, time
import numpy as np
from perflab import native

def probe(shared):
    global library, orders, rings
    library, orders, rings = native.load(shared.tobytes()), {}, {}
    library.probe_chase.restype = ctypes.c_size_t
    library.probe_chase.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

def prepare(sizes, seed):
    rng = np.random.default_rng(seed)
    for size in sizes:
        orders[size] = np.concatenate(([0], 1 + rng.permutation(size // 64 - 1))).astype(np.uintp)
        rings[size] = made(size)

def made(size):
    ring, order = np.zeros(size // 8, np.uintp), orders[size]
    ring[order * 8] = np.roll(order, -1) * 64
    return ring

def measure(sizes):
    found = []
    for size in sizes:
        if 128 << 10 <= size <= 16 << 20:
            rings[size] = made(size)
        at = rings[size].ctypes.data
        lines = size // 64
        steps = 200_000 if size <= 1 << 20 else 40_000
        library.probe_chase(at, 0, lines * (2 if size < 64 << 20 else 1))
        start = time.perf_counter()
        library.probe_chase(at, 0, steps)
        found.append((time.perf_counter() - start) / steps * 1e9)
    return found
'''


# ---------------------------------------------------------------- judging


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    host = session.answer()
    built = c.accept(session, host, parts, sys.modules[__name__], MAX_POINTS)
    if built is None:
        return parts.verdict(evidence=evidence)
    evidence["compiler"] = built.compiler

    def ready(host):
        if host.closed:
            host = session.answer()
        c.start(host, HOST, sys.modules[__name__], built.shared)
        return host

    missed = here = found = None

    def verdict():
        return parts.verdict(evidence=evidence, figure=_figure(missed, evidence.get("device"), here, found))

    try:
        _judge_chase(session, built, parts)
    except (native.CError, AnswerFailed) as error:
        parts.add("chase", 2, False, error.en, error.zh)
    host = ready(host)
    with parts.attempt("ring", 2):
        _judge_ring(session, host, parts)
    host = ready(host)
    with parts.attempt("recorded", 3):
        missed = _judge_recorded(session, parts, evidence)
    if parts.items[0].ok is False or parts.items[1].ok is False:
        parts.add("latency", 5, False, "`latency` is judged once `chase` and `make_ring` are right.",
                  "`chase` 和 `make_ring` 正确之后才会评判 `latency`。")  # fmt: skip
        return verdict()
    host = ready(host)
    measured = True
    with parts.attempt("device", 2):
        measured = _judge_on_device(session, host, parts, evidence)
    if measured is False:
        parts.add("here", 3, False, "Figures that were not measured do not count.", "不是测量得到的数值不计分。")
        return verdict()
    host = ready(host)
    with parts.attempt("here", 3):
        here = _measure_here(session, host, evidence)
    if here is None:
        return verdict()
    _judge_curve(here, parts)
    with parts.attempt("estimate", 1):
        found = host.call("estimate", here.sizes, list(here.mine.ns.values()), timeout_s=20, inference=False)
        evidence["estimate"] = found
        _judge_estimate_here(found, here, parts, evidence)
    return verdict()


# ---- chase


def ring(n_lines: int, rng) -> np.ndarray:
    """One random cycle through the first elements of `n_lines` lines, beginning at 0; elsewhere nonsense that must not be followed."""
    order = np.concatenate(([0], 1 + rng.permutation(n_lines - 1))) * LINE
    made = np.full(n_lines * LINE, 1 << 40, np.uintp)
    made[order] = np.roll(order, -1)
    return made


def _judge_chase(session, built, parts) -> None:
    rng = session.rng
    asked = []
    for lines in (1, 2, 3, 17, 256, 1000):
        made = ring(lines, rng)
        for steps in (0, 1, 2, lines, int(rng.integers(3, 5000))):
            asked.append((made, int(rng.integers(lines)) * LINE, steps))
    truth = []
    for made, start, steps in asked:
        at = start
        for _ in range(steps % (made.size // LINE)):
            at = int(made[at])
        truth.append(at)

    def wrong(got) -> bool:
        for (made, start, steps), value, true in zip(asked, got, truth, strict=True):
            if value != true:
                parts.add("chase", 2, False,
                          f"`chase(next, {start}, {steps})` on a ring of {made.size // LINE} lines ended at {value}, expected {true}: exactly `steps` times"
                          " i = next[i], from `start`.",
                          f"`chase(next, {start}, {steps})` 在 {made.size // LINE} 行的环上停在 {value}，应为 {true}：从 `start` 开始恰好执行 `steps` 次 i = next[i]。")  # fmt: skip
                return True
        return False

    subject = session.trusted("")
    c.start(subject, HOST, sys.modules[__name__], built.shared)
    if wrong([subject.call("$one_chase", *case, timeout_s=10) for case in asked]):
        return
    big = ring(1 << 14, rng)
    seconds = {2_000_000: math.inf, 8_000_000: math.inf}
    for i in range(20):  # a disturbance only adds time, so more samples can only make the comparison fairer
        for steps in seconds:
            seconds[steps] = min(seconds[steps], subject.timed_call("$one_chase", big, 0, steps, timeout_s=10)[1])
        # no processor makes a dependent load in 0.4 ns
        walks = seconds[8_000_000] >= max(2 * seconds[2_000_000], 8_000_000 * 0.4e-9)
        if walks and i >= 2:
            break
    subject.close()
    rows = [struct.pack("<Q", len(asked))] + [struct.pack("<3Q", r.size, start, steps) + r.astype("<u8").tobytes() for r, start, steps in asked]
    written = c.sanitized(session, built, "cache_size_driver.c", b"".join(rows))
    if written is not None and wrong(np.frombuffer(written, np.uint64).tolist()):
        return
    if not walks:
        parts.add("chase", 2, False,
                  "`chase` takes as long for 8 million steps as for 2 million: it does not make them. Every step is a load whose address is the"
                  " result of the load before.",
                  "`chase` 走 800 万步与走 200 万步所用时间相近：它没有真正执行每一步。每一步都应是一次读取，其地址是上一次读取的结果。")  # fmt: skip
        return
    note_en, note_zh = ("", "") if written is not None else c.NO_SANITIZERS
    parts.add("chase", 2, True, f"`chase` ends where it must in {len(asked)} cases.{note_en}", f"`chase` 在 {len(asked)} 种情形下都停在正确的位置。{note_zh}")


# ---- make_ring


def _judge_ring(session, host, parts) -> None:
    rng = session.rng
    sizes = [64, 128, 192, 4096, 64 * int(rng.integers(1000, 3000)), 2 * MIB]
    for size in sizes:
        seed = int(rng.integers(1 << 31))
        made = host.call("make_ring", size, seed, timeout_s=20, inference=False)
        if fault := ring_fault(made, size):
            parts.add("ring", 2, False, *(text.format(call=f"make_ring({size}, {seed})") for text in fault))
            return
        again = host.call("make_ring", size, seed, timeout_s=20, inference=False)
        other = host.call("make_ring", size, seed + 1, timeout_s=20, inference=False)
        for another, its_seed in ((again, seed), (other, seed + 1)):
            if fault := ring_fault(another, size):
                parts.add("ring", 2, False, *(text.format(call=f"make_ring({size}, {its_seed})") for text in fault))
                return
        if not np.array_equal(made[::LINE], again[::LINE]):
            parts.add("ring", 2, False, f"`make_ring({size}, {seed})` gave two different rings: the same seed makes the same ring.",
                      f"`make_ring({size}, {seed})` 两次给出的环不同：相同的种子应得到相同的环。")  # fmt: skip
            return
        if size >= 4096 and np.array_equal(made[::LINE], other[::LINE]):
            parts.add("ring", 2, False, f"`make_ring({size}, …)` gave the same ring for two seeds: draw the order from the seed.",
                      f"`make_ring({size}, …)` 在两个不同的种子下给出同一个环：请用种子生成随机顺序。")  # fmt: skip
            return
    parts.add("ring", 2, True, f"`make_ring` makes one random cycle through all lines, for {len(sizes)} sizes from 64 bytes to 2 MiB.",
              f"`make_ring` 对从 64 字节到 2 MiB 的 {len(sizes)} 种大小都生成了经过所有缓存行的随机单环。")  # fmt: skip


def ring_fault(made, size: int) -> tuple[str, str] | None:
    """What is wrong with a ring of `size` bytes, in both languages with a place for ``{call}``; None where nothing is."""
    n, lines = size // 8, size // LINE_BYTES
    if type(made) is not np.ndarray or made.dtype != np.uintp or made.shape != (n,):
        got = type_name(made) + (f" of shape {made.shape}" if type(made) is np.ndarray else "")
        return (
            "`{call}` must return a NumPy array of dtype uintp with bytes/8 = " + f"{n} elements; it returned {got}.",
            "`{call}` 必须返回 dtype 为 uintp、共 bytes/8 = " + f"{n} 个元素的 NumPy 数组；实际返回的是 {got}。",
        )
    heads = made[::LINE]
    off = np.flatnonzero((heads >= n) | (heads % LINE != 0))
    if off.size:
        at = int(off[0]) * LINE
        value = int(made[at])
        hint_en = " (byte offsets? entries are element indices)" if value % LINE_BYTES == 0 and value < size else ""
        hint_zh = "（是字节偏移吗？这里应存元素下标）" if hint_en else ""
        return (
            "`{call}`: " + f"entry {at} is {value}; expected a multiple of 8 below {n}, the first element of another line{hint_en}.",
            "`{call}`：" + f"第 {at} 个元素是 {value}；应为小于 {n} 的 8 的倍数，即另一缓存行的第一个元素{hint_zh}。",
        )
    at, visited, jumps = 0, 0, []
    following = (heads // LINE).tolist()
    while True:
        after = following[at]
        jumps.append(after - at)
        at, visited = after, visited + 1
        if at == 0 or visited > lines:
            break
    if visited != lines:
        return (
            "`{call}`: " + f"the walk from 0 comes back after {min(visited, lines)} of {lines} lines. A random permutation falls into several cycles; visit the"
            " lines in a random *order* and link each to the next (or use Sattolo's shuffle).",
            "`{call}`：" + f"从 0 出发，经过 {lines} 行中的 {min(visited, lines)} 行就回到了起点。随机排列通常由多个环组成；"
            "请先生成随机的访问*顺序*，再把每一行连到下一行（或用 Sattolo 洗牌）。",
        )
    if lines >= 64:
        _, counts = np.unique(jumps, return_counts=True)
        if counts.max() > 0.2 * lines:
            return (
                "`{call}`: " + f"{counts.max()} of {lines} steps go the same distance. A prefetcher foresees such a walk, and every cache looks fast: make the"
                " order random.",
                "`{call}`：" + f"{lines} 步中有 {counts.max()} 步跨越的距离相同。预取器能预测这样的访问，各级缓存看上去都很快：请使用随机顺序。",
            )
        # of a random order the median step goes over 0.29 of the lines
        typical = float(np.median(np.abs(jumps)))
        if lines >= 256 and typical < lines / 8:
            return (
                "`{call}`: " + f"half of the steps go {typical:.0f} lines or less, of {lines}: neighbours in the walk are neighbours in memory. Draw one random"
                " order of all lines, not one within each piece.",
                "`{call}`：" + f"共 {lines} 行，却有一半的步跨越不超过 {typical:.0f} 行：访问顺序上相邻的行在内存中也相邻。请对所有行生成一个随机顺序，而不是分段打乱。",
            )
    return None


# ---- estimate, on recorded curves


def curves(session) -> list[dict]:
    """The recorded curves of this judgement: the public ones, and the hidden ones (marked ``secret``) where there are some."""
    found = json.loads(PUBLIC_CURVES.read_text())["curves"]
    if session.hidden:
        found += [c | {"secret": True} for c in json.loads((session.hidden / "latency-curves.json").read_text())["curves"]]
    return [found[i] for i in session.rng.permutation(len(found))]


def estimate_fault(found, truth) -> tuple[str, str] | None:
    """What is wrong with an estimate; `truth` in bytes, None for a level whose size isn't known."""
    listed = ", ".join(readable_bytes(size) if size else "?" for size in truth)
    if type(found) is not list or any(type(size) is not int for size in found):
        got = type_name(found) if type(found) is not list else f"a list of {sorted({type_name(v) for v in found})}"
        return (f"it must return a list of ints, bytes; it returned {got}", f"它必须返回由整数（字节数）组成的列表；实际返回的是 {got}")
    said = ", ".join(readable_bytes(size) for size in found[:8]) or "nothing"
    if len(found) != len(truth) and None not in truth or len(found) < len(truth):
        return (
            f"you find {len(found)} levels ({said}), there are {len(truth)} ({listed})",
            f"你找到 {len(found)} 级（{said}），实际有 {len(truth)} 级（{listed}）",
        )
    if found != sorted(found):
        return (f"the sizes must ascend; you give {said}", f"大小应按升序排列；你给出 {said}")
    for i, (size, true) in enumerate(zip(found, truth, strict=False)):  # where a size is unknown, so is what lies beyond
        within = LAST_WITHIN if i == len(truth) - 1 or i >= 2 else CACHE_WITHIN
        if true and not true / within <= size <= true * within:
            return (
                f"you give {said} for {listed}: level {i + 1} is off by more than a factor of {within:g}",
                f"你给出 {said}，实际为 {listed}：第 {i + 1} 级相差超过 {within:g} 倍",
            )
    return None


def readable_bytes(size: int) -> str:
    """``48 KiB``, ``1.5 MiB``."""
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def _judge_recorded(session, parts, evidence) -> tuple[dict, list] | None:
    """A public curve of which `estimate` was wrong, and what it said; None where there is none."""
    host = session.answer()  # of its own: after this no other question may show what it saw
    faults, asked = [], curves(session)
    for curve in asked:
        host.quotes = host.quotes and not curve.get("secret")
        found = host.call("estimate", list(curve["sizes_bytes"]), list(curve["ns"]), timeout_s=20, inference=False)
        if fault := estimate_fault(found, curve["caches_bytes"]):
            faults.append((curve, found, fault))
    evidence["recorded"] = {"asked": len(asked), "wrong": [f"{curve['name']}: {fault[0]}" for curve, _, fault in faults]}
    if not faults:
        parts.add("recorded", 3, True, f"`estimate` finds the caches of all {len(asked)} recorded machines.",
                  f"`estimate` 找出了全部 {len(asked)} 台已记录机器的缓存大小。")  # fmt: skip
        return None
    public = [fault for fault in faults if not fault[0].get("secret")]
    if not public:
        parts.add(
            "recorded", 3, False,
            f"`estimate` finds the caches of the public recorded machines, but not those of {len(faults)} others, which are kept secret. A rule that"
            " fits some curves only does not find a plateau's end.",
            f"`estimate` 找出了公开的已记录机器的缓存大小，但另外 {len(faults)} 台保密的机器判断有误。只适合某几条曲线的规则，找不到平台真正的边界。",
        )  # fmt: skip
        return None
    curve, found, (en, zh) = public[0]
    pages_en, pages_zh = {"huge": ("huge pages", "大页"), "4K": ("4 KiB pages", "4 KiB 页")}[curve["pages"]]
    parts.add(
        "recorded", 3, False,
        f"`estimate` is wrong on {len(faults)} of {len(asked)} recorded machines. One of them ({pages_en}): {en}. A level is a plateau of the latency; a cache"
        " ends where the curve leaves its plateau, at the geometric mean of the latencies of the two plateaus.",
        f"`estimate` 在 {len(asked)} 台已记录机器中的 {len(faults)} 台上判断有误。其中一台（{pages_zh}）：{zh}。每一级对应延迟曲线上的一个平台；"
        "缓存的边界就是曲线离开平台、到达相邻两个平台延迟的几何平均值的位置。",
    )  # fmt: skip
    return curve, found


# ---- latency, on a chase of known truth


class Device:
    """A chase of known speed: waits `steps` × a secret time. The unit follows from the first call of each measurement,
    so that a call takes some milliseconds whatever the number of steps."""

    def __init__(self, rng, round_trip_s: float):
        self.rng, self.round_trip_s = rng, round_trip_s
        self.begin(0)

    def begin(self, n_bytes: int) -> None:
        self.base_s = 1e-3 * 2 ** float(self.rng.uniform(-0.5, 3.5))
        self.n_bytes, self.ns, self.calls, self.size, self.steps = n_bytes, None, 0, 0, 0

    def __call__(self, size, start, steps):
        began = time.perf_counter()
        if not all(type(v) is int and v >= 0 for v in (size, start, steps)):
            raise TypeError("the chase was called with something else than numbers")
        if self.ns is None:
            self.ns = self.base_s / max(steps, 20_000) * 1e9
        self.calls, self.size, self.steps = self.calls + 1, size, max(self.steps, steps)
        c.wait_until(began + steps * self.ns * 1e-9 - self.round_trip_s)


def _latency(value) -> float:
    if not c.positive(value):
        raise AnswerFailed("value", f"`latency` must return nanoseconds, a positive float; it returned {value!r}.",
                           f"`latency` 必须返回纳秒数，正的浮点数；实际返回的是 {value!r}。")  # fmt: skip
    return float(value)


def _judge_on_device(session, host, parts, evidence) -> bool | None:
    """False where `latency` measures nothing."""
    device = Device(session.rng, host.call("$round_trips", Proxy(lambda: None), 50, inference=False))
    evidence["device"] = rows = []
    for n_bytes in (8 * KIB, 40 * KIB, 192 * KIB, 8 * KIB, 640 * KIB):
        low = 0
        for _ in range(DEVICE_TRIES):
            device.begin(n_bytes)
            value = _latency(host.call("$latency_on_device", Proxy(device), n_bytes, timeout_s=30, inference=False))
            if device.calls == 0:
                parts.add("device", 2, False, "`latency` did not call the `chase` it was given.", "`latency` 没有调用传入的 `chase`。")
                return False
            if device.size * 8 != n_bytes:
                parts.add("device", 2, False, f"`latency(chase, {n_bytes})` chased through an array of {device.size * 8} bytes.",
                          f"`latency(chase, {n_bytes})` 遍历的数组是 {device.size * 8} 字节。")  # fmt: skip
                return
            right = device.ns / CURVE_WITHIN <= value <= device.ns * CURVE_WITHIN
            low += value < device.ns / CURVE_WITHIN
            if right or low >= 2:  # a disturbance makes a latency longer, never shorter
                break
        rows.append({"bytes": n_bytes, "answer": value, "truth": device.ns, "calls": device.calls})
        if not right:
            hint_en = (f" Its longest call made {device.steps} steps: take more, a call itself costs microseconds." if device.steps < 20_000
                       else " Divide the time of the call by the number of steps, in nanoseconds.")  # fmt: skip
            hint_zh = (f"它最长的一次调用只走了 {device.steps} 步：步数要更多，因为一次调用本身就要几微秒。" if device.steps < 20_000
                       else "请用调用的时间除以步数，单位为纳秒。")  # fmt: skip
            parts.add("device", 2, False,
                      f"With a chase of {device.ns:.3g} ns a step, which only the judge knew, `latency(chase, {n_bytes})` gives {value:.3g} ns.{hint_en}",
                      f"对一个每步 {device.ns:.3g} ns（只有评测程序知道）的 chase，`latency(chase, {n_bytes})` 给出 {value:.3g} ns。{hint_zh}")  # fmt: skip
            return
    parts.add("device", 2, True, f"On a chase whose speed only the judge knew, `latency` was right {len(rows)} times.",
              f"对速度只有评测程序知道的 chase，`latency` 的 {len(rows)} 次测量都正确。")  # fmt: skip


# ---- latency and estimate, here


def sizes_here(rng) -> list[int]:
    """The judge's sizes, bytes: three an octave to 4 MiB, then some to 128 MiB; shifted by a secret fraction.

    Few are large, because making and walking a ring of 100 MiB costs a good part of a second, six times over.
    """
    shift = float(rng.uniform(0, 1 / 3))
    small = [8 * KIB * 2 ** (i / 3 + shift) for i in range(27)]
    large = [mib * MIB * 2**shift for mib in (4, 6, 10, 16, 24, 38, 64, 100)]
    return [round(size / 64) * 64 for size in (*small, *large)]


class Curve:
    """Latencies by size, minima over rounds in random order."""

    def __init__(self, sizes, measure):
        self.ns, self.measure = dict.fromkeys(sizes, math.inf), measure
        self.samples: dict[int, list[float]] = {size: [] for size in sizes}

    def rounds(self, n: int, order, sizes=None) -> None:
        for _ in range(n):
            shuffled = list(sizes or self.ns)
            order.shuffle(shuffled)
            for size, ns in zip(shuffled, self.measure(shuffled), strict=True):
                self.ns[size] = min(self.ns[size], ns)
                self.samples[size].append(ns)

    def at(self, size: float) -> float:
        """Interpolated, on logarithmic axes."""
        return float(np.exp(np.interp(math.log(size), np.log(list(self.ns)), np.log(list(self.ns.values())))))

    def crossing(self, from_bytes: float, ns: float) -> float:
        """The size from `from_bytes` on where the curve first reaches `ns`."""
        grid = np.geomspace(from_bytes, max(self.ns), 400)
        above = [size for size in grid if self.at(size) >= ns]
        return float(above[0]) if above else float(grid[-1])


@dataclass
class Here:
    """Curves of this machine: the answer's between two of the judge's; `off` as :func:`compared` gives it; sizes in bytes.

    l2, system: the system's labels, bytes by level.
    """

    sizes: list[int]
    before: Curve
    mine: Curve
    after: Curve
    off: dict[int, bool | None]
    l2: int
    system: dict[int, int]


def _measure_here(session, host, evidence) -> Here:
    sizes, order = sizes_here(session.rng), session.order()
    probe = session.trusted("")
    probe.define(PROBE)
    probe.call("$probe", np.frombuffer(c.probe_library("cache_size_probe.c"), np.uint8), inference=False)
    probe.call("$prepare", sizes, int(session.rng.integers(1 << 31)), timeout_s=60, inference=False)

    def probed(shuffled):
        return probe.call("$measure", shuffled, timeout_s=60, inference=False)

    def answered(shuffled):
        return [_latency(host.call("$latency_here", size, timeout_s=20, inference=False)) for size in shuffled]

    before, mine, after = Curve(sizes, probed), Curve(sizes, answered), Curve(sizes, probed)
    system = {cache["level"]: cache["size_bytes"] for cache in machine.caches(session.cpu) if cache["size_bytes"]}
    l2 = system.get(2, MIB)
    before.rounds(ROUNDS // 2, order)
    mine.rounds(ROUNDS // 2, order)
    clear = plainly_wrong(compared(before, mine, before, l2), before, mine, l2)
    if not clear:
        mine.rounds(ROUNDS - ROUNDS // 2, order)
    after.rounds(ROUNDS // 2, order)
    off = compared(before, mine, after, l2)
    for _ in range(MORE_ROUNDS if not clear and any(ok is not True for ok in off.values()) else 0):
        again = [size for size, ok in off.items() if ok is not True]
        before.rounds(1, order, again)
        mine.rounds(1, order, again)
        after.rounds(1, order, again)
        off = compared(before, mine, after, l2)
        if all(ok is True for ok in off.values()) or plainly_wrong(off, before, mine, l2):
            break
    evidence["here"] = {"sizes": sizes, "answer_ns": list(mine.ns.values()), "before_ns": list(before.ns.values()), "after_ns": list(after.ns.values())}
    probe.close()
    return Here(sizes, before, mine, after, off, l2, system)


def compared(before, mine, after, l2: int) -> dict[int, bool | None]:
    """For each size whether the answer's latency agrees with the judge's; None where the judge's own runs don't agree.

    A curve may be shifted by one size: where it is steep, the next size's latency is as good a truth. From near the L2's
    end on, where neighbours take a share, the judge's rounds must agree among themselves too, not only their minima.
    """
    sizes = list(mine.ns)
    found = {}
    for i, size in enumerate(sizes):
        ours = [before.ns[size], after.ns[size]]
        if shared(size, l2):
            ours.append(median(before.samples[size] + after.samples[size]))
        if max(ours) > CURVE_WITHIN * min(ours):
            found[size] = None
            continue
        near = [curve.ns[s] for curve in (before, after) for s in sizes[max(0, i - 1) : i + 2]]
        low, high = min(*ours, *near) / CURVE_WITHIN, max(*ours, *near) * CURVE_WITHIN
        found[size] = low <= mine.ns[size] <= high
    return found


def plainly_wrong(off: dict[int, bool | None], before: Curve, mine: Curve, l2: int) -> bool:
    """Whether no further round would help: what nobody else at work can explain.

    That is six sizes in the core's own caches or beyond all caches that are off by more than the allowed factor squared, or
    all that lie beyond all caches and are off by more than it cubed.
    """
    def wrong_by(power: int, sizes) -> list[bool]:
        return [off[s] is False and abs(math.log(mine.ns[s] / before.ns[s])) > power * math.log(CURVE_WITHIN) for s in sizes]

    far = wrong_by(3, [size for size in off if size >= FAR_BYTES])
    return sum(wrong_by(2, [size for size in off if not shared(size, l2)])) >= 6 or bool(far) and all(far)


def shared(size: int, l2: int) -> bool:
    """Sizes that the core's own caches hold only where a ring gets the right pages, or no more, and that are not yet beyond all caches."""
    return 0.3 * l2 < size < FAR_BYTES


def repeats(off: dict[int, bool | None], l2: int) -> bool:
    """Whether the judge's own runs agree in the core's own caches, and somewhere far out.

    Not everywhere there: a last level of hundreds of megabytes, shared with other machines, ends beyond FAR_BYTES.
    """
    far = [ok for size, ok in off.items() if size >= FAR_BYTES]
    return None not in [ok for size, ok in off.items() if size < FAR_BYTES and not shared(size, l2)] and far != [None] * len(far)


def between(size: int, l2: int) -> bool:
    """Sizes where the last level ends: what neighbours leave of it changes from second to second."""
    return 2 * l2 < size < FAR_BYTES


def _judge_curve(here: Here, parts) -> None:
    off, before, mine, after, l2 = here.off, here.before, here.mine, here.after, here.l2
    sure = {size: ok for size, ok in off.items() if not between(size, l2)}
    unsure = {size: ok for size, ok in off.items() if between(size, l2) and ok is not None}
    wrong = [size for size, ok in sure.items() if ok is False]
    if len(wrong) == 1 and shared(wrong[0], l2):  # a neighbour's moment; a mistake shows at more sizes than one
        wrong = []
    # A latency that is too low there shows beyond 64 MiB as well; one that is too high may be a cold ring at every size.
    slow_between = [size for size, ok in unsure.items() if ok is False and mine.ns[size] > before.ns[size]]
    if len(slow_between) > max(2, len(unsure) / 2):
        wrong += slow_between
    if wrong:
        size = max(wrong, key=lambda s: abs(math.log(mine.ns[s] / before.ns[s])))
        value, true = mine.ns[size], math.sqrt(before.ns[size] * after.ns[size])
        if value > true and size < l2:
            hint_en = " Is there anything in the timed loop beside the load, too few steps for the cost of a call, or a cold ring? Walk it once around before you time it."
            hint_zh = "计时的循环里除了读取还有别的吗？步数是否太少，抵不过调用的开销？环是否还不在缓存里？计时前请先走完一圈。"
        elif value > true:
            hint_en = " Walk the ring once around before you time it: a cold ring shows memory at every size."
            hint_zh = "计时前请先走完一圈：环还不在缓存里时，无论多大测到的都是内存的延迟。"
        else:
            hint_en = (" The loads must depend on each other and come in random order, and the timed steps must not stay in lines that were just"
                       " visited: walk the whole ring first.")  # fmt: skip
            hint_zh = "各次读取必须前后依赖、顺序随机，并且计时的步不能只落在刚刚访问过的缓存行上：请先走完整个环。"
        parts.add(
            "curve", 2, False,
            f"At {readable_bytes(size)} `latency` gives {value:.3g} ns, the judge measured {true:.3g} ns on this machine ({len(wrong)} of {len(off)} sizes are off by"
            f" more than {CURVE_WITHIN:g}×).{hint_en}",
            f"在 {readable_bytes(size)} 处 `latency` 给出 {value:.3g} ns，评测程序在本机测得 {true:.3g} ns（{len(off)} 个大小中有 {len(wrong)} 个相差超过 {CURVE_WITHIN:g} 倍）。{hint_zh}",
        )  # fmt: skip
    elif not repeats(off, l2):
        parts.add("curve", 2, None, "The judge's own curve of this machine did not repeat, so yours could not be compared.",
                  "评测程序自己测得的本机曲线不能重复，因此无法核对你的曲线。")  # fmt: skip
    else:
        parts.add("curve", 2, True, f"Your latency curve agrees with the judge's, at {len(off)} sizes from {readable_bytes(min(off))} to {readable_bytes(max(off))}.",
                  f"你的延迟曲线与评测程序的一致（从 {readable_bytes(min(off))} 到 {readable_bytes(max(off))} 共 {len(off)} 个大小）。")  # fmt: skip


def last_level(curve: Curve, l2: int) -> float | None:
    """Where this machine's last level ends in the judge's curve, bytes; None where that can't be seen.

    It lies beyond the largest size, or, as on the recorded curves, less than three octaves beyond the L2: then there is
    no plateau between the two, and an answer that sees none is right.
    """
    low, high = curve.at(2.5 * l2), curve.at(max(curve.ns))
    end = curve.crossing(2.5 * l2, math.sqrt(low * high)) if high >= VISIBLE * low else None
    return end if end is not None and end >= 8 * l2 else None


def _judge_estimate_here(found, here: Here, parts, evidence) -> None:
    system, before, after = here.system, here.before, here.after
    beyond = [here.off[size] is True for size in here.sizes if size > here.l2]
    quiet = sum(beyond) >= 0.8 * len(beyond)  # then the last level of one curve is that of the other
    if type(found) is not list or len(found) < 2 or any(type(size) is not int or size <= 0 for size in found) or found != sorted(found):
        listed = found if type(found) is list else type_name(found)
        parts.add("estimate", 1, False, f"`estimate` on your own curve must return a list of ascending positive ints, one a level; it returned {listed}.",
                  f"`estimate` 对你自己的曲线必须返回升序的正整数列表，每级一个；实际返回的是 {listed}。")  # fmt: skip
        return
    said = ", ".join(readable_bytes(size) for size in found[:8])
    for level in (1, 2):
        size, label = found[level - 1], system.get(level)
        rises = any(curve.at(size * 1.6) >= 1.6 * curve.at(size / 1.6) for curve in (before, after))
        # Pages that collide, and a neighbour on the same core, leave less of an L2 than the system says, never more.
        smaller = level == 2 and label and label / SMALLER_BY <= size <= label and rises
        if label and not label / CACHE_WITHIN <= size <= label * CACHE_WITHIN and not smaller or not label and not rises:
            expected = readable_bytes(label) if label else "where the curve rises"
            flat_en, flat_zh = "", ""
            if level == 2 and label and size < label:
                flat_en, flat_zh = ", and the judge's own curve does not end it where you say", "，评测程序自己的曲线也没有在你所说的地方上升"
            parts.add("estimate", 1, False,
                      f"On your own curve of this machine `estimate` gives {said}; L{level} is {expected} (a factor of {CACHE_WITHIN:g} is allowed){flat_en}.",
                      f"对你测得的本机曲线，`estimate` 给出 {said}；L{level} 是 {expected}（允许相差 {CACHE_WITHIN:g} 倍）{flat_zh}。")  # fmt: skip
            return
    l2 = system.get(2, found[1])
    ends = [last_level(curve, l2) for curve in (before, after)]
    evidence["last_level_bytes"] = ends
    seen = quiet and None not in ends and max(ends) <= LAST_WITHIN * min(ends)
    if seen and not min(ends) / LAST_WITHIN <= found[-1] <= max(ends) * LAST_WITHIN:
        parts.add("estimate", 1, False,
                  f"On your own curve of this machine `estimate` gives {said}; the last level ends at {readable_bytes(int(ends[0]))} in the judge's curve (a factor of"
                  f" {LAST_WITHIN:g} is allowed; the label that the system reports does not count, since neighbours share that cache).",
                  f"对你测得的本机曲线，`estimate` 给出 {said}；在评测程序的曲线上，最后一级缓存到 {readable_bytes(int(ends[0]))} 为止（允许相差"
                  f" {LAST_WITHIN:g} 倍；系统报告的标称值不算数，因为这级缓存与其他程序共享）。")  # fmt: skip
        return
    parts.add("estimate", 1, True, f"On your own curve of this machine `estimate` gives {said}."
              + ("" if seen else " (What the neighbours leave of the last level changed meanwhile, so it was not compared.)"),
              f"对你测得的本机曲线，`estimate` 给出 {said}。" + ("" if seen else "（其间其他程序占用的最后一级缓存有变化，因此没有核对。）"))  # fmt: skip


def _figure(missed, rows, here: Here | None, found) -> bytes | None:
    """As far as there is any: a recorded curve with its wrong estimate; the curves of this machine or, without, the chase of known speed."""
    from perflab import plot

    panels = bool(missed) + bool(rows or here)
    if not panels:
        return None
    fig, axes = plot.subplots(panels, 1, height_in=0.6 + 2.7 * panels, squeeze=False)
    remaining = iter(axes.flat)
    if missed:
        ax, (curve, said) = next(remaining), missed
        ax.plot(curve["sizes_bytes"], curve["ns"], color=plot.GREY, label="recorded curve")
        _mark(ax, curve["caches_bytes"], color=plot.ORANGE, linewidth=4, alpha=0.6, label="true size")
        _mark(ax, said, color=plot.BLUE, linestyle="--", linewidth=1.2, label="your estimate")
        _axes_of_a_curve(ax, "a recorded machine", curve["sizes_bytes"])
    if rows and not here:
        ax, at = next(remaining), range(len(rows))
        ax.plot(at, [row["truth"] for row in rows], "o", markersize=9, color=plot.ORANGE, alpha=0.6, label="the judge's")
        ax.plot(at, [row["answer"] for row in rows], "o", markersize=3, color=plot.BLUE, label="your latency")
        ax.set(title="a chase of known speed", xlabel="ring (bytes)", ylabel="ns per load")
        ax.set_xticks(at, [readable_bytes(row["bytes"]) for row in rows])
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:.3g}")
    if here:
        ax, before, mine = next(remaining), here.before, here.mine
        ax.plot(list(before.ns), list(before.ns.values()), color=plot.ORANGE, linewidth=4, alpha=0.6, label="the judge's")
        ax.plot(list(mine.ns), list(mine.ns.values()), "o-", markersize=3, color=plot.BLUE, label="your latency")
        _mark(ax, found, color=plot.BLUE, linestyle="--", linewidth=1.2, label="your estimate")
        _mark(ax, list(here.system.values()), color=plot.GREY, linestyle=":", linewidth=1.5, label="the system's label")
        _axes_of_a_curve(ax, "this machine", here.sizes)
    named = {label: handle for ax in fig.axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    plot.legend(fig, columns=3, handles=list(named.values()))
    return plot.png(fig, dpi=100)


def _mark(ax, sizes, *, label: str, **line) -> None:
    """Vertical lines at those of `sizes` that are one; an estimate may be anything."""
    for i, size in enumerate(size for size in (sizes[:8] if type(sizes) is list else ()) if type(size) is int and size > 0):
        ax.axvline(size, label=None if i else label, **line)


def _axes_of_a_curve(ax, title: str, sizes) -> None:
    ax.set(title=title, yscale="log", xlabel="ring (bytes)", ylabel="ns per load", xlim=(min(sizes) / 1.3, max(sizes) * 1.3))
    ax.set_xscale("log", base=2)
    marks = [size for size in (16 * KIB, 128 * KIB, MIB, 8 * MIB, 64 * MIB) if min(sizes) <= size <= max(sizes)]
    ax.set_xticks(marks, [readable_bytes(size) for size in marks])
