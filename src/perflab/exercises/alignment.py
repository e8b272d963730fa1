"""12.4: does it matter where in memory a word lies? The answer is C that reads and writes words, and an experiment.

The C is compiled in the sandbox, checked, and run under the address and undefined-behaviour sanitizers. The
experiment is put to a device of the judge's that really waits a secret time for every address, then to the answer's
own C on this machine, beside the judge's timing of the same C. Whether this processor shows an effect at all is told
by accesses of the judge's own.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
import sys
import time
from types import SimpleNamespace

import numpy as np

from perflab import launch, machine, native
from perflab.exercises import _c_answers as c
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Proxy, type_name

SLUG = "alignment"
TITLE = ("Aligned and unaligned access", "对齐与未对齐的内存访问")
ENTRY_POINTS = ("C_SOURCE", "experiment")
MAX_POINTS = 10
PROTOTYPES = {
    "sum_words": "__UINT64_TYPE__ sum_words(const unsigned char *, __SIZE_TYPE__, __SIZE_TYPE__, __SIZE_TYPE__)",
    "fill_words": "void fill_words(unsigned char *, __SIZE_TYPE__, __SIZE_TYPE__, __SIZE_TYPE__, __UINT64_TYPE__)",
}

KINDS = ("load", "store")
CASES = ("aligned", "unaligned", "line_split", "page_split")
# Unaligned within a line, too, but across a boundary of 16 and of 32 bytes, for which some processors' stores pay.
CROSSING = "crossing"
WITHIN = {("store", "line_split"): 1.7, ("store", "page_split"): 2.2}  # ratios to aligned; every other 1.5
OTHERS_WITHIN, ALIGNED_WITHIN = 1.5, 2.0
LATE = 0.1  # of its time; on a machine with one busy neighbour it is 0.02
VISIBLE = 1.5  # from this ratio on, an effect is one that an experiment must show
MIN_COUNT = 50_000
LEAST_NS = 0.03  # no processor makes more than five 8-byte accesses a cycle at 6 GHz
PAGE_BYTES = mmap.PAGESIZE
_NAMES = {
    "load": ("loads", "读取"), "store": ("stores", "写入"), "aligned": ("aligned", "对齐"), "unaligned": ("unaligned", "未对齐"),
    "line_split": ("line split", "跨缓存行"), "page_split": ("page split", "跨页"),
}  # fmt: skip


# ---------------------------------------------------------------- the C functions, for Python


def bind(library: ctypes.CDLL) -> SimpleNamespace:
    """The answer's two functions for NumPy buffers.

    ``sum_words(buf, offset, stride, count) -> int`` and ``fill_words(buf, offset, stride, count, value)``: buf is a C-contiguous
    uint8 array, offset and stride are in bytes. Raises TypeError for another buffer, ValueError where a word would lie outside it.
    """
    size, word = ctypes.c_size_t, ctypes.c_uint64
    library.sum_words.restype, library.sum_words.argtypes = word, [ctypes.c_void_p, size, size, size]
    library.fill_words.restype, library.fill_words.argtypes = None, [ctypes.c_void_p, size, size, size, word]

    def address(buf, offset, stride, count, writing):
        if not isinstance(buf, np.ndarray) or buf.dtype != np.uint8 or not buf.flags.c_contiguous:
            raise TypeError("buf must be a C-contiguous NumPy array of dtype uint8")
        if writing and not buf.flags.writeable:
            raise TypeError("buf is read-only")
        last = offset + (count - 1) * stride + 8 if count else 0
        if min(offset, stride, count) < 0 or last > buf.size:
            raise ValueError(f"the last word would end at byte {last} of a buffer of {buf.size} bytes")
        return buf.ctypes.data

    def sum_words(buf, offset, stride, count):
        return library.sum_words(address(buf, offset, stride, count, False), offset, stride, count)

    def fill_words(buf, offset, stride, count, value):
        library.fill_words(address(buf, offset, stride, count, True), offset, stride, count, value)

    return SimpleNamespace(sum_words=sum_words, fill_words=fill_words)


HOST = '''
def fill_buffer(data):
    """A fresh buffer with `data` in it that begins on a page; returns where in `whole` that is."""
    global whole, at
    whole = np.empty(data.size + exercise.PAGE_BYTES, np.uint8)
    at = -whole.ctypes.data % exercise.PAGE_BYTES
    whole[at:at + data.size] = data
    return at

def contents():
    return whole

def total(offset, count):
    return functions.sum_words(whole, at + offset, 0, count)

def fill(offset, count, value):
    functions.fill_words(whole, at + offset, 0, count, value)

def one_case(kind, data, offset, stride, count, value):
    if kind:
        functions.fill_words(data, offset, stride, count, value)
        return 0, data
    return functions.sum_words(data, offset, stride, count), data

def probe(shared):
    global library
    import ctypes
    library = native.load(shared.tobytes())
    library.probe_load.restype = library.probe_store.restype = ctypes.c_uint64
    library.probe_load.argtypes = library.probe_store.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def probe_ns(offset, kind, count):
    import time
    function = library.probe_store if kind == "store" else library.probe_load
    address = whole.ctypes.data + at + offset
    start = time.perf_counter()
    function(address, count)
    return (time.perf_counter() - start) / count * 1e9

def run_experiment():
    return answer["experiment"](functions.sum_words, functions.fill_words)

buffers, kept = {}, []

def on_pages():
    return all(base % exercise.PAGE_BYTES == 0 for base in buffers)

def move_the_heap():
    kept.append([*buffers.values(), np.ones(1040, np.uint8)])  # what is kept is not handed out again
    buffers.clear()

def run_on_device(device):
    def address(buf, offset, stride, count):
        if type(buf) is not np.ndarray or buf.dtype != np.uint8 or not buf.flags.c_contiguous:
            raise TypeError("buf must be a C-contiguous NumPy array of dtype uint8")
        if min(offset, stride, count) < 0 or (count and offset + (count - 1) * stride + 8 > buf.size):
            raise ValueError("a word would lie outside buf")
        buffers[buf.ctypes.data] = buf
        return buf.ctypes.data + offset

    def sum_words(buf, offset, stride, count):
        device("load", address(buf, offset, stride, count), int(stride), int(count))
        return int.from_bytes(buf[offset:offset + 8].tobytes(), "little") * count % 2**64 if count else 0

    def fill_words(buf, offset, stride, count, value):
        device("store", address(buf, offset, stride, count), int(stride), int(count))
        if count:
            buf[offset:offset + 8] = np.frombuffer(int(value).to_bytes(8, "little"), np.uint8)

    return answer["experiment"](sum_words, fill_words)
'''


# ---------------------------------------------------------------- judging


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    host = session.answer()
    built = c.accept(session, host, parts, sys.modules[__name__], MAX_POINTS)
    if built is None:
        return parts.verdict(evidence=evidence)
    subject = session.trusted("")
    c.start(subject, HOST, sys.modules[__name__], built.shared)
    evidence["compiler"] = built.compiler
    try:
        _judge_exact(session, built, subject, parts)
    except native.CError as error:
        parts.add("exact", 3, False, error.en, error.zh)
    except AnswerFailed as error:
        parts.add("exact", 3, False, error.en, error.zh)
    if parts.items[-1].ok is False:
        parts.add("experiment", 7, False, "The experiment is judged once the C is right.", "C 代码正确之后才会评判实验。")
        return parts.verdict(evidence=evidence)

    c.start(host, HOST, sys.modules[__name__], built.shared)
    seen: dict = {}
    with parts.attempt("device", 3):
        _judge_on_device(session, host, parts, evidence, seen)
    on_device = parts.items[-1].ok
    if host.closed:
        host = session.answer()
        c.start(host, HOST, sys.modules[__name__], built.shared)
    clock = Clock(session, subject)
    with parts.attempt("machine", 4):
        _judge_here(session, host, clock, parts, evidence, seen)
    here = evidence.get("here")
    return parts.verdict(evidence=evidence, figure=_figure(None if here and on_device else evidence.get("device"), here))


# ---- the C: exact, inside its buffer, defined


def cases(rng) -> list[dict]:
    """Calls whose result is known: random buffers, offsets, strides and counts, up to the last byte; none and one word too.

    Strides of a fill are 0 or at least 8: words that overlap would make the result depend on an order.
    """
    made = []
    for i in range(64):
        kind = i % 2
        stride = int(rng.choice([0, 8, 9, 16, 24, 61, 64, 100] if kind else [0, 1, 3, 7, 8, 12, 16, 63, 64, 100]))
        count = int(rng.choice([0, 1, 2, 3, 17, 40])) if i >= 8 else (0, 0, 1, 1, 2, 2, 40, 40)[i]
        offset = int(rng.integers(0, 70))
        span = offset + (count - 1) * stride + 8 if count else offset
        size = span + (0 if i % 4 < 2 else int(rng.integers(0, 40)))  # half of the buffers end with the last word
        data = rng.integers(0, 256, size, dtype=np.uint8)
        value = int(rng.integers(0, 1 << 64, dtype=np.uint64))
        made.append({"kind": kind, "shift": int(rng.integers(0, 16)), "offset": offset, "stride": stride, "count": count,
                     "value": value, "data": data})  # fmt: skip
    return made


def expected(case) -> tuple[int, np.ndarray]:
    """What a call returns and the buffer after it."""
    data, total = case["data"].copy(), 0
    for i in range(case["count"]):
        at = case["offset"] + i * case["stride"]
        if case["kind"]:
            data[at : at + 8] = np.frombuffer(case["value"].to_bytes(8, "little"), np.uint8)
        else:
            total += int.from_bytes(data[at : at + 8].tobytes(), "little")
    return total % 2**64, data


def _called(case) -> str:
    name = "fill_words" if case["kind"] else "sum_words"
    return f"`{name}` with offset {case['offset']}, stride {case['stride']}, count {case['count']} on a buffer of {case['data'].size} bytes"


def _wrong(case, got: int, after: np.ndarray) -> tuple[str, str] | None:
    """None where a call did what it should; else what it did, in both languages."""
    total, data = expected(case)
    called = _called(case)
    if got != total:
        return (
            f"{called} returned {got:#x}, expected {total:#x} (the sum of the 8-byte words at base + offset + i·stride, modulo 2⁶⁴).",
            f"{called}：返回 {got:#x}，应为 {total:#x}（base + offset + i·stride 处各个 8 字节字之和，模 2⁶⁴）。",
        )
    if not np.array_equal(after, data):
        at = int(np.flatnonzero(after != data)[0])
        return (
            f"{called} left byte {at} as {after[at]:#04x}, expected {data[at]:#04x}: it"
            " writes `count` words of 8 bytes at base + offset + i·stride, a later one over an earlier one, and nothing else.",
            f"{called}：第 {at} 个字节变成了 {after[at]:#04x}，应为 {data[at]:#04x}：它应在 base + offset + i·stride 处写入 `count` 个"
            " 8 字节字（后写的覆盖先写的），此外什么都不写。",
        )
    return None


def _judge_exact(session, built, subject, parts) -> None:
    asked = cases(session.rng)
    for case in asked:
        got, after = subject.call(
            "$one_case", case["kind"], case["data"], case["offset"], case["stride"], case["count"], case["value"], timeout_s=10
        )  # fmt: skip
        if wrong := _wrong(case, got, after):
            parts.add("exact", 3, False, *wrong)
            return
    written = c.sanitized(session, built, "alignment_driver.c", _as_bytes(asked))
    if written is not None:
        at = 0
        for case in asked:
            size = case["data"].size
            (got,) = struct.unpack_from("<Q", written, at)
            after = np.frombuffer(written, np.uint8, size, at + 8)
            at += 8 + size + -size % 8
            if wrong := _wrong(case, got, after):
                parts.add("exact", 3, False, *wrong)
                return
    note_en, note_zh = ("", "") if written is not None else c.NO_SANITIZERS
    parts.add("exact", 3, True, f"Your C is exact on {len(asked)} calls, stays inside its buffer and is well defined.{note_en}",
              f"你的 C 代码在 {len(asked)} 次调用中结果精确，没有越界，行为有定义。{note_zh}")  # fmt: skip


def _as_bytes(asked) -> bytes:
    rows = [struct.pack("<Q", len(asked))]
    for case in asked:
        size = case["data"].size
        head = (case["kind"], case["shift"], size, case["offset"], case["stride"], case["count"], case["value"])
        rows.append(struct.pack("<7Q", *head) + case["data"].tobytes() + b"\0" * (-size % 8))
    return b"".join(rows)


# ---- the experiment on a device of known truth


def place(address: int, line_bytes: int = 64) -> str:
    """Which of the four cases an 8-byte access at `address` is."""
    if address % PAGE_BYTES > PAGE_BYTES - 8:
        return "page_split"
    if address % line_bytes > line_bytes - 8:
        return "line_split"
    return "unaligned" if address % 8 else "aligned"


def line_bytes() -> int:
    """The cache line's size as the system gives it, else 64."""
    return next((cache["line_bytes"] for cache in machine.caches() if cache["line_bytes"]), 64)


