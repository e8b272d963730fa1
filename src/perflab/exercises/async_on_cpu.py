"""12.2: is the matrix product on the CPU still asynchronous? The answer is a measuring instrument.

It is judged against devices of known truth: `launch` and `wait` are the judge's own functions, and they really wait
a secret time, so only a real measurement can find it. Then against the judge's own measurement of a product on this
machine, made just before and just after.
"""

from __future__ import annotations

import math
import textwrap
import time
from dataclasses import dataclass, field, replace
from statistics import median, median_high, median_low

from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed, is_float
from perflab.wire import Proxy, Tensor, type_name

SLUG = "async-on-cpu"
TITLE = ("Asynchronous on the CPU?", "CPU 上还是异步的吗？")
ENTRY_POINTS = ("measure", "is_asynchronous", "survey")
MAX_POINTS = 10

TIMES_WITHIN, TIMES_PLUS_S = 0.15, 1e-3
SYNCHRONOUS_FROM, ASYNCHRONOUS_TO = 0.7, 0.3
CLEAR = 3.0  # times what is allowed: no noise of a machine that was right a moment before
SURVEY_WITHIN, SURVEY_CLEAR, SURVEY_CALM = 1.5, 1.8, 1.2
SIZE = 1024


@dataclass
class Device:
    """A device of known truth. `launch` returns after `launch_s`, the work is done after `total_s`.

    first_s: added to the first launch, as a library that sets itself up; scales: the work of one launch after the
    other, as multiples of `launch_s` and `total_s`, over and over.
    """

    name: tuple[str, str]
    launch_s: float
    total_s: float
    first_s: float = 0.0
    scales: tuple[float, ...] = (1.0,)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    misuse: str = ""
    _launched: tuple[float, float, float] | None = None

    def launch(self):
        began = time.perf_counter()
        if self._launched is not None:
            self.misuse = self.misuse or "launch"
        scale = self.scales[len(self.pairs) % len(self.scales)]
        extra = self.first_s if not self.pairs else 0.0
        _sleep_until(began + self.launch_s * scale + extra)
        self._launched = (began, time.perf_counter(), began + self.total_s * scale + extra)

    def wait(self):
        if self._launched is None:
            self.misuse = self.misuse or "wait"
            return
        began, returned, done = self._launched
        _sleep_until(done)
        self.pairs.append((returned - began, time.perf_counter() - began))
        self._launched = None

    def fresh(self) -> Device:
        """The same device, never used."""
        return replace(self, pairs=[], misuse="", _launched=None)

    def truth(self, near: tuple[float, float]) -> tuple[float, float]:
        """Medians of the pairs after the first, as this side saw them: (launch_s, total_s).

        Unequal work may have more than one: with two left out instead of one, or the lower or the upper of two middle ones.
        Of these the nearest to `near` is taken, what an answer says. Where they could be a minimum or a maximum, with few
        pairs, they are left out.
        """
        found, n = [], len(self.pairs)
        for which in (0, 1):
            times = [p[which] for p in self.pairs]
            medians = {median(times[1:])}
            if n >= 5 and n % 2:
                medians.add(median(times[2:]))
            if n >= 7:
                medians |= {median_low(times[1:]), median_high(times[1:])}
            found.append(min(medians, key=lambda m, which=which: abs(m - near[which])))
        return found[0], found[1]

    @property
    def asynchronous(self) -> bool:
        return self.launch_s / self.total_s <= ASYNCHRONOUS_TO


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def devices(rng) -> list[Device]:
    """The devices of one judgement, their times drawn anew."""
    work = [float(rng.uniform(0.0205, high)) for high in (0.027, 0.027, 0.027, 0.027, 0.0225)]
    made = [
        Device(("a synchronous device", "同步设备"), work[0] * rng.uniform(0.93, 0.99), work[0]),
        Device(("an asynchronous device", "异步设备"), 1e-4, work[1]),
        Device(("an asynchronous device with an expensive first call", "首次调用很慢的异步设备"), 2e-4, work[2],
               first_s=float(rng.uniform(0.10, 0.15))),
        Device(("an asynchronous device whose launch is slow", "提交较慢的异步设备"), work[3] * rng.uniform(0.2, 0.26), work[3]),
        # As many short launches as middle and long ones, whatever the number of repeats: minimum and mean are both far
        # from the median. None is shorter than 20 ms.
        Device(("a synchronous device with unequal work", "工作量不均的同步设备"), work[4] * rng.uniform(0.93, 0.99), work[4],
               scales=tuple(float(s) for s in rng.permutation([1.0, rng.uniform(2.2, 2.4), rng.uniform(7.6, 8.2)]))),
    ]  # fmt: skip
    return [made[i] for i in rng.permutation(len(made))]


