"""The statistics of a verdict, on simulated and on stored samples: no clock is read where a rate is asserted."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from perflab import bench

STORED = Path(__file__).parent / "data" / "pairs.json"


@pytest.mark.parametrize("n", [8, 9, 11, 22, 44, 84, 200])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_ranks_have_the_least_sufficient_coverage(n, confidence):
    def coverage(low):
        return 1 - 2 * sum(math.comb(n, i) for i in range(low + 1)) * 0.5**n

    low, high = bench.interval_ranks(n, confidence)
    assert low + high == n - 1
    assert coverage(low) >= confidence
    assert coverage(low + 1) < confidence


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="take more"):
        bench.interval_ranks(7)


NOISES = {
    "normal": lambda rng, size: rng.normal(0, 0.05, size),
    "heavy tail": lambda rng, size: rng.standard_cauchy(size) * 0.03,
    "skewed": lambda rng, size: rng.exponential(0.1, size) - 0.1 * math.log(2),
    "two modes": lambda rng, size: rng.choice([-0.2, 0.2], size) + rng.normal(0, 0.02, size),
}


@pytest.mark.parametrize("n", bench.LOOKS)
@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_covers_the_median(n, noise):
    """10,000 simulated sets a case; the tolerance is four standard errors."""
    trials = 10_000
    rng = np.random.default_rng(n)
    sets = np.sort(NOISES[noise](rng, (trials, n)), axis=1)
    low, high = bench.interval_ranks(n)
    covered = np.mean((sets[:, low] <= 0) & (sets[:, high] >= 0))
    assert covered >= 0.99 - 4 * math.sqrt(0.99 * 0.01 / trials)


class Clock:
    """Two pieces of work of a known ratio on a simulated machine whose speed wanders and stumbles."""

    def __init__(self, ratio, seed, jitter=0.05, stumbles=0.1, difference=0.0):
        """difference: how much longer every second call of the reference takes."""
        self.ratio, self.rng = ratio, random.Random(seed)
        self.jitter, self.stumbles, self.difference = jitter, stumbles, difference
        self.speed, self.calls = 1.0, 0

    def _time(self, work):
        self.speed = min(3.0, max(1.0, self.speed * math.exp(self.rng.gauss(0, 0.05))))
        stumble = self.rng.uniform(1, 5) if self.rng.random() < self.stumbles else 1.0
        return work * self.speed * math.exp(self.rng.gauss(0, self.jitter)) * stumble

    def reference(self):
        self.calls += 1
        return self._time(1e-3 * (1 + self.difference * (self.calls % 2)))

    def answer(self):
        return self._time(1e-3 / self.ratio)


def rates(ratio, threshold=1.15, trials=1000, **noise):
    found = {True: 0, False: 0, None: 0}
    for seed in range(trials):
        clock = Clock(ratio, seed, **noise)
        found[bench.paired_ratio(clock.reference, clock.answer, threshold, rng=random.Random(seed)).faster] += 1
    return {k: v / trials for k, v in found.items()}


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.05])
def test_slow_answers_do_not_pass(ratio):
    assert rates(ratio)[True] <= 0.002


@pytest.mark.parametrize("ratio", [1.25, 1.3, 2.0])
def test_fast_answers_do_not_fail(ratio):
    assert rates(ratio)[False] <= 0.002


def test_clear_cases_are_decided():
    assert rates(1.0)[None] <= 0.02
    assert rates(1.5)[None] <= 0.02


def test_at_the_threshold_it_stays_open():
    """The worst case for a sequential test: the truth on the threshold. Four looks at 99 % err in less than 4 %."""
    found = rates(1.15, jitter=0.02, stumbles=0)
    assert found[None] >= 0.9
    assert found[True] + found[False] <= 0.04 + 4 * math.sqrt(0.04 * 0.96 / 1000)


def test_a_reference_that_differs_from_itself_decides_nothing():
    turn = [0]

    def reference():  # every second call of the reference is slow: the control's ratio is not 1
        turn[0] += 1
        return 1e-3 * (1.5 if turn[0] % 2 == 0 else 1.0) * random.Random(turn[0]).uniform(0.99, 1.01)

    class Fixed(random.Random):
        def shuffle(self, x):
            return None

    found = bench.paired_ratio(reference, lambda: 1e-4, 1.15, rng=Fixed())
    assert found.faster is None
    assert "busy" in found.reason


class Unshuffled(random.Random):
    """Keeps the order reference, reference, answer, so that a difference between the first two calls shows."""

    def shuffle(self, x):
        return None


def controls_off(trials=1000, shuffle=random.Random, **noise):
    """The share of comparisons whose A/A control says that the reference differs from itself."""
    off = 0
    for seed in range(trials):
        clock = Clock(1.3, seed, **noise)
        found = bench.paired_ratio(clock.reference, clock.answer, 1.15, rng=shuffle(seed))
        off += bench.control_is_off(found.control_low, found.control_high)
    return off / trials


@pytest.mark.parametrize("noise", [{}, {"stumbles": 0.3}, {"jitter": 0.15}])
def test_the_control_raises_no_false_alarm(noise):
    """Reference and reference are alike: the control's interval, 99 % at each look, may be off in 1 % at most, its tolerance included."""
    assert controls_off(**noise) <= 0.01


@pytest.mark.parametrize(("difference", "found"), [(0.02, 0.0), (0.25, 0.8), (0.5, 0.85)])
def test_the_control_finds_a_reference_that_differs_from_itself(difference, found):
    """5 % is tolerated; a quarter and more is mostly found, even by a comparison that is over after eleven rounds."""
    share = controls_off(shuffle=Unshuffled, difference=difference)
    assert share >= found and (difference > 0.05 or share <= 0.01)


def test_times_near_zero_do_not_divide_by_zero():
    found = bench.paired_ratio(lambda: 1e-3, lambda: 0.0, 1.15)
    assert found.faster is True and math.isfinite(found.ratio)


def test_sampling_stops_as_soon_as_it_is_clear():
    clock = Clock(5.0, 1)
    assert bench.paired_ratio(clock.reference, clock.answer, 1.15).pairs == 11


def test_no_interval_without_enough_pairs():
    import time

    def slow():
        time.sleep(0.05)
        return 0.05

    found = bench.paired_ratio(slow, slow, 1.15, max_s=0.2)
    assert found.faster is None and "too slow" in found.reason


def stored():
    return json.loads(STORED.read_text())


@pytest.mark.parametrize("case", stored()["cases"], ids=lambda c: f"{c['noise']}-{c['ratio']:g}")
def test_stored_measurements_of_a_real_machine(case):
    """Pairs recorded on a real machine under made noise, replayed from 400 starting points: the verdicts of the rule."""
    rows = case["samples_us"]
    threshold = stored()["threshold"]
    wrong = open_ = 0
    trials = 400
    for seed in range(trials):
        start = random.Random(seed).randrange(len(rows))
        place = [0]

        def take(column, place=place, start=start):
            row = rows[(start + place[0] // 3) % len(rows)]
            place[0] += 1
            return row[column] * 1e-6

        firsts = [0]

        def reference(firsts=firsts, take=take):
            firsts[0] += 1
            return take(firsts[0] % 2)

        found = bench.paired_ratio(reference, lambda take=take: take(2), threshold, rng=random.Random(seed)).faster
        truth = case["ratio"] > threshold
        wrong += found is not None and found is not truth
        open_ += found is None
    assert wrong / trials <= 0.005
    assert open_ / trials <= 0.35