class Device:
    """Memory of known speed: waits `unit_s` × count × a secret factor that depends on the address alone.

    The unit follows from `count`, the smallest that an earlier attempt used, or from that of the first call that is more
    than a touch, so that a call takes about a millisecond whatever the experiment's count. The factors lie so far apart
    that none passes for another.
    """

    def __init__(self, rng, round_trip_s: float, count: int | None = None):
        def factors():
            drawn = (1.0, rng.uniform(1.7, 2.0), rng.uniform(3.6, 4.0), rng.uniform(9.0, 10.0))
            return dict(zip(CASES, map(float, drawn), strict=True))

        self.factors = {kind: factors() for kind in KINDS}
        self.base_s = float(rng.uniform(0.8e-3, 1.2e-3))
        self.round_trip_s, self.line = round_trip_s, line_bytes()
        self.unit_s = self.base_s / count if count else None
        self.settled = bool(count)
        self.calls = {(kind, case): 0 for kind in KINDS for case in CASES}
        self.strides, self.smallest_count, self.usual_count = set(), math.inf, None

    def __call__(self, kind, address, stride, count):
        began = time.perf_counter()
        if kind not in KINDS or not all(type(v) is int and v >= 0 for v in (address, stride, count)):
            raise TypeError("the device was called with something else than numbers")
        if not self.settled:
            self.unit_s = self.base_s / max(count, MIN_COUNT)
            self.settled = count >= MIN_COUNT
        self.calls[kind, place(address, self.line)] += 1
        self.strides.add(stride)
        self.smallest_count = min(self.smallest_count, count)
        if count >= MIN_COUNT:
            self.usual_count = min(self.usual_count or count, count)
        visited = range(address, address + 512 * stride, stride) if stride else (address,)
        factor = sum(self.factors[kind][place(a, self.line)] for a in visited) / len(visited)
        c.wait_until(began + count * self.unit_s * factor - self.round_trip_s)