# Pairs for is_asynchronous alone: far from 0.3 … 0.7, at every scale, so that only the ratio tells.
def classified_pairs(rng) -> list[tuple[float, float, bool]]:
    pairs = []
    for scale in (3e-4, 0.02, 3.0):
        total = float(scale * rng.uniform(0.8, 1.2))
        pairs += [(total * float(rng.uniform(0.01, 0.25)), total, True), (total * float(rng.uniform(0.75, 0.99)), total, False)]
    return [pairs[i] for i in rng.permutation(len(pairs))]


def classify(launch_s: float, total_s: float) -> bool | None:
    """The judge's own rule: None between the two thresholds."""
    ratio = launch_s / total_s
    return True if ratio <= ASYNCHRONOUS_TO else False if ratio >= SYNCHRONOUS_FROM else None


def judge(session: Session) -> Verdict:
    parts = Parts(SLUG, MAX_POINTS)
    evidence: dict = {"devices": []}
    host = session.answer()
    rows = []
    with parts.attempt("times", 4):
        rows = _judge_times(session, host, parts, evidence)
    if host.closed:
        host = session.answer()
    with parts.attempt("classification", 3):
        _judge_classification(session, host, rows, parts, evidence)
    if host.closed:
        host = session.answer()
    with parts.attempt("survey", 3):
        _judge_survey(session, host, parts, evidence)
    return parts.verdict(evidence=evidence, figure=_figure(evidence["devices"], evidence.get("survey", {})))


# ---------------------------------------------------------------- measure


def _pair(value, name: str) -> tuple[float, float]:
    """(launch_s, total_s) out of what came back. Raises AnswerFailed for another type."""
    if type(value) not in (tuple, list) or len(value) != 2 or not all(is_float(v) for v in value):
        got = type_name(value) if type(value) not in (tuple, list) else f"{type_name(value)} of {[type_name(v) for v in value][:4]}"
        raise AnswerFailed(
            "value",
            f"`{name}` must return two finite floats, (launch_s, total_s) in seconds; it returned {got}.",
            f"`{name}` 必须返回两个有限的浮点数 (launch_s, total_s)，单位为秒；实际返回的是 {got}。",
        )
    return value[0], value[1]


def _measure(host, device) -> dict:
    """One device measured by `measure` in `host`, beside what this side saw. Raises AnswerFailed for misuse."""
    late_s = host.late_s()
    value = host.call("measure", Proxy(device.launch), Proxy(device.wait), timeout_s=10, inference=False)
    late_s = host.late_s() - late_s
    launch_s, total_s = _pair(value, "measure")
    _check_use(device)
    true_launch_s, true_total_s = device.truth((launch_s, total_s))
    return {
        "device": device.name[0], "zh": device.name[1], "asynchronous": device.asynchronous, "pairs": len(device.pairs),
        "launch_s": launch_s, "total_s": total_s, "true_launch_s": true_launch_s, "true_total_s": true_total_s,
        "late_s": late_s,
    }  # fmt: skip


def _allowed_s(true_s: float) -> float:
    """By how much a time may be off."""
    return TIMES_WITHIN * true_s + TIMES_PLUS_S


def _error(row) -> float:
    """The larger of the two deviations, in units of what is allowed: above 1 is wrong."""
    return max(abs(row[k] - row[f"true_{k}"]) / _allowed_s(row[f"true_{k}"]) for k in ("launch_s", "total_s"))


