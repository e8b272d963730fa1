"""12.3: does the framework run eight independent operations in parallel by itself? The answer is an instrument.

`concurrency` is judged on devices of known truth: `run_one` and `run_all` are the judge's functions and take a
secret time. `torch_concurrency` is judged against the judge's own measurement; since that is near 1, a constant
would agree, so the products must also be seen by torch's profiler and in the process's CPU time.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass, field, replace
from statistics import median

from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed, is_float
from perflab.wire import Proxy, type_name

SLUG = "eight-operations"
TITLE = ("Eight independent operations", "八个相互独立的运算")
ENTRY_POINTS = ("concurrency", "torch_concurrency")
MAX_POINTS = 10

WITHIN = 0.15
CLEAR = 2.0  # times what is allowed, twice: no noise of a machine on which the judge's own instrument was right
TORCH_WITHIN = 1.3
LEAST_SIZE = 400
PRODUCTS = 8


@dataclass
class Device:
    """n operations of known lengths; `workers` of them run at once in `run_all`, the longest waiting first.

    startup_s is paid by the very first call of either function.
    """

    workers: int
    lengths_s: list[float]
    startup_s: float
    alone_s: dict[int, list[float]] = field(default_factory=dict)
    together_s: list[float] = field(default_factory=list)
    used: bool = False

    def _spend(self, seconds: float) -> float:
        began = time.perf_counter()
        if not self.used:
            self.used = True
            time.sleep(self.startup_s + seconds)
            return -1.0
        time.sleep(seconds)
        return time.perf_counter() - began

    def run_one(self, i):
        if type(i) is not int or not 0 <= i < len(self.lengths_s):
            raise TypeError(f"run_one takes an operation's number from 0 to {len(self.lengths_s) - 1}, not {i!r}")
        spent = self._spend(self.lengths_s[i])
        self.alone_s.setdefault(i, [])
        if spent >= 0:
            self.alone_s[i].append(spent)

    def run_all(self):
        spent = self._spend(makespan(self.lengths_s, self.workers))
        if spent >= 0:
            self.together_s.append(spent)

    def truth(self) -> float:
        """Σ time(run_one(i)) ÷ time(run_all()), by the times that really passed here where there are some."""
        alone = sum(median(self.alone_s.get(i) or [length]) for i, length in enumerate(self.lengths_s))
        return alone / median(self.together_s or [makespan(self.lengths_s, self.workers)])

    def fresh(self) -> Device:
        return replace(self, alone_s={}, together_s=[], used=False)


def makespan(lengths_s: list[float], workers: int) -> float:
    """When `workers` are done with all, each taking the longest operation that waits."""
    free = [0.0] * workers
    for length in sorted(lengths_s, reverse=True):
        i = free.index(min(free))
        free[i] += length
    return max(free)


def devices(rng) -> list[Device]:
    """One device each of 1, 2, 4 and 8 workers, with unequal operations, in random order."""
    made = []
    for workers in (1, 2, 4, 8):
        n = 8 if workers == 8 else int(rng.integers(6, 10))
        # two long operations among short ones: n times one of them, or n times the median, says nothing about the sum
        lengths = [float(rng.uniform(0.004, 0.006)) for _ in range(n)]
        for i in rng.permutation(n)[:2]:
            lengths[i] = float(rng.uniform(0.018, 0.022))
        made.append(Device(workers, lengths, float(rng.uniform(0.15, 0.25))))
    return [made[i] for i in rng.permutation(len(made))]


def judge(session: Session) -> Verdict:
    parts = Parts(SLUG, MAX_POINTS)
    rows: list[dict] = []
    evidence: dict = {"devices": rows}
    host = session.answer()
    with parts.attempt("concurrency", 6):
        _judge_concurrency(session, host, parts, rows)
    if host.closed:
        host = session.answer()
    with parts.attempt("torch", 4):
        _judge_torch(session, host, parts, evidence)
    return parts.verdict(evidence=evidence, figure=_figure(rows, evidence.get("torch")))


REFERENCE = """
import time
from statistics import median
import torch