def _judge_on_device(session, host, parts, evidence, seen) -> None:
    round_trip_s = host.call("$round_trips", Proxy(lambda: None), 50, inference=False)
    count, moved, attempts = None, False, c.ATTEMPTS
    while attempts:  # each time with other secret times
        attempts -= 1
        device = Device(session.rng, round_trip_s, count)
        late_s, began = host.late_s() + launch.late_s(), time.monotonic()
        figures = _checked(host.call("$run_on_device", Proxy(device), timeout_s=60, inference=False))
        late = (host.late_s() + launch.late_s() - late_s) / (time.monotonic() - began)
        wrong = []
        for kind in KINDS:
            got, truth = figures[kind], device.factors[kind]
            for case in CASES:
                if case == "aligned":
                    value, true, within = got[case], (device.unit_s or math.nan) * 1e9, ALIGNED_WITHIN
                else:
                    value, true, within = got[case] / got["aligned"], truth[case], _within(kind, case)
                if not true / within <= value <= true * within or not device.calls[kind, case]:
                    wrong.append((kind, case, value, true))
        count = device.usual_count
        if not wrong and (moved or not host.call("$on_pages", inference=False)):
            break
        if not wrong:  # whoever takes a buffer's first byte for a page's must not be right because it happens to be one
            host.call("$move_the_heap", inference=False)
            moved, attempts = True, c.ATTEMPTS
    seen.update(device.calls)
    evidence["device"] = {"answer": figures, "truth": device.factors, "unit_ns": (device.unit_s or 0) * 1e9,
                          "calls": {f"{k}/{case}": n for (k, case), n in device.calls.items()}, "late": late}  # fmt: skip
    if not wrong:
        parts.add("device", 3, True, "On memory whose speed only the judge knew, your experiment found all eight figures.",
                  "在速度只有评测程序知道的内存上，你的实验测出了全部八个数值。")  # fmt: skip
        return
    kind, case, value, true = wrong[0]
    if late > LATE and all(device.calls.values()):
        parts.add("device", 3, None, f"The experiment could not be checked: for {late:.0%} of its time it waited for a core.",
                  f"无法核对实验：它有 {late:.0%} 的时间在等待处理器核。")  # fmt: skip
        return
    hint_en, hint_zh = _use_of(device)
    unit_en, unit_zh = (" ns", " ns") if case == "aligned" else ("× aligned", " 倍（与对齐之比）")
    kind_en, kind_zh = _NAMES[kind]
    case_en, case_zh = _NAMES[case]
    if math.isnan(true):  # nothing was called, so nothing is true of it
        parts.add("device", 3, False, f"On memory whose speed only the judge knew, your experiment gives figures without a measurement. {hint_en}",
                  f"在速度只有评测程序知道的内存上，你的实验没有测量就给出了数值。{hint_zh}")  # fmt: skip
        return
    parts.add(
        "device", 3, False,
        f"On memory whose speed only the judge knew, your experiment gives {case_en} {kind_en} {value:.3g}{unit_en}; the truth is"
        f" {true:.3g}{unit_en}. {hint_en}",
        f"在速度只有评测程序知道的内存上，你的实验给出的{case_zh}{kind_zh}为 {value:.3g}{unit_zh}，真实值是 {true:.3g}{unit_zh}。{hint_zh}",
    )  # fmt: skip