def _judge_times(session, host, parts, evidence) -> list[dict]:
    asked, rows = [], evidence["devices"]
    for device in devices(session.rng):
        rows.append(_measure(host, device))
        asked.append((device, rows[-1]))
    # The plainest deviation first: a synchronous device shows best that the clock itself is the wrong one. Among plain
    # ones, the device that takes least time.
    suspects = sorted(
        ((d, r) for d, r in asked if _error(r) > 1),
        key=lambda dr: (
            not dr[0].asynchronous and dr[1]["launch_s"] < 0.5 * dr[1]["true_launch_s"],
            min(_error(dr[1]), CLEAR),
            -dr[1]["true_total_s"],
        ),
        reverse=True,
    )
    unclear = None
    for device, first in suspects:
        row, trusted = _asked_again(session, host, device, first)
        if row is not first:
            first["again"] = row
        if not trusted:
            unclear = unclear or row
        elif _error(row) > row["allowed"]:
            _blame(parts, device, row)
            return rows
    if unclear:
        parts.add(
            "times", 4, None,
            f"`measure` could not be checked on {unclear['device']}: the machine was so busy that the judge's own measurement was off too.",
            f"无法核对 `measure` 在「{unclear['zh']}」上的结果：机器太忙，评测程序自己的测量也不准。",
        )  # fmt: skip
    else:
        parts.add("times", 4, True, f"`measure` was right on all {len(rows)} devices, within 15 % + 1 ms.",
                  f"`measure` 在全部 {len(rows)} 个设备上都测对了（误差在 15 % + 1 ms 以内）。")  # fmt: skip
    return rows


def _asked_again(session, host, device, first) -> tuple[dict, bool]:
    """A deviation counts only when it comes back while the judge's own `measure` is right on the same device.

    The judge's instrument measures it before and after; as much as it is off itself, twice over, the answer may be off in
    addition. Times that the answer's process spent waiting for a core don't count. Returns the answer's best row, with its
    `allowed` error, and whether the machine could be trusted.
    """
    control = session.trusted(REFERENCE)
    rows = []
    for _ in range(5):
        before = _error(_measure(control, device.fresh()))
        row = _measure(host, device.fresh())
        if _error(row) <= 1:  # noise does not make a wrong figure right
            return row | {"allowed": 1.0}, True
        if _late(row):
            continue
        clear = min(_error(first), _error(row)) > CLEAR and before < 0.5
        off = before if clear else max(before, _error(_measure(control, device.fresh())))
        if off < 1:
            rows.append(row | {"allowed": min(1 + 2 * off, 2.0)})
            if clear or len(rows) == 3 or _error(row) <= rows[-1]["allowed"]:
                break
    best = min(rows, key=lambda r: _error(r) / r["allowed"], default=first)
    # one deviation that came back may be chance, unless it is large
    return best, bool(rows) and (clear or len(rows) > 1 or _error(best) <= best["allowed"])


def _late(row) -> bool:
    """Whether times are too long because the answer's process waited for a core: half of the pairs were late by what is too much."""
    over_s = max(row[k] - row[f"true_{k}"] for k in ("launch_s", "total_s"))
    return 0 < over_s * row["pairs"] / 2 <= row["late_s"]


def _blame(parts, device, row) -> None:
    what = max(("launch_s", "total_s"), key=lambda k: abs(math.log(max(row[k], 1e-9) / max(row[f"true_{k}"], 1e-9))))
    got, true = row[what], row[f"true_{what}"]
    hint_en, hint_zh = _hint(device, what, row)
    parts.add(
        "times", 4, False,
        f"`measure` on {device.name[0]}: your {what} is {_ms(got)}, the judge saw {_ms(true)}"
        f" (median of {row['pairs'] - 1} pairs, first left out; 15 % + 1 ms allowed). {hint_en}",
        f"`measure` 在「{device.name[1]}」上：你的 {what} 是 {_ms(got)}，评测程序看到的是 {_ms(true)}"
        f"（去掉第一次后 {row['pairs'] - 1} 次的中位数；允许误差 15 % + 1 ms）。{hint_zh}",
    )  # fmt: skip


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:.3g} ms"


def _check_use(device: Device) -> None:
    if device.misuse == "launch" or device._launched is not None:
        raise AnswerFailed(
            "protocol",
            "`measure` called `launch()` again before `wait()`. One measurement is exactly one launch followed by one wait:"
            " with more in flight, a bounded queue makes an asynchronous device look synchronous.",
            "`measure` 在 `wait()` 之前又调用了 `launch()`。一次测量就是一次 launch 加一次 wait：如果同时有多项任务，"
            "有界队列会让异步设备看起来像是同步的。",
        )
    if device.misuse == "wait":
        raise AnswerFailed(
            "protocol",
            "`measure` called `wait()` with nothing launched. One measurement is exactly one launch followed by one wait.",
            "`measure` 在没有提交任务时调用了 `wait()`。一次测量就是一次 launch 加一次 wait。",
        )
    if len(device.pairs) < 2:
        raise AnswerFailed(
            "protocol",
            f"`measure` made {len(device.pairs)} measurement(s) of a device. Repeat, leave the first out (some devices have a"
            " first-call cost) and return medians.",
            f"`measure` 对一个设备只测了 {len(device.pairs)} 次。请多次重复，去掉第一次（有些设备首次调用有额外开销），再返回中位数。",
        )


