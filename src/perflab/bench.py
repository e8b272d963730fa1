"""Timing that survives a noisy machine: interleaved pairs, and an interval for the median of their ratios.

Two pieces of work are compared by their *paired ratio*: in every round each runs once, in random order, close
together in time, so that what slows the machine slows both. The ratio of a pair has a median; its confidence
interval comes from order statistics alone (David & Nagaraja, *Order Statistics*, 3rd ed., 7.1), which assumes
nothing about how the noise is distributed. Sampling goes on, 11 → 22 → 44 → 84 pairs, until the interval lies
clear of the threshold. Every round also runs the reference a second time: that A/A ratio is known to be 1, so if
its interval is off, the machine could not be trusted in that minute and nothing is decided.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import median

LOOKS = (11, 22, 44, 84)
CONFIDENCE = 0.99
CONTROL_TOLERANCE = 1.05


@lru_cache
def interval_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Ranks (0-based, both included) of the order statistics that enclose the median of `n` independent samples.

    The narrowest symmetric pair whose coverage, from the binomial(n, ½) distribution, is at least `confidence`.
    Raises ValueError where even minimum and maximum do not reach it.
    """
    if n < 1 or 1 - 2 * 0.5**n < confidence:
        raise ValueError(f"{n} samples can't give a {confidence:.0%} interval of the median; take more")
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(n, rank) * 0.5**n  # P(fewer than rank + 1 samples below the median)
        if 1 - 2 * tail < confidence:
            return rank - 1, n - rank
        rank += 1


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """(median, low, high) of `values`: the order-statistic interval, distribution-free."""
    ordered = sorted(values)
    low, high = interval_ranks(len(ordered), confidence)
    return median(ordered), ordered[low], ordered[high]


@dataclass
class Comparison:
    """What :func:`paired_ratio` found.

    `faster` is True where the reference takes more than `threshold` times as long as the answer, False where it
    does not, None where that can't be told; `reason` then says why. Times in seconds; `ratio` = reference ÷ answer.
    """

    threshold: float
    ratio: float
    low: float
    high: float
    control: float
    control_low: float
    control_high: float
    pairs: int
    seconds: float
    faster: bool | None
    reason: str = ""
    reference_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)

    def as_dict(self) -> dict:
        """Plain data, raw samples included."""
        return asdict(self)

    def __str__(self) -> str:
        spread = f"{self.ratio:.3g}× ({self.low:.3g}–{self.high:.3g}, 99 %, n = {self.pairs})"
        return f"{spread}, control {self.control:.3g}×"


def decide(low: float, high: float, threshold: float) -> bool | None:
    """True above the threshold, False below it, None where the interval straddles it."""
    return True if low > threshold else False if high < threshold else None


def control_is_off(low: float, high: float) -> bool:
    """True where the A/A interval lies wholly outside 1/1.05 … 1.05: the reference differs from itself."""
    return low > CONTROL_TOLERANCE or high < 1 / CONTROL_TOLERANCE


def paired_ratio(
    reference: Callable[[], float],
    answer: Callable[[], float],
    threshold: float,
    *,
    max_s: float = 60.0,
    looks: Sequence[int] = LOOKS,
    rng: random.Random | None = None,
) -> Comparison:
    """Compares two pieces of work until it is clear whether the answer is more than `threshold` times as fast.

    reference, answer: each call does the work once, on fresh input, and returns the seconds it took.
    max_s: the sampling stops there at the latest. One call of each is made first and not counted.
    Source of the rule: shared pairing as in Duet benchmarking (Bulej et al., ICPE 2020); interval as in the module's text.
    """
    rng = rng or random.Random()
    began = time.monotonic()
    reference(), answer()
    ratios, controls, reference_s, answer_s = [], [], [], []
    for look in looks:
        while len(ratios) < look and (time.monotonic() - began < max_s or len(ratios) < looks[0]):
            seconds = {}
            order = ["first", "second", "answer"]
            rng.shuffle(order)
            for name in order:
                seconds[name] = max(answer() if name == "answer" else reference(), 1e-9)
            ratios.append(seconds["first"] / seconds["answer"])
            controls.append(seconds["second"] / seconds["first"])
            reference_s.append(seconds["first"])
            answer_s.append(seconds["answer"])
            if time.monotonic() - began > 2 * max_s:
                break
        if len(ratios) < looks[0]:
            break
        ratio, low, high = median_interval(ratios)
        control, control_low, control_high = median_interval(controls)
        off = control_is_off(control_low, control_high)
        verdict = None if off else decide(low, high, threshold)
        if verdict is not None or len(ratios) < look:
            break
    seconds_spent = time.monotonic() - began
    if len(ratios) < looks[0]:
        nan = math.nan
        return Comparison(threshold, median(ratios) if ratios else nan, nan, nan, nan, nan, nan, len(ratios), seconds_spent,
                          None, "too slow to sample often enough", reference_s, answer_s)  # fmt: skip
    reason = ""
    if verdict is None:
        reason = "the reference differs from itself: the machine was busy" if off else "the interval straddles the threshold"
    return Comparison(threshold, ratio, low, high, control, control_low, control_high, len(ratios), seconds_spent,
                      verdict, reason, reference_s, answer_s)  # fmt: skip


@dataclass
class Timing:
    """Samples of one piece of work, in seconds a call."""

    samples_s: list[float]
    calls_per_sample: int

    @property
    def median_s(self) -> float:
        return median(self.samples_s)

    @property
    def interval_s(self) -> tuple[float, float]:
        """The 99 % interval of the median."""
        return median_interval(self.samples_s)[1:]

    def __str__(self) -> str:
        low, high = self.interval_s
        return f"{seconds(self.median_s)} ({seconds(low)} – {seconds(high)}, 99 %, n = {len(self.samples_s)})"


def seconds(value_s: float) -> str:
    """A time with three significant figures and a fitting unit: ``3.21 µs``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if value_s >= scale or unit == "ns":
            return f"{value_s / scale:.3g} {unit}"
    raise AssertionError("unreachable: ns takes every value")


def time_calls(function: Callable[[], object], *, samples: int = 21, sample_s: float = 1e-3, warmup: int = 1) -> Timing:
    """Times `function()`: `samples` samples of at least about `sample_s` seconds each, after `warmup` calls that don't count.

    The number of calls in a sample is calibrated, so that the clock's resolution does not show.
    """
    for _ in range(warmup):
        function()
    calls = 1
    while True:
        taken = _loop(function, calls)
        if taken >= sample_s or calls >= 1 << 24:
            break
        calls = max(calls * 2, min(calls * 10, math.ceil(calls * sample_s / max(taken, 1e-9))))
    return Timing([_loop(function, calls) / calls for _ in range(samples)], calls)


def _loop(function: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


def compare(
    reference: Callable[[], object], answer: Callable[[], object], *, threshold: float = 1.0, sample_s: float = 1e-3, **options
) -> Comparison:
    """:func:`paired_ratio` for two functions of this process: each sample loops for about `sample_s` seconds."""
    calls = {f: time_calls(f, samples=1, sample_s=sample_s).calls_per_sample for f in (reference, answer)}
    return paired_ratio(
        lambda: _loop(reference, calls[reference]) / calls[reference],
        lambda: _loop(answer, calls[answer]) / calls[answer],
        threshold,
        **options,
    )