def _use_of(device: Device) -> tuple[str, str]:
    """What the device saw that explains a wrong figure."""
    missing = [(kind, case) for (kind, case), n in device.calls.items() if n == 0]
    if not any(device.calls.values()):
        return (
            "Your experiment called neither function: it has to measure the functions it is given.",
            "你的实验没有调用任何一个函数：它必须测量传入的函数。",
        )
    if device.strides != {0}:
        return (
            "All four cases use stride 0: with another stride the accesses of one call fall on different kinds of places.",
            "四种情形都要用步幅 0：换成别的步幅，同一次调用里的访问会落在不同类型的位置上。",
        )
    if missing:
        kind, case = missing[0]
        return (
            f"None of its {_NAMES[kind][0]} fell on a place that is {_NAMES[case][0].replace('split', 'splitting')}. `buf` begins at any address: look"
            " at `buf.ctypes.data`, and choose offsets so that the *address* is a multiple of 8, crosses a line or crosses a page.",
            f"它的{_NAMES[kind][1]}没有一次属于“{_NAMES[case][1]}”。`buf` 的起始地址不一定对齐：请查看 `buf.ctypes.data`，"
            "选择偏移，使*地址*是 8 的倍数、跨缓存行或跨页。",
        )
    if device.smallest_count < MIN_COUNT:
        return (
            f"Its smallest count was {device.smallest_count}: take at least {MIN_COUNT:,}, a call itself costs microseconds.",
            f"它最小的 count 是 {device.smallest_count}：至少要 {MIN_COUNT:,}，因为一次调用本身就要几微秒。",
        )
    return (
        "Divide the time of a call by its count, give nanoseconds, and measure all four cases alike.",
        "请用一次调用的时间除以 count，单位为纳秒，并以相同方式测量四种情形。",
    )