def _hint(device: Device, what: str, row) -> tuple[str, str]:
    got, true, launch_s = row[what], row[f"true_{what}"], row["true_launch_s"]
    launch_right = abs(row["launch_s"] - launch_s) < _allowed_s(launch_s)
    if what == "total_s" and launch_s > 3 * TIMES_PLUS_S and launch_right and abs(got - (true - launch_s)) < _allowed_s(got):
        return (
            "Did its clock start when the launch had returned? The total counts from before the launch.",
            "是否在 launch 返回之后才开始计总时间？total_s 从 launch 之前算起。",
        )
    if what == "total_s" and not math.isclose(got, true, rel_tol=0.5) and got < true and device.asynchronous:
        return (
            "Did the clock stop before `wait()` returned? The total counts from before the launch until all is finished.",
            "是否在 `wait()` 返回之前就停表了？total_s 从 launch 之前算起，到全部完成为止。",
        )
    if got < 0.15 * true:
        return (
            "Is it CPU time? A process that waits uses none: take wall-clock time, `time.perf_counter`.",
            "用的是 CPU 时间吗？等待时进程不消耗 CPU 时间：请使用墙上时钟 `time.perf_counter`。",
        )
    if device.first_s and got > true:
        return ("Is the first call in it? Leave it out.", "是否把第一次调用也算进去了？请把它去掉。")
    if len(device.scales) > 1 and got > true:
        return (
            "A few slow runs pull a mean up: return the median.",
            "少数几次慢的运行会拉高平均值：请返回中位数。",
        )
    if len(device.scales) > 1:
        return ("The work varies: return the median, not the minimum.", "每次的工作量不同：请返回中位数，而不是最小值。")
    return (
        "Times are in seconds, both counted from before the launch.",
        "时间以秒为单位，两个时间都从 launch 之前算起。",
    )


# ---------------------------------------------------------------- is_asynchronous


def _judge_classification(session, host, rows, parts, evidence) -> None:
    # Only pairs near the truth, and of the shares that the task promises: is_asynchronous is not blamed for `measure`.
    near = [r for r in rows if _error(r) <= 1 and classify(r["launch_s"], r["total_s"]) is r["asynchronous"]]
    asked = [(r["launch_s"], r["total_s"], r["asynchronous"]) for r in near]
    asked += classified_pairs(session.rng)
    mistakes = []
    for launch_s, total_s, truth in asked:
        said = host.call("is_asynchronous", launch_s, total_s, timeout_s=5, inference=False)
        if type(said) is not bool:
            raise AnswerFailed(
                "value",
                f"`is_asynchronous` must return True or False; it returned {type_name(said)}.",
                f"`is_asynchronous` 必须返回 True 或 False；实际返回的是 {type_name(said)}。",
            )
        if said is not truth:
            mistakes.append((launch_s, total_s, truth))
    evidence["classified"] = {"asked": len(asked), "wrong": len(mistakes)}
    if not mistakes:
        parts.add("classification", 3, True, f"`is_asynchronous` told all {len(asked)} apart.",
                  f"`is_asynchronous` 对全部 {len(asked)} 组时间都判断正确。")  # fmt: skip
        return
    launch_s, total_s, truth = mistakes[0]
    share = launch_s / total_s
    parts.add(
        "classification", 3, False,
        f"`is_asynchronous({launch_s:.3g}, {total_s:.3g})` should be {truth}: the launch returned after {share:.0%} of the total"
        f" ({len(mistakes)} of {len(asked)} wrong). Compare the two times with each other: an absolute limit fits one device only.",
        f"`is_asynchronous({launch_s:.3g}, {total_s:.3g})` 应为 {truth}：launch 在总时间的 {share:.0%} 处返回"
        f"（{len(asked)} 组中错了 {len(mistakes)} 组）。请比较这两个时间之比：固定的时间界限只适用于某一个设备。",
    )  # fmt: skip


# ---------------------------------------------------------------- survey

REFERENCE = """
import time
from statistics import median
import torch

def measure(launch, wait, repeats=5):
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        launch()
        launched = time.perf_counter()
        wait()
        times.append((launched - start, time.perf_counter() - start))
    return median(t[0] for t in times[1:]), median(t[1] for t in times[1:])

def product(library, a, b):
    wait = torch.cuda.synchronize if library == "torch_cuda" else lambda: None
    return measure(lambda: a @ b, wait)

def has_cuda():
    return torch.cuda.is_available()

def on_cuda(a, b):
    return product("torch_cuda", a.cuda(), b.cuda())
"""


