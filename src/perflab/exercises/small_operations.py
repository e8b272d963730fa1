"""12.3: is parallelism worth it for 40×40 operations? Chains of small products, and an honest figure for the gain."""

from __future__ import annotations

import os
import time
from statistics import median

import numpy as np

from perflab import units
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed, is_float
from perflab.wire import Tensor, type_name

SLUG = "small-operations"
TITLE = ("Small operations", "小运算")
ENTRY_POINTS = ("run_chains", "speedup")
MAX_POINTS = 10

K, N, STEPS = 8, 40, 500
TOLERANCE = 1e-4
FASTER_BY = 1.25
REPORT_WITHIN = 1.3
ALONE_AT_MOST = 2.5  # times a call among many
# Below this a machine can't show what two processes gain (its other cores are busy), and a claim of parallelism stays open.
CAPACITY_NEEDED = 1.4

# The serial loop, and the same loop run many times between two looks at the judge's clock.
REFERENCE = """
import torch

def run_chains(xs, w, steps):
    out = []
    for x in xs:
        for _ in range(steps):
            x = torch.mm(x, w)
        out.append(x)
    return torch.stack(out)

def spin(n):
    total = 0
    for i in range(n):
        total += i
    return total
"""
MANY = """
def many(xs, w, steps, times):
    out = xs
    for _ in range(times):
        out = answer["run_chains"](xs, w, steps)
    return out
"""


def judge(session: Session) -> Verdict:
    parts = Parts(SLUG, MAX_POINTS)
    evidence: dict = {}
    # Any way of running them is allowed, more than one core included, but the serial loop must not be compared on another kind of core.
    options = {"cpus": session.cpus}
    host = session.answer(**options)
    if not _correct(session, host, parts, evidence):
        return parts.verdict(evidence=evidence)
    reference = session.trusted(REFERENCE, **options)
    for each in (host, reference):
        each.define(MANY)
    comparison = None
    with parts.attempt("fast", 4):
        comparison = _fast(session, host, reference, parts, evidence)
    if comparison is None:
        return parts.verdict(evidence=evidence)
    with parts.attempt("reported", 2):
        _reported(session, host, reference, parts, evidence)
    return parts.verdict(evidence=evidence, figure=_figure(comparison))