def _within(kind: str, case: str) -> float:
    return ALIGNED_WITHIN if case == "aligned" else WITHIN.get((kind, case), OTHERS_WITHIN)


def _checked(value) -> dict:
    """The experiment's dict. Raises AnswerFailed for another shape or type."""
    shape_en = '{"load": d, "store": d}, each d with the keys ' + ", ".join(CASES)
    if type(value) is not dict or set(value) != set(KINDS) or any(type(d) is not dict or set(d) != set(CASES) for d in value.values()):
        got = {k: sorted(map(str, v)) if type(v) is dict else type_name(v) for k, v in value.items()} if type(value) is dict else type_name(value)
        raise AnswerFailed("value", f"`experiment` must return {shape_en}; it returned {got}.",
                           f"`experiment` 必须返回 {shape_en}；实际返回的是 {got}。")  # fmt: skip
    for kind in KINDS:
        for case, ns in value[kind].items():
            if not c.positive(ns):
                raise AnswerFailed("value", f"`experiment` gives {kind}/{case} = {ns!r}; expected nanoseconds per access, a positive float.",
                                   f"`experiment` 给出 {kind}/{case} = {ns!r}；应为每次访问的纳秒数，正的浮点数。")  # fmt: skip
    return value


# ---- the experiment here, on the answer's own C