def _judge_survey(session, host, parts, evidence) -> None:
    reference = session.trusted(REFERENCE)
    cuda = reference.call("has_cuda")
    a, b = (session.rng.standard_normal((SIZE, SIZE)).astype("float32") for _ in range(2))

    def measured() -> dict:
        found = {
            "numpy_cpu": reference.call("product", "numpy_cpu", a, b),
            "torch_cpu": reference.call("product", "torch_cpu", Tensor(a), Tensor(b)),
        }
        if cuda:
            found["torch_cuda"] = reference.call("on_cuda", Tensor(a), Tensor(b))
        return found

    # A disagreement counts only when it comes back, and an agreement only where the judge's own two runs agree or the
    # shortest times of several rounds do: the measurements are of different moments, and noise only adds to them.
    disagreed, answers, ours = 0, [], []
    for _ in range(4):
        before = measured()
        cpu_before_s = host.cpu_s()
        value, spent_s = host.timed_call("survey", timeout_s=15, inference=False)
        cpu_used_s = host.cpu_s() - cpu_before_s
        survey = _checked_survey(value, cuda)
        after = measured()
        evidence["survey"] = {"answer": survey, "before": before, "after": after, "took_s": spent_s, "cpu_s": cpu_used_s}
        claimed_s = sum(pair[1] for pair in survey.values())
        if spent_s < claimed_s or cpu_used_s < 0.5 * sum(survey[k][1] for k in ("numpy_cpu", "torch_cpu")):
            parts.add(
                "survey", 3, False,
                f"`survey` reports products that took {_ms(claimed_s)} together, but it returned after {_ms(spent_s)} and used"
                f" {_ms(cpu_used_s)} of CPU time: it has to run the products and measure them, in seconds.",
                f"`survey` 报告的乘积共需 {_ms(claimed_s)}，但它在 {_ms(spent_s)} 后就返回了，只用了 {_ms(cpu_used_s)} 的 CPU"
                " 时间：它必须真正运行这些乘积并测量，单位是秒。",
            )  # fmt: skip
            return
        drift = max(_factor(before[k][1], after[k][1]) for k in before)
        wrong = _survey_mistakes(survey, before, after)
        if drift <= SURVEY_WITHIN and wrong is not None:
            disagreed += bool(wrong)
            if disagreed == 3 or disagreed == 2 and wrong and max(_factor(got, true) for _, _, got, true in wrong) > SURVEY_CLEAR:
                break
            if not wrong and drift <= SURVEY_CALM:
                break
        answers, ours = [*answers, survey], [*ours, before, after]
        if len(answers) >= 3 and _survey_mistakes(_shortest(answers), _shortest(ours), _shortest(ours)) == []:
            wrong = []
            break
    else:
        parts.add("survey", 3, None,
                  f"`survey` could not be compared: the judge's own measurements differ {drift:.2g}-fold within a minute.",
                  f"无法核对 `survey`：评测程序自己的测量在一分钟内相差 {drift:.2g} 倍。")  # fmt: skip
        return
    if wrong:
        key, what, got, true = wrong[0]
        if what == "total":
            en = (f"`survey` says one {SIZE}×{SIZE} float32 product takes {_ms(got)} for `{key}`; the judge measured {_ms(true)} on"
                  " the same core, just before and after (a factor of 1.5 is allowed). Check size, dtype, unit (seconds) and warm-up.")  # fmt: skip
            zh = (f"`survey` 中 `{key}` 的一次 {SIZE}×{SIZE} float32 乘积为 {_ms(got)}；评测程序前后在同一核心上测得 {_ms(true)}"
                  "（允许相差 1.5 倍）。请检查矩阵大小、数据类型、单位（秒）以及是否预热。")  # fmt: skip
        else:
            en = (f"`survey` for `{key}`: your launch returned after {got:.0%} of the total, the judge's after {true:.0%}."
                  " Time the same call for both, and wait for the value.")  # fmt: skip
            zh = (f"`survey` 中 `{key}`：你的 launch 在总时间的 {got:.0%} 处返回，评测程序测得 {true:.0%}。"
                  "两个时间要对同一次调用计时，并等待结果算出。")  # fmt: skip
        parts.add("survey", 3, False, en, zh)
    else:
        listed = ", ".join(f"{k} {_ms(v[1])}" for k, v in survey.items())
        parts.add("survey", 3, True, f"`survey` agrees with the judge's own measurement ({listed}).",
                  f"`survey` 与评测程序自己的测量一致（{listed}）。")  # fmt: skip


