"""12.4: what does the order of accesses cost? The answer is a C loop over an array by stride, and an experiment.

The C must give a hash of every element in a fixed order, and walking in that order must show in its time. The
experiment is put to a walk of the judge's that really waits a secret time for every stride, then to the answer's own
C on this machine, beside the judge's timing of the same C.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import time
from types import SimpleNamespace

import numpy as np

from perflab import native
from perflab.exercises import _c_answers as c
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Proxy, type_name

SLUG = "stride"
TITLE = ("Sequential and strided access", "顺序访问与按步幅访问")
ENTRY_POINTS = ("C_SOURCE", "experiment")
MAX_POINTS = 10
PROTOTYPES = {"walk": "__UINT64_TYPE__ walk(const __UINT64_TYPE__ *, __SIZE_TYPE__, __SIZE_TYPE__)"}

STRIDES_BYTES = tuple(8 << i for i in range(10))  # 8, 16, … 4096
ARRAY_BYTES = 64 << 20
N = ARRAY_BYTES // 8
WITHIN = 1.5
SLOWER_FROM_BYTES, SLOWER = 64, 1.25
SIZE_MAX = 2**64 - 1


def bind(library: ctypes.CDLL) -> SimpleNamespace:
    """The answer's function for NumPy arrays: ``walk(a, n, stride) -> int``.

    a: a C-contiguous uint64 array of at least n elements; stride in elements, ≥ 1. Raises TypeError, ValueError.
    """
    library.walk.restype, library.walk.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def walk(a, n, stride):
        if not isinstance(a, np.ndarray) or a.dtype != np.uint64 or not a.flags.c_contiguous:
            raise TypeError("a must be a C-contiguous NumPy array of dtype uint64")
        if not 0 <= n <= a.size or not 1 <= stride <= SIZE_MAX:
            raise ValueError(f"n = {n} and stride = {stride} (elements) do not fit an array of {a.size} elements")
        return library.walk(a.ctypes.data, n, stride)

    return SimpleNamespace(walk=walk)


HOST = '''
def hashed(a, stride):
    return functions.walk(a, a.size, stride)

def long_array(seed):
    global array
    array = np.random.default_rng(seed).integers(0, 2**64, exercise.N, dtype=np.uint64)

def long_walk(stride):
    return functions.walk(array, array.size, stride)

def small_pages():
    import contextlib, mmap
    global array_of_small_pages
    memory = mmap.mmap(-1, array.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages has no other pages than small ones
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    array_of_small_pages = np.frombuffer(memory, np.uint64)
    array_of_small_pages[:] = array

def change(at, more):
    for a in (array, globals().get("array_of_small_pages")):
        if a is not None:
            a[at] = (int(a[at]) + more) % 2**64

def long_walk_in_small_pages(stride):
    return functions.walk(array_of_small_pages, array.size, stride)

def probe(shared):
    global library
    import ctypes
    library = native.load(shared.tobytes())
    library.probe_pass.restype, library.probe_pass.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

def probe_ns(stride):
    import time
    start = time.perf_counter()
    library.probe_pass(array.ctypes.data, array.size, stride)
    return (time.perf_counter() - start) / array.size * 1e9

def run_experiment():
    return answer["experiment"](functions.walk)

def run_on_device(device):
    def walk(a, n, stride):
        if type(a) is not np.ndarray or a.dtype != np.uint64 or not a.flags.c_contiguous:
            raise TypeError("a must be a C-contiguous NumPy array of dtype uint64")
        if not 0 <= n <= a.size or stride < 1:
            raise ValueError(f"n = {n} and stride = {stride} (elements) do not fit an array of {a.size} elements")
        device(int(n), int(stride), bool(n and a[:n:4096].any()))
        return (n * 31 + stride) % 2**64
    return answer["experiment"](walk)
'''


# ---------------------------------------------------------------- judging


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    host = session.answer()
    built = c.accept(session, host, parts, sys.modules[__name__], MAX_POINTS)
    if built is None:
        return parts.verdict(evidence=evidence)
    evidence["compiler"] = built.compiler
    subject = session.trusted("")
    c.start(subject, HOST, sys.modules[__name__], built.shared)
    try:
        _judge_exact(session, built, subject, parts)
    except (native.CError, AnswerFailed) as error:
        parts.add("exact", 3, False, error.en, error.zh)
    if parts.items[-1].ok is False:
        parts.add("experiment", 7, False, "The experiment is judged once the C is right.", "C 代码正确之后才会评判实验。")
        return parts.verdict(evidence=evidence)

    c.start(host, HOST, sys.modules[__name__], built.shared)
    written = True
    with parts.attempt("device", 3):
        written = _judge_on_device(session, host, parts, evidence)
    on_device = parts.items[-1].ok
    if host.closed:
        host = session.answer()
        c.start(host, HOST, sys.modules[__name__], built.shared)
    with parts.attempt("machine", 4):
        _judge_here(session, host, subject, parts, evidence, written)
    here = evidence.get("here")
    return parts.verdict(evidence=evidence, figure=_figure(None if here and on_device else evidence.get("device"), here))


# ---- the C: every element once, in order


def hash_of(a: np.ndarray, stride: int) -> int:
    """h·31 + a[i] over 0, s, 2s, …, 1, 1+s, …, modulo 2⁶⁴. a: uint64, 1-D."""
    order = [a[first::stride] for first in range(min(stride, a.size))] if stride < a.size else [a]
    visited = np.concatenate(order) if order else a
    return int((visited * _powers(a.size)).sum(dtype=np.uint64)) if a.size else 0


def _powers(n: int) -> np.ndarray:
    """31ⁿ⁻¹ … 31, 1 modulo 2⁶⁴, by doubling."""
    powers = np.ones(max(n, 1), np.uint64)
    done = 1
    while done < n:
        step = min(done, n - done)
        powers[done : done + step] = powers[:step] * np.uint64(pow(31, done, 2**64))
        done += step
    return powers[:n][::-1]


def cases(rng) -> list[tuple[np.ndarray, int]]:
    """Arrays and strides: none, one element, strides that divide and that don't, as long as the array, longer, SIZE_MAX."""
    ordinary = [(0, 1), (1, 1), (10, 3), (10, 10), (10, 11), (10, 9), (64, 8), (1000, 512), (1000, 999)]
    drawn = [(int(rng.integers(1, 400)), int(rng.integers(1, 500))) for _ in range(30)]
    extreme = [(0, SIZE_MAX), (1, SIZE_MAX), (2, SIZE_MAX), (5, SIZE_MAX), (5, SIZE_MAX - 3), (7, 2**63), (9, 2**61), (9, 2**61 + 1)]
    return [(rng.integers(0, 2**64, n, dtype=np.uint64), stride) for n, stride in ordinary + drawn + extreme]