class Clock:
    """Times the answer's C in the subject, by the judge's clock: ns per access for each kind and case.

    Loads and stores have pages of their own, so that every sum that a timed call returns can be checked.
    """

    VALUE = 0x0123456789ABCDEF

    def __init__(self, session, subject):
        self.subject, self.order = subject, session.order()
        rng, line = session.rng, line_bytes()
        self.data = rng.integers(0, 256, 6 * PAGE_BYTES, dtype=np.uint8)
        self.start = subject.call("$fill_buffer", self.data, inference=False)
        self.offsets = {}
        for kind, page in (("load", PAGE_BYTES), ("store", 3 * PAGE_BYTES)):
            self.offsets |= {
                (kind, "aligned"): page,
                (kind, "unaligned"): page + int(rng.choice([1, 3, 5, 7, 17, 20])),
                (kind, CROSSING): page + int(rng.integers(25, 32)),
                (kind, "line_split"): page + line - int(rng.integers(1, 8)),
                (kind, "page_split"): page + PAGE_BYTES - int(rng.integers(1, 8)),
            }
        self.overhead_s = c.overhead_s(subject)
        self.counts = {}
        for key in self.offsets:
            seconds = min(self.seconds(key, 400_000) for _ in range(5))
            self.counts[key] = int(min(max(400_000 * 3e-3 / seconds, MIN_COUNT), 200_000_000))

    def seconds(self, key, count: int) -> float:
        """One timed call, its result checked. Raises AnswerFailed for a wrong one."""
        kind, offset = key[0], self.offsets[key]
        if kind == "store":
            _, seconds = self.subject.timed_call("$fill", offset, count, self.VALUE, timeout_s=30, inference=False)
        else:
            value, seconds = self.subject.timed_call("$total", offset, count, timeout_s=30, inference=False)
            word = int.from_bytes(self.data[offset : offset + 8].tobytes(), "little")
            if value != word * count % 2**64:
                raise AnswerFailed("value", f"`sum_words` is wrong for stride 0 and a count of {count}.",
                                   f"`sum_words` 在步幅为 0、count 为 {count} 时结果不对。")  # fmt: skip
        return max(seconds - self.overhead_s, 1e-9)

    def ns(self, rounds: int = 11) -> dict:
        """Minima over interleaved rounds: {(kind, case): ns per access}, with CROSSING as a case of its own."""
        found = {key: math.inf for key in self.offsets}
        for _ in range(rounds):
            keys = list(found)
            self.order.shuffle(keys)
            for key in keys:
                found[key] = min(found[key], self.seconds(key, self.counts[key]) / self.counts[key] * 1e9)
        return found

    def check_stores(self) -> None:
        """The words that timed fills have written must be there. Raises AnswerFailed."""
        for key, offset in self.offsets.items():
            if key[0] == "store":
                self.subject.call("$fill", offset, MIN_COUNT, self.VALUE, inference=False)
                after = self.subject.call("$contents", inference=False)[self.start + offset :][:8]
                if after.tobytes() != self.VALUE.to_bytes(8, "little"):
                    raise AnswerFailed("value", "`fill_words` with stride 0 did not write its word.", "`fill_words` 在步幅为 0 时没有写入。")

    def grows(self, kind: str) -> float:
        """How many times as long four times as many accesses take."""
        key = (kind, "aligned")
        for count in (self.counts[key], 16 * self.counts[key]):  # the longer calls are far beyond what a message costs
            once = four = math.inf
            for i in range(20):  # a disturbance only adds time, so more samples can only make the comparison fairer
                once = min(once, self.seconds(key, count))
                four = min(four, self.seconds(key, 4 * count))
                happen = four >= max(2 * once, 4 * count * LEAST_NS * 1e-9)
                if i >= 4 and happen:
                    return four / once
        return min(four / once, 1.0)


def probed(session, clock: Clock) -> dict:
    """The judge's own accesses on this machine: {(kind, case): ratio to aligned}."""
    probe = session.trusted("")
    c.start(probe, HOST, sys.modules[__name__])
    probe.call("$probe", np.frombuffer(c.probe_library("alignment_probe.c"), np.uint8), inference=False)
    probe.call("$fill_buffer", clock.data, inference=False)
    offsets = {key: offset for key, offset in clock.offsets.items() if key[1] in CASES}
    ns = {key: math.inf for key in offsets}
    for _ in range(15):
        for key, offset in offsets.items():
            ns[key] = min(ns[key], probe.call("$probe_ns", offset, key[0], 200_000, inference=False))
    probe.close()
    return {key: ns[key] / ns[key[0], "aligned"] for key in ns}