def _survey_mistakes(survey, before, after) -> list[tuple] | None:
    """(key, what, said, measured) for each that disagrees with the judge; None where the judge's own class is unclear."""
    wrong = []
    for key, (launch_s, total_s) in survey.items():
        true_launch_s, true_total_s = (math.sqrt(before[key][i] * after[key][i]) for i in (0, 1))
        low, high = sorted((before[key][1], after[key][1]))
        if not low / SURVEY_WITHIN <= total_s <= high * SURVEY_WITHIN:
            wrong.append((key, "total", total_s, true_total_s))
        ours = classify(true_launch_s, true_total_s)
        if ours is None:
            return None
        if classify(launch_s, total_s) is not ours:
            wrong.append((key, "class", launch_s / total_s, true_launch_s / true_total_s))
    return wrong


def _shortest(surveys) -> dict[str, tuple[float, float]]:
    """Of several surveys, the pair with the shortest total for each key."""
    return {key: min((survey[key] for survey in surveys), key=lambda pair: pair[1]) for key in surveys[0]}


def _factor(a: float, b: float) -> float:
    return max(a, b) / max(min(a, b), 1e-9)


def _checked_survey(value, cuda: bool) -> dict[str, tuple[float, float]]:
    keys = ("numpy_cpu", "torch_cpu", "torch_cuda")
    if type(value) is not dict or set(value) != set(keys):
        got = sorted(map(str, value)) if type(value) is dict else type_name(value)
        raise AnswerFailed(
            "value",
            f"`survey` must return a dict with the keys {', '.join(keys)}; it returned {got}.",
            f"`survey` 必须返回一个字典，键为 {', '.join(keys)}；实际返回的是 {got}。",
        )
    if (value["torch_cuda"] is None) is cuda:
        raise AnswerFailed(
            "value",
            "`survey` must give None for `torch_cuda` exactly where there is no GPU" + (": there is one here." if cuda else "."),
            "`survey` 的 `torch_cuda` 只有在没有 GPU 时才应为 None" + ("：这台机器有 GPU。" if cuda else "。"),
        )
    pairs = {k: _pair(value[k], f"survey()[{k!r}]") for k in keys if k != "torch_cuda" or cuda}
    for key, (launch_s, total_s) in pairs.items():
        if not 0 <= launch_s <= total_s or total_s <= 0:
            raise AnswerFailed(
                "value",
                f"`survey` gives {key} = ({launch_s:.3g}, {total_s:.3g}): the launch lies within the total, and both take time.",
                f"`survey` 给出 {key} = ({launch_s:.3g}, {total_s:.3g})：launch_s 应不大于 total_s，且总时间应大于零。",
            )
    return pairs


# ---------------------------------------------------------------- the picture


def _figure(rows, survey) -> bytes | None:
    """Bars a device: the answer's launch and total over the judge's."""
    from perflab import plot

    shown = [(r["device"], (r["launch_s"], r["total_s"]), (r["true_launch_s"], r["true_total_s"])) for r in rows]
    for key, pair in survey.get("answer", {}).items():
        shown.append((f"survey: {key}", pair, survey["before"][key]))
    if not shown:
        return None
    fig, ax = plot.subplots(height_in=0.9 + 0.55 * len(shown))
    for i, (_, answer, true) in enumerate(shown):
        for offset, (launch_s, total_s), colour in ((-0.18, answer, plot.PALETTE[0]), (0.18, true, plot.PALETTE[1])):
            ax.barh(i + offset, total_s * 1e3, height=0.32, color=colour, alpha=0.35)
            ax.barh(i + offset, launch_s * 1e3, height=0.32, color=colour)
    ax.set(yticks=range(len(shown)), yticklabels=[textwrap.fill(s[0], 26) for s in shown], xlabel="time (ms)")
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    from matplotlib.patches import Patch

    plot.legend(fig, columns=2, handles=[Patch(color=plot.PALETTE[0], label="your measurement"), Patch(color=plot.PALETTE[1], label="the judge's"),
                              Patch(color=plot.GREY, label="until launch returned"), Patch(color=plot.GREY, alpha=0.35, label="until finished")])  # fmt: skip
    return plot.png(fig, dpi=100)