def _judge_exact(session, built, subject, parts) -> None:
    asked = cases(session.rng)
    truth = [hash_of(a, stride) for a, stride in asked]

    for (a, stride), true in zip(asked, truth, strict=True):
        try:
            value = subject.call("$hashed", a, stride, timeout_s=5)
        except AnswerFailed as error:
            if error.kind != "timeout":
                raise
            raise AnswerFailed(
                "timeout",
                f"`walk` did not return for n = {a.size}, stride = {stride}. `i + stride` wraps around for a large stride: compare"
                " before you add (`stride >= n - i`), and make no more rounds than there are elements.",
                f"n = {a.size}、stride = {stride} 时 `walk` 没有返回。步幅很大时 `i + stride` 会回绕：请在相加之前比较（`stride >= n - i`），"
                "并且轮数不要超过元素个数。",
            ) from None
        if value != true:
            parts.add("exact", 3, False, *_wrong(a, stride, value, true))
            return
    rows = [struct.pack("<Q", len(asked))] + [struct.pack("<2Q", a.size, stride) + a.tobytes() for a, stride in asked]
    written = c.sanitized(session, built, "stride_driver.c", b"".join(rows))
    if written is not None:
        for (a, stride), value, true in zip(asked, np.frombuffer(written, np.uint64).tolist(), truth, strict=True):
            if value != true:
                parts.add("exact", 3, False, *_wrong(a, stride, value, true))
                return
    note_en, note_zh = ("", "") if written is not None else c.NO_SANITIZERS
    parts.add("exact", 3, True, f"`walk` returns the hash of every element once and in order, in {len(asked)} cases up to stride SIZE_MAX.{note_en}",
              f"在 {len(asked)} 种情形下（步幅直到 SIZE_MAX），`walk` 都返回了按顺序、每个元素恰好一次的哈希值。{note_zh}")  # fmt: skip