def _judge_here(session, host, clock, parts, evidence, seen) -> None:
    for kind in KINDS:
        grown = clock.grows(kind)
        if grown < 2:
            name = "sum_words" if kind == "load" else "fill_words"
            parts.add(
                "machine", 4, False,
                f"`{name}` with stride 0 takes {grown:.2f} times as long for four times as many accesses: they don't all happen. Let the compiler not"
                " see that the address is the same each time: compute it from offset + i·stride in every turn, with no special case for stride 0.",
                f"`{name}` 在步幅为 0 时，访问次数变为 4 倍，时间只变为 {grown:.2f} 倍：访问并没有全部发生。不要让编译器看出每次地址都相同："
                "每一轮都用 offset + i·stride 计算地址，不要对步幅 0 做特殊处理。",
            )  # fmt: skip
            return
    clock.check_stores()
    agreement = c.Agreement()
    keys = [(kind, case) for kind in KINDS for case in CASES]
    before, reversed_ = clock.ns(), None
    for attempt in range(c.ATTEMPTS + 2):
        value = host.call("$run_experiment", timeout_s=60, inference=False)
        figures = _checked(value)
        after = clock.ns()
        was, now = _nearer(figures, before, after)
        for kind, case in keys:
            base = (kind, "aligned")
            if case == "aligned":
                agreement.note(base, figures[kind][case], was[base], now[base], ALIGNED_WITHIN)
            else:
                ratio = figures[kind][case] / figures[kind]["aligned"]
                agreement.note((kind, case), ratio, was[kind, case] / was[base], now[kind, case] / now[base], _within(kind, case))
        truth = {key: math.sqrt(was[key] * now[key]) for key in keys}
        before, reversed_ = after, _reversed(figures, truth)
        wrong = agreement.wrong(keys)
        if agreement.settled(keys) and not a_little_off(wrong) or attempt + 1 >= c.ATTEMPTS and not wrong:
            break
    evidence["here"] = {"answer": figures, "judge_ns": {kind: {case: truth[kind, case] for case in CASES} for kind in KINDS}}
    if seen and not any(seen.values()):
        parts.add("agrees", 2, False, "Figures that were not measured do not count.", "不是测量得到的数值不计分。")
    elif a_little_off(wrong):
        (kind, case), value, true = wrong[0]
        parts.add("agrees", 2, None, f"{_NAMES[case][0]} {_NAMES[kind][0]}: your experiment gives {value:.3g} ns, the judge measured {true:.3g}. A neighbour on the"
                  " same core halves its speed, so this may be chance.",
                  f"{_NAMES[case][1]}{_NAMES[kind][1]}：你的实验给出 {value:.3g} ns，评测程序测得 {true:.3g} ns。同一物理核上有邻居时速度会减半，因此这可能是偶然。")  # fmt: skip
    elif wrong:
        parts.add("agrees", 2, False, *_disagreement(*wrong[0], seen))
    elif agreement.all_ok(keys) is None:
        parts.add("agrees", 2, None, "The judge's own timing of your C did not repeat, so yours could not be compared.",
                  "评测程序自己对你的 C 代码的计时不能重复，因此无法核对你的结果。")  # fmt: skip
    else:
        parts.add("agrees", 2, True, "Your eight figures agree with the judge's timing of the same C on this machine.",
                  "你的八个数值与评测程序在本机对同一份 C 代码的计时一致。")  # fmt: skip
    _judge_order(reversed_, None if a_little_off(wrong) else agreement.all_ok(keys), parts)
    _judge_visible(session, clock, truth, parts, evidence)


def a_little_off(wrong: list) -> bool:
    """Nothing is wrong but absolute times, by less than a factor of 3: whoever shares the core may come and go for seconds."""
    return bool(wrong) and all(case == "aligned" and abs(math.log(value / true)) < math.log(3) for (_, case), value, true in wrong)


def _nearer(figures, before, after) -> tuple[dict, dict]:
    """The judge's figures with, for unaligned, those of the one of its two places whose ratio is nearer to the answer's."""
    was, now = dict(before), dict(after)
    for kind in KINDS:
        said = math.log(figures[kind]["unaligned"] / figures[kind]["aligned"])
        ratios = {
            case: sum(math.log(ns[kind, case] / ns[kind, "aligned"]) for ns in (before, after)) / 2 for case in ("unaligned", CROSSING)
        }
        case = min(ratios, key=lambda case, said=said, ratios=ratios: abs(ratios[case] - said))
        was[kind, "unaligned"], now[kind, "unaligned"] = before[kind, case], after[kind, case]
    return was, now


def _disagreement(key, value, true, seen) -> tuple[str, str]:
    kind, case = key
    (kind_en, kind_zh), (case_en, case_zh) = _NAMES[kind], _NAMES[case]
    within = _within(kind, case)
    hint_en, hint_zh = "", ""
    if case == "aligned":
        unit_en, unit_zh = " ns", " ns"
        hint_en = " Does the time of a call include something beside the accesses, or was it divided by another count?"
        hint_zh = "计时里是否包含了访问以外的工作，或者除以了别的次数？"
    else:
        unit_en, unit_zh = "× aligned", " 倍（与对齐之比）"
        if seen and not seen.get((kind, case), 1):
            hint_en = " None of your accesses is at such an address: `buf` begins anywhere, look at `buf.ctypes.data`."
            hint_zh = "你没有任何一次访问落在这样的地址上：`buf` 的起始地址不一定对齐，请查看 `buf.ctypes.data`。"
    return (
        f"{case_en} {kind_en}: your experiment gives {value:.3g}{unit_en}, the judge measured {true:.3g}{unit_en} with the same C, just before"
        f" and after (a factor of {within:g} is allowed).{hint_en}",
        f"{case_zh}{kind_zh}：你的实验给出 {value:.3g}{unit_zh}，评测程序前后用同一份 C 代码测得 {true:.3g}{unit_zh}（允许相差 {within:g} 倍）。{hint_zh}",
    )


def _reversed(figures, truth) -> tuple | None:
    """Two cases that lie clearly apart in the judge's figures and the other way round in the answer's."""
    for kind in KINDS:
        for slow in CASES[1:]:  # that an aligned access is the slower one can only be noise
            for fast in CASES:
                if truth[kind, slow] > VISIBLE * truth[kind, fast] and figures[kind][slow] <= figures[kind][fast]:
                    return kind, slow, fast, truth[kind, slow], truth[kind, fast]
    return None