def concurrency(run_one, run_all, n):
    def took(f, *args):
        start = time.perf_counter()
        f(*args)
        return time.perf_counter() - start
    run_one(0)
    alone = [median(took(run_one, i) for _ in range(3)) for i in range(n)]
    return sum(alone) / median(took(run_all) for _ in range(3))

def products(size):
    a = torch.randn(8, size, size)
    alone, together = [[] for _ in range(8)], []
    for _ in range(6):
        for i in range(8):
            start = time.perf_counter()
            torch.mm(a[i], a[i])
            alone[i].append(time.perf_counter() - start)
        start = time.perf_counter()
        for i in range(8):
            torch.mm(a[i], a[i])
        together.append(time.perf_counter() - start)
    return sum(map(min, alone)) / min(together)

def one_product(size):
    a = torch.randn(size, size)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - start)
    return min(times)
"""

# Runs in the answer's process: what torch's own profiler saw of torch_concurrency.
PROFILED = """
import json, torch

def profiled():
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True,
                                experimental_config=every_thread) as profile:
        value = answer["torch_concurrency"]()
    profile.export_chrome_trace("trace.json")
    with open("trace.json") as f:
        events = json.load(f)["traceEvents"]
    found = []
    for e in events:
        a = e.get("args", {})
        if e.get("name") in ("aten::mm", "aten::bmm", "aten::addmm") and e.get("ph") == "X":
            found.append([e["name"], str(a.get("Input Dims")), str(a.get("Input type")), str(e.get("tid")), [
                list(d) for d in a.get("Input Dims", []) if d]])
    return value, found