def _wrong(a, stride, value, true) -> tuple[str, str]:
    """What a wrong hash says about the loop, where that can be told."""
    n = a.size
    whole_rounds = n - n % stride if stride <= n else 0
    once = a[::stride]
    hint_en, hint_zh = "", ""
    if value == hash_of(a, 1) and true != value:
        hint_en, hint_zh = " It read the array from front to back.", "它是从头到尾顺序读的。"
    elif value == int((once * _powers(once.size)).sum(dtype=np.uint64)):
        hint_en, hint_zh = " It stopped after the first round, 0, s, 2s, …: then come 1, 1+s, … up to s−1.", "它在第一轮 0, s, 2s, … 之后就停了：后面还有 1, 1+s, …，直到 s−1。"
    elif whole_rounds < n and n and (whole_rounds == 0 and value == 0 or whole_rounds and value == hash_of(a[:whole_rounds], stride)):
        hint_en, hint_zh = f" It left out the tail: {n} is no multiple of {stride}.", f"它漏掉了尾部：{n} 不是 {stride} 的倍数。"
    elif stride > 2**60:
        hint_en = " `i + stride` wraps around for a large stride: compare before you add."
        hint_zh = "步幅很大时 `i + stride` 会回绕：请在相加之前比较。"
    return (
        f"`walk(a, {n}, {stride})` returned {value:#x}, expected {true:#x}: h = h·31 + a[i] over 0, s, 2s, …, 1, 1+s, …, each element once.{hint_en}",
        f"`walk(a, {n}, {stride})` 返回 {value:#x}，应为 {true:#x}：按 0, s, 2s, …, 1, 1+s, … 的顺序对每个元素恰好一次计算 h = h·31 + a[i]。{hint_zh}",
    )


# ---- the experiment on a walk of known truth