def _judge_order(reversed_, agreed, parts) -> None:
    """Wrong only together with wrong figures: in figures that agree, a reversal is a passing disturbance."""
    if reversed_ is None or agreed:
        parts.add("order", 1, True, "The order of the four cases is right.", "四种情形的快慢顺序正确。")
        return
    if agreed is None:
        parts.add("order", 1, None, "The order of the four cases could not be judged: the figures could not be compared.",
                  "四种情形的快慢顺序无法评判：数值未能核对。")  # fmt: skip
        return
    kind, slow, fast, slow_ns, fast_ns = reversed_
    parts.add(
        "order", 1, False,
        f"{_NAMES[slow][0]} {_NAMES[kind][0]} are slower than {_NAMES[fast][0]} ones here ({slow_ns:.3g} against {fast_ns:.3g} ns); your experiment"
        " says they are not.",
        f"在本机上，{_NAMES[slow][1]}{_NAMES[kind][1]}比{_NAMES[fast][1]}{_NAMES[kind][1]}慢（{slow_ns:.3g} 与 {fast_ns:.3g} ns）；你的实验结论相反。",
    )  # fmt: skip


def _judge_visible(session, clock, truth, parts, evidence) -> None:
    """An effect that this processor has must show in the answer's C: a byte-by-byte copy hides it."""
    here = probed(session, clock)
    evidence["probe"] = {kind: {case: here[kind, case] for case in CASES} for kind in KINDS}
    key = max(here, key=here.get)
    kind, case = key
    shown = truth[key] / truth[kind, "aligned"]
    if here[key] >= VISIBLE and shown < 1 + (here[key] - 1) / 4:
        parts.add(
            "effect", 1, False,
            f"Your C hides the effect: {_NAMES[case][0]} {_NAMES[kind][0]} cost {here[key]:.3g}× aligned ones on this machine, with your C"
            f" {shown:.3g}×. Move each 8-byte word in one access (memcpy of 8 bytes), not byte by byte.",
            f"你的 C 代码掩盖了这个现象：在本机上{_NAMES[case][1]}{_NAMES[kind][1]}的代价是对齐时的 {here[key]:.3g} 倍，用你的 C 只有 {shown:.3g} 倍。"
            "每个 8 字节的字要一次访问完成（memcpy 8 个字节），不要逐字节进行。",
        )  # fmt: skip
    elif here[key] >= VISIBLE:
        parts.add("effect", 1, True, f"The largest effect here: {_NAMES[case][0]} {_NAMES[kind][0]}, {shown:.3g}× aligned.",
                  f"本机上最大的影响：{_NAMES[case][1]}{_NAMES[kind][1]}，为对齐时的 {shown:.3g} 倍。")  # fmt: skip
    else:
        parts.add("effect", 1, True, "This processor shows no effect of alignment with single accesses, and neither does your C.",
                  "这款处理器的单次访问看不出对齐的影响，你的 C 代码也是如此。")  # fmt: skip


def _figure(on_device: dict | None, here: dict | None) -> bytes | None:
    """The answer's eight figures beside the judge's, for the memory of known speed and for this machine, as far as they are given."""
    from perflab import plot

    shown = []
    if on_device and on_device["unit_ns"]:
        known = {kind: {case: on_device["unit_ns"] * factor for case, factor in factors.items()} for kind, factors in on_device["truth"].items()}
        shown.append(("memory of known speed", on_device["answer"], known))
    if here:
        shown.append(("this machine", here["answer"], here["judge_ns"]))
    if not shown:
        return None
    fig, axes = plot.subplots(len(shown), 2, height_in=0.6 + 2.7 * len(shown), squeeze=False)
    for row, (where, figures, truth) in zip(axes, shown, strict=True):
        for ax, kind in zip(row, KINDS, strict=True):
            for shift, label, values, colour in ((-0.2, "your experiment", figures, plot.BLUE), (0.2, "the judge's", truth, plot.ORANGE)):
                heights = [float(values[kind][case]) for case in CASES]
                ax.bar([i + shift for i in range(len(CASES))], heights, 0.38, label=label, color=colour)
            ax.set_title(f"{kind}s, {where}", fontsize=9)
            ax.set_xticks(range(len(CASES)), ["aligned", "un-\naligned", "line\nsplit", "page\nsplit"], fontsize=8)
            ax.set_yscale("log", base=2)
            ax.yaxis.set_major_formatter("{x:.3g}")
            ax.minorticks_off()
        row[0].set_ylabel("ns per access")
    plot.legend(fig, columns=2, handles=ax.get_legend_handles_labels()[0])
    return plot.png(fig, dpi=100)