def chains(rng, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """k random n×n matrices and a random orthogonal one (its powers neither grow nor vanish), float32."""
    w = np.linalg.qr(rng.standard_normal((n, n)))[0].astype(np.float32)
    return rng.standard_normal((k, n, n)).astype(np.float32), w


def truth(xs: np.ndarray, w: np.ndarray, steps: int) -> np.ndarray:
    """x·wˢᵗᵉᵖˢ in float64."""
    return xs.astype(np.float64) @ np.linalg.matrix_power(w.astype(np.float64), steps)


def deviation(value, expected: np.ndarray) -> float:
    """Largest deviation relative to the largest expected magnitude. Raises AnswerFailed for another type, dtype or shape."""
    shape = tuple(expected.shape)
    if type(value) is not Tensor or value.dtype != "float32" or value.array.shape != shape:
        got = type_name(value) + (f" of shape {value.array.shape}" if type(value) is Tensor else "")
        raise AnswerFailed(
            "value",
            f"`run_chains` must return a float32 tensor of shape {shape}; it returned {got}.",
            f"`run_chains` 必须返回形状为 {shape} 的 float32 张量；实际返回的是 {got}。",
        )
    with np.errstate(all="ignore"):
        error = np.abs(value.array - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-30)
    return float("inf") if np.isnan(error) else float(error)


def _correct(session, host, parts, evidence) -> bool:
    rng = session.rng
    cases = [(3, 5, 7), (1, 40, 0), (K, N, STEPS), (2, 64, 40), (int(rng.integers(2, 12)), int(rng.integers(2, 50)), int(rng.integers(1, 200)))]
    with parts.attempt("correct", 4):
        for k, n, steps in (cases[i] for i in rng.permutation(len(cases))):
            xs, w = chains(rng, k, n)
            value, (xs_after, w_after, _) = host.call("run_chains", Tensor(xs), Tensor(w), steps, echo=True)
            error = deviation(value, truth(xs, w, steps))
            if error > TOLERANCE:
                return _wrong(parts, k, n, steps, error)
            if not (np.array_equal(xs_after.array, xs) and np.array_equal(w_after.array, w)):
                return parts.add("correct", 4, False, "`run_chains` changed its inputs: xs and w must come back as they were.",
                                 "`run_chains` 改动了输入：xs 和 w 必须保持不变。")  # fmt: skip
        evidence["cases"] = len(cases)
        return parts.add("correct", 4, True, f"`run_chains` is right for all {len(cases)} combinations of k, n and steps.",
                         f"`run_chains` 在全部 {len(cases)} 组 k、n、steps 下都正确。")  # fmt: skip
    return False


def _wrong(parts, k, n, steps, error) -> bool:
    if error == float("inf"):
        return parts.add("correct", 4, False, f"`run_chains` with k = {k}, n = {n}, steps = {steps} returned values that are NaN or infinite.",
                         f"`run_chains` 在 k = {k}、n = {n}、steps = {steps} 时返回的值中有 NaN 或无穷大。")  # fmt: skip
    return parts.add(
        "correct", 4, False,
        f"`run_chains` with k = {k}, n = {n}, steps = {steps} is off by {error:.2g} of the largest value; {TOLERANCE:g} is allowed."
        " Each chain is x·w·w·…·w in float32; steps = 0 gives x back.",
        f"`run_chains` 在 k = {k}、n = {n}、steps = {steps} 时偏差为最大值的 {error:.2g}，允许 {TOLERANCE:g}。"
        "每条链是 float32 下的 x·w·w·…·w；steps = 0 时原样返回 x。",
    )  # fmt: skip


def _fast(session, host, reference, parts, evidence):
    def timed(where) -> float:
        xs, w = chains(session.rng, K, N)
        value, seconds = where.timed_call("run_chains", Tensor(xs), Tensor(w), STEPS)
        error = deviation(value, truth(xs, w, STEPS))
        if where is host and error > TOLERANCE:
            raise AnswerFailed(
                "value",
                f"While it was timed, `run_chains` returned a wrong result (off by {error:.2g}): every call has new inputs.",
                f"计时过程中 `run_chains` 返回了错误的结果（偏差 {error:.2g}）：每次调用的输入都是新的。",
            )
        return seconds

    timed(host)  # so that what is counted below is what is timed
    cpu_before_s, began = host.cpu_s(), time.monotonic()
    found = session.paired_ratio(lambda: timed(reference), lambda: timed(host), FASTER_BY)
    busy = (host.cpu_s() - cpu_before_s) / max(sum(found.answer_s), 1e-9)
    evidence["comparison"] = found.as_dict()
    evidence["cores_used"] = busy
    evidence["took_s"] = time.monotonic() - began
    ok, why = found.faster, (found.reason, "机器正忙，或者区间跨过了阈值。")
    # a busy neighbour takes away what two processes gain, but it does not make them slower than one
    if ok is False and busy > 1.15 and found.high > 0.9:
        evidence["capacity"] = capacity = _capacity(session)
        if capacity < CAPACITY_NEEDED:
            ok = None
            why = (f"Two processes do only {capacity:.2f} times the work of one here now: other programs are using the cores.",
                   f"此刻本机上两个进程只能完成一个进程 {capacity:.2f} 倍的工作：其他程序正占用处理器核。")  # fmt: skip
    if ok:
        en = f"`run_chains` takes 1/{found.ratio:.3g} of the serial loop's time ({found}; more than {FASTER_BY:g}× asked)."
        zh = f"`run_chains` 的用时是串行循环的 1/{found.ratio:.3g}（{found}；要求大于 {FASTER_BY:g}×）。"
    elif ok is None:
        en = f"Whether `run_chains` is more than {FASTER_BY:g}× as fast could not be told: {found}. {why[0]}"
        zh = f"无法判定 `run_chains` 是否快了 {FASTER_BY:g} 倍以上：{found}。{why[1]}"
    else:
        en = (f"`run_chains` is {found.ratio:.3g}× as fast as the serial loop of torch.mm ({found}); more than {FASTER_BY:g}× is asked."
              + (" It is slower: threads hand the interpreter lock to and fro at every 3 µs product." if found.high < 1 and busy > 1.15 else
                 " At 40×40 most of the time is the dispatch of each product: make fewer, larger calls."))  # fmt: skip
        zh = (f"`run_chains` 的速度是 torch.mm 串行循环的 {found.ratio:.3g} 倍（{found}）；要求大于 {FASTER_BY:g} 倍。"
              + ("它反而更慢：每个乘积只有约 3 µs，线程一直在争抢解释器锁。" if found.high < 1 and busy > 1.15 else
                 "40×40 时大部分时间花在每次乘法的派发上：请减少调用次数、增大每次调用的工作量。"))  # fmt: skip
    parts.add("fast", 4, ok, en, zh)
    return found


def _capacity(session) -> float:
    """How many times the work of one process two processes do in the same time, now, on this machine. 1 where there is one core."""
    if (len(session.cpus) if session.cpus else os.cpu_count() or 1) < 2:
        return 1.0
    pair = [{cpu} for cpu in sorted(session.cpus)[:2]] if session.cpus else [None, None]
    a, b = (session.trusted(REFERENCE, cpus=each) for each in pair)
    n = 3_000_000
    alone = min(a.timed_call("spin", n)[1] for _ in range(3))
    import threading

    together = []
    for _ in range(3):
        thread = threading.Thread(target=b.call, args=("spin", n))
        start = time.perf_counter()
        thread.start()
        a.call("spin", n)
        thread.join()
        together.append(time.perf_counter() - start)
    return 2 * alone / min(together)


def _reported(session, host, reference, parts, evidence) -> None:
    def own() -> tuple[float, float, float]:
        """Seconds of one serial loop; of one run_chains among many, the pipe's share made small; and of one alone, the pipe's share taken off.

        A short call is slower alone, as between two serial loops: caches and branch prediction are not its own any more.
        """
        xs, w = chains(session.rng, K, N)
        args = (Tensor(xs), Tensor(w), STEPS)
        times = 1
        if min(host.timed_call("$many", *args, 1)[1] for _ in range(2)) < 0.02:
            times = max(1, round(11 * 0.02 / min(host.timed_call("$many", *args, 11)[1] for _ in range(2))))
        serial, chained, single, empty = [], [], [], []
        for _ in range(9):  # in turn, so that what slows the machine slows all
            serial.append(reference.timed_call("$many", *args, 1)[1])
            single.append(host.timed_call("$many", *args, 1)[1])
            empty.append(host.timed_call("$many", *args, 0)[1])
            chained.append(host.timed_call("$many", *args, times)[1] / times)
        among_many = median(chained)
        alone = median(single) - median(empty)
        return median(serial), among_many, min(max(alone, among_many), ALONE_AT_MOST * among_many)

    # A disagreement counts only when it comes back: the figures are of different moments.
    disagreed = 0
    for _ in range(4):
        before = own()
        cpu_before_s = host.cpu_s()
        value, spent_s = host.timed_call("speedup", timeout_s=60)
        used_s = host.cpu_s() - cpu_before_s
        after = own()
        if not is_float(value):
            raise AnswerFailed(
                "value",
                f"`speedup` must return a finite float; it returned {type_name(value)}.",
                f"`speedup` 必须返回一个有限的浮点数；实际返回的是 {type_name(value)}。",
            )
        figures = sorted((before[0] / before[1], after[0] / after[1]))
        serial_s = min(before[0], after[0])
        evidence["reported"] = {"answer": value, "judge": figures, "took_s": spent_s, "cpu_s": used_s, "serial_s": serial_s}
        if spent_s < 0.7 * serial_s or used_s < 0.5 * serial_s:
            early = spent_s < 0.7 * serial_s
            did_en = f"returned after {units.si(spent_s, 's')}" if early else f"used {units.si(used_s, 's')} of CPU time"
            did_zh = f"在 {units.si(spent_s, 's')} 后就返回了" if early else f"只用了 {units.si(used_s, 's')} 的 CPU 时间"
            parts.add(
                "reported", 2, False,
                f"`speedup` {did_en}, but one serial loop alone takes {units.si(serial_s, 's')} here: it has to run both and measure them,"
                " not return a number known before.",
                f"`speedup` {did_zh}，而这里仅一次串行循环就需要 {units.si(serial_s, 's')}：它必须运行两者并测量，而不是返回一个事先知道的数。",
            )  # fmt: skip
            return
        least = min(before[0] / before[2], after[0] / after[2])
        evidence["reported"]["judge_alone"] = least
        ok = least / REPORT_WITHIN <= value <= figures[1] * REPORT_WITHIN
        if figures[1] / figures[0] <= REPORT_WITHIN:
            disagreed += not ok
            if ok or disagreed == 3:
                break
    else:
        parts.add("reported", 2, None, f"`speedup` could not be checked: the judge's own figures were {figures[0]:.3g}× and {figures[1]:.3g}×.",
                  f"无法核对 `speedup`：评测程序自己两次测得 {figures[0]:.3g}× 和 {figures[1]:.3g}×。")  # fmt: skip
        return
    shown = f"{figures[0]:.3g}–{figures[1]:.3g}×"
    parts.add(
        "reported", 2, ok,
        f"`speedup` says {value:.3g}×, the judge measured {shown}." if ok else
        f"`speedup` says {value:.3g}×, the judge measured {shown} for your `run_chains` at k = {K}, n = {N}, steps = {STEPS} (a factor of"
        f" {REPORT_WITHIN:g} is allowed). It is the serial loop's time ÷ run_chains' time, both warm, same inputs.",
        f"`speedup` 报告 {value:.3g}×，评测程序测得 {shown}。" if ok else
        f"`speedup` 报告 {value:.3g}×，而评测程序对你的 `run_chains`（k = {K}、n = {N}、steps = {STEPS}）测得 {shown}（允许相差"
        f" {REPORT_WITHIN:g} 倍）。它等于串行循环的时间 ÷ run_chains 的时间，两者都要预热，且输入相同。",
    )  # fmt: skip


def _figure(found) -> bytes:
    """Both samples, pair by pair."""
    from perflab import plot

    fig, ax = plot.subplots(height_in=2.8)
    pairs = range(1, len(found.reference_s) + 1)
    ax.plot(pairs, [s * 1e3 for s in found.answer_s], "o", color=plot.PALETTE[0], label="run_chains")
    ax.plot(pairs, [s * 1e3 for s in found.reference_s], "s", color=plot.PALETTE[1], label="serial loop")
    ax.set(xlabel="pair", ylabel="time (ms)", ylim=(0, 1.1 * ax.dataLim.y1))
    plot.legend(fig)
    return plot.png(fig, dpi=100)