class Device:
    """A walk of known speed: really waits a secret time per element for every stride. One of each stride's first three passes is disturbed.

    A pass visits all N elements; what else an experiment calls (to warm up, to time an empty call) is no pass.
    """

    def __init__(self, rng):
        drawn = rng.uniform(1.0, 3.5, len(STRIDES_BYTES))
        drawn[rng.integers(5, len(drawn))] = rng.uniform(4.0, 5.0)
        self.ns = {stride // 8: float(ns) for stride, ns in zip(STRIDES_BYTES, drawn, strict=True)}
        # each of the three positions at three strides or more: an answer that always reports one of them is never right by luck
        self.disturbed = dict(zip(self.ns, map(int, rng.permutation(np.arange(len(self.ns)) % 3)), strict=True))
        self.passes = dict.fromkeys(self.ns, 0)
        self.sizes, self.others, self.written = {stride: set() for stride in self.ns}, set(), False

    def __call__(self, n, stride, written):
        began = time.perf_counter()
        if type(n) is not int or type(stride) is not int:
            raise TypeError("the walk was called with something else than numbers")
        self.written |= written is True
        if stride not in self.ns:
            self.others.add(stride)
            return
        self.sizes[stride].add(n)
        whole = n == N
        ns = self.ns[stride] * (4.0 if whole and self.passes[stride] == self.disturbed[stride] else 1.0)
        self.passes[stride] += whole
        c.wait_until(began + min(n, N) * ns * 1e-9)

    def short(self) -> set[int]:
        """The array lengths walked by strides that were never walked over all N elements."""
        return set().union(*(sizes for sizes in self.sizes.values() if N not in sizes))


def _judge_on_device(session, host, parts, evidence) -> bool:
    """Returns whether the experiment's array was seen to hold anything."""
    for _ in range(c.ATTEMPTS):  # each time with other secret times
        device = Device(session.rng)
        figures = _checked(host.call("$run_on_device", Proxy(device), timeout_s=60, inference=False))
        truth = {stride * 8: ns for stride, ns in device.ns.items()}
        wrong = [(b, figures[b], truth[b]) for b in STRIDES_BYTES if not truth[b] / WITHIN <= figures[b] <= truth[b] * WITHIN]
        if not wrong or device.short():
            break
    evidence["device"] = {"answer": figures, "truth": truth, "passes": {s * 8: p for s, p in device.passes.items()}}
    short = device.short()
    if not wrong and not short:
        parts.add("device", 3, True, "On a walk whose speed only the judge knew, your experiment found all ten figures.",
                  "对一个速度只有评测程序知道的 walk，你的实验测出了全部十个数值。")  # fmt: skip
        return device.written
    if short and not (device.others and wrong):
        got = min(short)
        parts.add("device", 3, False, f"Your experiment walks over {got:,} elements; an array of 64 MiB has {N:,} uint64, and all are visited.",
                  f"你的实验遍历了 {got:,} 个元素；64 MiB 的数组有 {N:,} 个 uint64，应全部访问。")  # fmt: skip
        return device.written
    stride, value, true = max(wrong, key=lambda w: abs(math.log(w[1] / w[2])))
    hint_en, hint_zh = _use_of(device, wrong)
    parts.add(
        "device", 3, False,
        f"On a walk whose speed only the judge knew, your experiment gives {value:.3g} ns for stride {stride} B; the truth is {true:.3g} ns. {hint_en}",
        f"对一个速度只有评测程序知道的 walk，你的实验在步幅 {stride} B 处给出 {value:.3g} ns；真实值是 {true:.3g} ns。{hint_zh}",
    )  # fmt: skip
    return device.written


def _use_of(device: Device, wrong) -> tuple[str, str]:
    if not any(device.passes.values()) and not device.others:
        return ("Your experiment never called `walk`: it has to measure the function it is given.", "你的实验从未调用 `walk`：它必须测量传入的函数。")
    if device.others:
        other = max(device.others)
        return (
            f"It called `walk` with a stride of {other}: the keys are in bytes, but `walk` counts elements of 8 bytes.",
            f"它用步幅 {other} 调用了 `walk`：字典的键以字节为单位，而 `walk` 的步幅以 8 字节的元素计。",
        )
    fewest = min(device.passes.values())
    if fewest < 3:
        return (
            f"It made {fewest} pass(es) at a stride: one that is disturbed says nothing, take the minimum of at least three.",
            f"它在某个步幅上只遍历了 {fewest} 次：一次受干扰的测量说明不了问题，请取至少三次中的最小值。",
        )
    if all(1 < value / true < 3 for _, value, true in wrong):
        return (
            "Take the minimum of the passes: a disturbance only ever adds time. And time nothing but the call.",
            "请取各次遍历的最小值：干扰只会增加时间。并且只对调用本身计时。",
        )
    return ("Divide the time of a pass by n, in nanoseconds.", "请用一次遍历的时间除以 n，单位为纳秒。")


def _checked(value) -> dict:
    """The experiment's dict. Raises AnswerFailed for another shape or type."""
    if type(value) is not dict or not set(STRIDES_BYTES) <= set(value):
        got = list(value)[:12] if type(value) is dict else type_name(value)
        raise AnswerFailed(
            "value",
            f"`experiment` must return a dict with the ten keys {', '.join(map(str, STRIDES_BYTES))} (strides in bytes); it returned {got}.",
            f"`experiment` 必须返回一个字典，键为 {', '.join(map(str, STRIDES_BYTES))} 这十个步幅（字节）；实际返回的是 {got}。",
        )
    for stride in STRIDES_BYTES:
        if not c.positive(value[stride]):
            raise AnswerFailed("value", f"`experiment` gives {value[stride]!r} for stride {stride}; expected nanoseconds, a positive float.",
                               f"`experiment` 在步幅 {stride} 处给出 {value[stride]!r}；应为纳秒数，正的浮点数。")  # fmt: skip
    return {stride: float(value[stride]) for stride in STRIDES_BYTES}


# ---- the experiment here, on the answer's own C


class Clock:
    """Times the answer's walk in the subject, by the judge's clock: ns per element for each stride."""

    def __init__(self, session, subject):
        self.subject, self.order = subject, session.order()
        seed = int(session.rng.integers(1 << 62))
        subject.call("$long_array", seed, inference=False)
        array = np.random.default_rng(seed).integers(0, 2**64, N, dtype=np.uint64)
        powers = _powers(N).copy()
        self.truth = {}
        for stride in STRIDES_BYTES:
            visited = array.reshape(-1, stride // 8).T.reshape(-1)
            self.truth[stride] = int((visited * powers).sum(dtype=np.uint64))
        self.overhead_s = c.overhead_s(subject)
        self.has_small_pages = False

    def ns(self) -> dict[int, float]:
        """The array as NumPy allocates it: in huge pages where the system grants them on request."""
        return self._minima("$long_walk", STRIDES_BYTES)

    def ns_in_small_pages(self, strides) -> dict[int, float]:
        """The same numbers in pages of the usual size, as an array has them that is not NumPy's own memory."""
        if not self.has_small_pages:
            self.subject.call("$small_pages", inference=False)
            self.has_small_pages = True
        return self._minima("$long_walk_in_small_pages", strides)

    def _change(self, at: int, more: int) -> None:
        """Adds to one element, and what that adds to each walk's hash to what is expected."""
        self.subject.call("$change", at, more, inference=False)
        for stride in STRIDES_BYTES:
            s = stride // 8
            place = at % s * (N // s) + at // s  # in the order of the walk
            self.truth[stride] = (self.truth[stride] + more * pow(31, N - 1 - place, 2**64)) % 2**64

    def _minima(self, function: str, strides, rounds: int = 3) -> dict[int, float]:
        """Minima over interleaved rounds. Raises AnswerFailed for a wrong hash."""
        found = dict.fromkeys(strides, math.inf)
        for _ in range(rounds):
            keys = list(found)
            self.order.shuffle(keys)
            for stride in keys:
                # never the same array twice: a `walk` that remembers an answer must not seem fast
                self._change(self.order.randrange(N), self.order.randrange(1, 1 << 60))
                value, seconds = self.subject.timed_call(function, stride // 8, timeout_s=30, inference=False)
                if value != self.truth[stride]:
                    raise AnswerFailed("value", f"`walk` over 64 MiB with stride {stride // 8} returned a wrong hash.",
                                       f"`walk` 在 64 MiB、步幅 {stride // 8} 时返回了错误的哈希值。")  # fmt: skip
                found[stride] = min(found[stride], (seconds - self.overhead_s) / N * 1e9)
        return found


def _judge_here(session, host, subject, parts, evidence, written) -> None:
    clock = Clock(session, subject)
    agreement = c.Agreement()
    before = clock.ns()
    for _ in range(c.ATTEMPTS):
        value, spent_s = host.timed_call("$run_experiment", timeout_s=60, inference=False)
        figures = _checked(value)
        claimed_s = 3 * sum(figures.values()) * N * 1e-9
        if spent_s < 0.9 * claimed_s:
            evidence["here"] = {"answer": figures, "judge": before}
            raise AnswerFailed(
                "value",
                f"`experiment` reports figures for which three passes take {claimed_s:.3g} s together, but it returned after {spent_s:.3g} s:"
                " it has to make the passes and time them.",
                f"按 `experiment` 报告的数值，各步幅三次遍历共需 {claimed_s:.3g} s，而它在 {spent_s:.3g} s 后就返回了：它必须真正遍历并计时。",
            )
        after = clock.ns()
        slow = [s for s in STRIDES_BYTES if figures[s] > WITHIN * max(before[s], after[s])]
        small = clock.ns_in_small_pages(slow) if slow else {}
        for stride in STRIDES_BYTES:
            if figures[stride] <= WITHIN * small.get(stride, 0.0):
                # In small pages each one that is visited may have to be looked up: right is what either kind gives, or a mixture.
                true = min(small[stride], figures[stride])
                agreement.note(stride, figures[stride], true, true, WITHIN)
            else:
                agreement.note(stride, figures[stride], before[stride], after[stride], WITHIN)
        truth = {stride: math.sqrt(before[stride] * after[stride]) for stride in STRIDES_BYTES}
        before = after
        wrong = agreement.wrong(STRIDES_BYTES)
        if agreement.settled(STRIDES_BYTES) and not lone(wrong):
            break
    evidence["here"] = {"answer": figures, "judge": truth, "small_pages": small}
    if lone(wrong):
        stride, value, true = wrong[0]
        parts.add("agrees", 3, None, f"One of your ten figures is a little off: at stride {stride} B yours is {value:.3g} ns and the judge's {true:.3g}, which"
                  " may be a neighbour's doing.",
                  f"你的十个数值中有一个略有偏差：步幅 {stride} B 处你的是 {value:.3g} ns，评测程序的是 {true:.3g} ns，这可能是邻居造成的。")  # fmt: skip
    elif wrong:
        stride, value, true = max(wrong, key=lambda w: abs(math.log(w[1] / w[2])))
        hint_en, hint_zh = "", ""
        if value < true and not written:
            hint_en = " Was the array ever written? Pages of `np.zeros` or `np.empty` that nobody wrote are all the same one page of zeros, and that stays in the cache."
            hint_zh = "数组写过吗？`np.zeros` 或 `np.empty` 得到的、没有写过的页都映射到同一个全零页，它会一直留在缓存里。"
        elif value > true:
            hint_en, hint_zh = " Time nothing but the call of `walk`, and take the minimum.", "只对 `walk` 的调用计时，并取最小值。"
        parts.add(
            "agrees", 3, False,
            f"Stride {stride} B: your experiment gives {value:.3g} ns per access, the judge measured {true:.3g} with the same C, just before and after"
            f" (a factor of {WITHIN:g} is allowed; {len(wrong)} of {len(STRIDES_BYTES)} figures are off).{hint_en}",
            f"步幅 {stride} B：你的实验给出每次访问 {value:.3g} ns，评测程序前后用同一份 C 代码测得 {true:.3g} ns（允许相差 {WITHIN:g} 倍；"
            f"{len(STRIDES_BYTES)} 个数值中有 {len(wrong)} 个不符）。{hint_zh}",
        )  # fmt: skip
    elif agreement.all_ok(STRIDES_BYTES) is None:
        parts.add("agrees", 3, None, "The judge's own timing of your C did not repeat, so yours could not be compared.",
                  "评测程序自己对你的 C 代码的计时不能重复，因此无法核对你的结果。")  # fmt: skip
    else:
        parts.add("agrees", 3, True, "Your ten figures agree with the judge's timing of the same C on this machine.",
                  "你的十个数值与评测程序在本机对同一份 C 代码的计时一致。")  # fmt: skip
    _judge_slower(session, figures, truth, parts, evidence)


def lone(wrong: list) -> bool:
    """One figure off by less than the factor squared: how much of 64 MiB the last level holds, neighbours decide anew each second."""
    return len(wrong) == 1 and abs(math.log(wrong[0][1] / wrong[0][2])) < 2 * math.log(WITHIN)


def _judge_slower(session, figures, truth, parts, evidence) -> None:
    """From 64 bytes on every element lies on a line of its own, and that must show, unless it doesn't on this machine.

    What the last attempt's figures don't show is held against them only where those that matter are about the judge's.
    """
    probe = session.trusted("")
    c.start(probe, HOST, sys.modules[__name__])
    probe.call("$probe", np.frombuffer(c.probe_library("stride_probe.c"), np.uint8), inference=False)
    probe.call("$long_array", 1, inference=False)
    ns = {s: min(probe.call("$probe_ns", s // 8, timeout_s=30, inference=False) for _ in range(3)) for s in STRIDES_BYTES}
    probe.close()
    evidence["probe"] = ns
    far = [s for s in STRIDES_BYTES if s >= SLOWER_FROM_BYTES]
    there = min(ns[s] for s in far) / ns[8]
    mine, shown = min(truth[s] for s in far) / truth[8], min(figures[s] for s in far) / figures[8]
    if there < 1.5:
        parts.add("slower", 1, True, "This machine shows no slow-down from 64 bytes on, whatever the code.",
                  "这台机器从 64 字节起没有变慢，与代码无关。")  # fmt: skip
    elif mine < SLOWER:
        parts.add(
            "slower", 1, False,
            f"Your C hides the effect: here strides of 64 bytes and more cost at least {there:.3g} times the sequential pass, with your C {mine:.3g}"
            " times. Either it does much beside the access (a division, a call), or it reads in another order and puts the hash together afterwards:"
            " walk in the order asked, with one multiply-add for each element.",
            f"你的 C 代码掩盖了这个现象：在本机上，64 字节及以上的步幅至少是顺序访问的 {there:.3g} 倍，用你的 C 只有 {mine:.3g} 倍。"
            "要么它在访问之外做的事太多（除法、函数调用），要么它按别的顺序读取、事后再拼出哈希值：请按要求的顺序遍历，每个元素只做一次乘加。",
        )  # fmt: skip
    else:
        alike = all(truth[s] / WITHIN <= figures[s] <= truth[s] * WITHIN for s in (8, min(far, key=figures.get)))
        seen = (f"Strides of 64 bytes and more cost {shown:.3g} times the sequential pass or more in your figures.",
                f"在你的数值中，64 字节及以上的步幅是顺序访问的 {shown:.3g} 倍或更多。")  # fmt: skip
        if shown >= SLOWER:
            parts.add("slower", 1, True, *seen)
            return
        parts.add(
            "slower", 1, False if mine >= 1.5 * SLOWER and alike else None,
            f"{seen[0]} The judge measured {mine:.3g} times with the same C (at least {SLOWER:g} is asked): take the shortest of several passes"
            " for every stride, all on the same array.",
            f"{seen[1]}评测程序用同一份 C 代码测得 {mine:.3g} 倍（至少需要 {SLOWER:g} 倍）：请对同一个数组的每种步幅各测几遍，取最短的一遍。",
        )  # fmt: skip


def _figure(on_device: dict | None, here: dict | None) -> bytes | None:
    """The answer's curve over the judge's, for the walk of known speed and for this machine, as far as they are given."""
    from perflab import plot

    shown = [("a walk of known speed", on_device["answer"], on_device["truth"])] if on_device else []
    shown += [("this machine", here["answer"], here["judge"])] if here else []
    if not shown:
        return None
    fig, axes = plot.subplots(len(shown), 1, height_in=0.6 + 2.7 * len(shown), squeeze=False)
    for ax, (title, figures, truth) in zip(axes.flat, shown, strict=True):
        ax.plot(STRIDES_BYTES, [truth[s] for s in STRIDES_BYTES], color=plot.ORANGE, label="the judge's", linewidth=4, alpha=0.6)
        ax.plot(STRIDES_BYTES, [figures[s] for s in STRIDES_BYTES], "o-", color=plot.BLUE, label="your experiment")
        ax.set(title=title, xscale="log", xlabel="stride (bytes)", ylabel="ns per access", xticks=STRIDES_BYTES)
        ax.set_xticklabels(STRIDES_BYTES)
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:.3g}")
        ax.minorticks_off()
    plot.legend(fig, handles=ax.get_legend_handles_labels()[0])
    return plot.png(fig, dpi=100)