"""


def _value(value, name: str) -> float:
    if not is_float(value):
        raise AnswerFailed(
            "value",
            f"`{name}` must return a finite float; it returned {type_name(value)}.",
            f"`{name}` 必须返回一个有限的浮点数；实际返回的是 {type_name(value)}。",
        )
    return value


def _ask(host, device: Device) -> dict:
    n = len(device.lengths_s)
    value = _value(host.call("concurrency", Proxy(device.run_one), Proxy(device.run_all), n, timeout_s=20, inference=False), "concurrency")
    missing = [i for i in range(n) if i not in device.alone_s]
    if missing or not (device.together_s or device.used and not device.alone_s):
        what = f"run_one({missing[0]})" if missing else "run_all()"
        raise AnswerFailed(
            "protocol",
            f"`concurrency` never called `{what}`. Operations differ in length: every one has to be measured alone, and all together.",
            f"`concurrency` 没有调用过 `{what}`。各个运算长短不一：每一个都要单独测量，还要测量一起运行的时间。",
        )
    return {"workers": device.workers, "n": n, "answer": value, "truth": device.truth()}


def _error(row) -> float:
    return abs(row["answer"] / row["truth"] - 1) / WITHIN


def _judge_concurrency(session, host, parts, rows: list[dict]) -> None:
    wrong, unclear = [], []
    control = None
    for device in devices(session.rng):
        row = _ask(host, device)
        if _error(row) > 1:
            # counted only when it comes back while the judge's own instrument is right on the same device
            control = control or session.trusted(REFERENCE)
            again = []
            for _ in range(4):
                if _error(_ask(control, device.fresh())) < 0.5:
                    again.append(_ask(host, device.fresh()))
                    if len(again) == 2 or _error(again[-1]) <= 1 or min(_error(row), _error(again[-1])) > CLEAR:
                        break
            clear = bool(again) and min(_error(row), _error(again[-1])) > CLEAR
            row = min(again, key=_error) if again else row
            if not again or _error(row) > 1 and len(again) == 1 and not clear:  # one that came back may be chance
                unclear.append((device, row))
            elif _error(row) > 1:
                wrong.append((device, row))
        rows.append(row)
    if wrong:
        _, row = max(wrong, key=lambda w: _error(w[1]))
        hint_en, hint_zh = _hint(wrong)
        parts.add(
            "concurrency", 6, False,
            f"`concurrency` on a device that runs {row['n']} operations of unequal length: you say {row['answer']:.3g} in flight, it was"
            f" {row['truth']:.3g} (15 % allowed). {hint_en}",
            f"`concurrency`：在一台运行 {row['n']} 个长短不一的运算的设备上，你的结果是平均 {row['answer']:.3g} 个同时进行，"
            f"实际为 {row['truth']:.3g}（允许误差 15 %）。{hint_zh}",
        )  # fmt: skip
    elif unclear:
        parts.add("concurrency", 6, None, "`concurrency` could not be checked: the machine was so busy that the judge's own figure was off too.",
                  "无法核对 `concurrency`：机器太忙，评测程序自己的结果也不准。")  # fmt: skip
    else:
        said = ", ".join(f"{r['answer']:.2g}" for r in sorted(rows, key=lambda r: r["truth"]))
        parts.add("concurrency", 6, True, f"`concurrency` was right on all {len(rows)} devices ({said} in flight).",
                  f"`concurrency` 在全部 {len(rows)} 台设备上都正确（平均同时进行 {said} 个）。")  # fmt: skip


def _hint(wrong: list[tuple[Device, dict]]) -> tuple[str, str]:
    """What explains every one of the wrong figures, noise included; one alone is explained by chance."""
    near = 2 * WITHIN

    def upside_down(device, row) -> bool:
        return abs(row["answer"] * row["truth"] - 1) < near < abs(row["truth"] - 1)

    def with_start_up(device, row) -> bool:
        total, together = sum(device.lengths_s), makespan(device.lengths_s, device.workers)
        either = ((total + device.startup_s) / together, total / (together + device.startup_s))
        return any(abs(row["answer"] / figure - 1) < near for figure in either)

    if len(wrong) > 1 and all(upside_down(*w) for w in wrong):
        return ("Is the ratio upside down? It is the sum of the single times ÷ the time of all together.",
                "比值是否写反了？应为各个运算单独用时之和 ÷ 一起运行的用时。")  # fmt: skip
    if len(wrong) > 1 and all(with_start_up(*w) for w in wrong):
        return ("Is the start-up cost in it? The very first call, of either function, takes longer: make one that is not counted.",
                "是否把启动开销算进去了？两个函数中最先调用的那一次会更慢：先调用一次，不计入结果。")  # fmt: skip
    return ("It is Σ time(run_one(i)) ÷ time(run_all()), in wall-clock time, each operation measured, the first call of all left out.",
            "它等于 Σ time(run_one(i)) ÷ time(run_all())：使用墙上时钟，每个运算都要测量，并去掉最先的一次调用。")  # fmt: skip


def _judge_torch(session, host, parts, evidence) -> None:
    host.define(PROFILED)
    reference = session.trusted(REFERENCE)
    product_s = reference.call("one_product", LEAST_SIZE)
    value, events = host.call("$profiled", timeout_s=60, inference=False)
    value = _value(value, "torch_concurrency")
    large = [e for e in events if _is_large(e)] if type(events) is list else []
    evidence["torch"] = {"answer": value, "products": len(large), "one_product_s": product_s}
    if len(large) < PRODUCTS:
        parts.add(
            "torch", 4, False,
            f"`torch_concurrency` returned {value:.3g}, but torch's profiler saw {len(large)} float32 products of at least"
            f" {LEAST_SIZE}×{LEAST_SIZE} in it; eight are asked. It has to run them, not to know the result.",
            f"`torch_concurrency` 返回了 {value:.3g}，但 torch 的性能分析器只看到 {len(large)} 次不小于 {LEAST_SIZE}×{LEAST_SIZE} 的 float32"
            " 乘法，而题目要求八次。它必须真正运行这些乘法，而不是事先知道结果。",
        )  # fmt: skip
        return
    if len({e[3] for e in large}) > 1:
        parts.add("torch", 4, False, "`torch_concurrency` issued its products from several threads; the question is what torch does by itself: issue all from one.",
                  "`torch_concurrency` 从多个线程发出了乘法；问题是 torch 自己会怎么做：请全部从同一个线程发出。")  # fmt: skip
        return
    disagreed = 0  # counts only when it comes back: the figures are of different moments
    for _ in range(4):
        before = reference.call("products", LEAST_SIZE, timeout_s=30)
        # the profiler runs in the answer's process and can be deceived there; CPU time is counted outside, and it
        # comes in steps of 10 ms, hence three calls
        before_s, began = host.cpu_s(), time.perf_counter()
        values = [_value(host.call("torch_concurrency", timeout_s=60, inference=False), "torch_concurrency") for _ in range(3)]
        used_s, spent_s = host.cpu_s() - before_s, time.perf_counter() - began
        value = median(values)
        figures = sorted((before, reference.call("products", LEAST_SIZE, timeout_s=30)))
        evidence["torch"] |= {"answer": value, "judge": figures, "cpu_s": used_s, "took_s": spent_s}
        needed_s = 3 * PRODUCTS * product_s
        if min(used_s, spent_s) < 0.5 * needed_s:
            parts.add(
                "torch", 4, False,
                f"`torch_concurrency`, called three times, used {used_s * 1e3:.2g} ms of CPU time; three times eight products take"
                f" {needed_s * 1e3:.2g} ms here. It has to run them.",
                f"`torch_concurrency` 调用三次共用了 {used_s * 1e3:.2g} ms 的 CPU 时间，而这里三组各八次乘法需要 {needed_s * 1e3:.2g} ms。"
                "必须真正运行这些乘法。",
            )  # fmt: skip
            return
        ok = figures[0] / TORCH_WITHIN <= value <= figures[1] * TORCH_WITHIN
        if figures[1] / figures[0] <= TORCH_WITHIN:
            disagreed += not ok
            if ok or disagreed == 3:
                break
    else:
        parts.add("torch", 4, None, f"`torch_concurrency` could not be checked: the judge's own figures were {figures[0]:.2g} and {figures[1]:.2g}.",
                  f"无法核对 `torch_concurrency`：评测程序自己两次测得 {figures[0]:.2g} 和 {figures[1]:.2g}。")  # fmt: skip
        return
    parts.add(
        "torch", 4, ok,
        f"`torch_concurrency` says {value:.2g} in flight; the judge measured {figures[0]:.2g}–{figures[1]:.2g}."
        + (" Eager mode on the CPU runs one after the other." if ok else " A factor of 1.3 is allowed; every operation alone and all eight together, warm."),
        f"`torch_concurrency` 的结果是平均 {value:.2g} 个同时进行；评测程序测得 {figures[0]:.2g}–{figures[1]:.2g}。"
        + ("CPU 上的即时执行模式是一个接一个运行的。" if ok else "允许相差 1.3 倍；八个运算各自单独、以及一起运行都要预热后测量。"),
    )  # fmt: skip


def _is_large(event) -> bool:
    """A profiler's record of a float32 product of at least 400×400 (plain data from the answer's process: checked)."""
    try:
        name, _, types, _, shapes = event
        sizes = [d for shape in shapes[-2:] for d in shape[-2:]]
        return len(sizes) == 4 and min(sizes) >= LEAST_SIZE and "float" in types and not any(t in types for t in ("double", "half", "bfloat"))
    except (TypeError, ValueError):
        return False


def _figure(rows, torch_row) -> bytes | None:
    from perflab import plot

    shown = [(f"{r['n']} operations, {r['workers']} at once", r["answer"], r["truth"]) for r in sorted(rows, key=lambda r: r["workers"])]
    if torch_row and "judge" in torch_row:
        shown.append(("torch, eager, this machine", torch_row["answer"], sum(torch_row["judge"]) / 2))
    if not shown:
        return None
    fig, ax = plot.subplots(height_in=0.9 + 0.5 * len(shown))
    for i, (_, got, true) in enumerate(shown):
        ax.barh(i - 0.18, got, height=0.32, color=plot.PALETTE[0], label=None if i else "your figure")
        ax.barh(i + 0.18, true, height=0.32, color=plot.PALETTE[1], label=None if i else "the judge's")
    ax.set(yticks=range(len(shown)), yticklabels=[textwrap.fill(s[0], 24) for s in shown], xlabel="operations in flight (mean)")
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    plot.legend(fig)
    return plot.png(fig, dpi=100)
