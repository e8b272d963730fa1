"""12.4 cache-size: the right answers pass, the wrong ones and the cheats fail and are told why."""

import json
import math
import random
import runpy

import numpy as np
import pytest
from verdicts import ANSWERS as FOLDER
from verdicts import answers, judged_as_promised

from grader.judging import hidden_cases, judge_answer
from perflab import judge
from perflab.exercises import cache_size

ANSWERS = answers("cache-size")
KIB, MIB = 1 << 10, 1 << 20
HIDDEN = hidden_cases("cache-size") / "latency-curves.json"
CURVES = [curve for path in (cache_size.PUBLIC_CURVES, HIDDEN) for curve in json.loads(path.read_text())["curves"]]
PUBLIC = tuple(curve["name"] for curve in json.loads(cache_size.PUBLIC_CURVES.read_text())["curves"])
RIGHT = {p.stem: runpy.run_path(str(p))["estimate"] for p in (FOLDER / "cache-size").glob("right-*.py")}


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("cache-size", path)
    e = verdict.evidence
    missed = [fault for fault in e.get("recorded", {}).get("wrong", []) if fault.startswith(PUBLIC)]  # the others are secret
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is bool(e.get("device") or "here" in e or missed)


def test_a_wrong_estimator_keeps_the_points_of_the_rest():
    text = next(p for p in ANSWERS if p.stem == "wrong-elements").read_text()
    parts = judge_answer("cache-size", [text]).evidence["parts"]
    assert parts["chase"] == parts["ring"] == parts["device"] == "shown"
    assert parts["recorded"] == "wrong"


# ---- the recorded curves


def test_there_are_curves_of_every_kind():
    assert len(CURVES) >= 8 and len(json.loads(HIDDEN.read_text())["curves"]) >= 6
    assert {len(c["caches_bytes"]) for c in CURVES} == {2, 3, 4}
    assert {c["pages"] for c in CURVES} == {"huge", "4K"}
    assert {c["kind"] for c in CURVES} == {"modelled", "measured"}
    assert set(PUBLIC).isdisjoint(c["name"] for c in json.loads(HIDDEN.read_text())["curves"])


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: c["name"][:24])
def test_levels_can_be_told_apart(curve):
    sizes, caches = curve["sizes_bytes"], [c for c in curve["caches_bytes"] if c]
    assert sizes == sorted(sizes) and len(sizes) == len(curve["ns"]) and min(curve["ns"]) > 0
    assert all(b >= 8 * a for a, b in zip(caches, caches[1:], strict=False))
    assert min(sizes) * 2 <= caches[0] and caches[-1] * 2 <= max(sizes)


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: c["name"][:24])
@pytest.mark.parametrize("name", RIGHT)
def test_right_estimators_are_right(name, curve):
    """Different methods find every cache, so the curves don't ask for one method."""
    found = RIGHT[name](curve["sizes_bytes"], curve["ns"])
    assert cache_size.estimate_fault(found, curve["caches_bytes"]) is None, found


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: c["name"][:24])
def test_the_chapters_estimator_finds_as_many_levels(curve):
    from perflab import memory

    found = memory.cache_sizes(curve["sizes_bytes"], curve["ns"])
    if None not in curve["caches_bytes"]:
        assert len(found) == len(curve["caches_bytes"])


def test_estimate_faults():
    truth = [32 * KIB, MIB, 16 * MIB]
    assert cache_size.estimate_fault([32 * KIB, MIB, 16 * MIB], truth) is None
    assert cache_size.estimate_fault([40 * KIB, 800 * KIB, 30 * MIB], truth) is None
    for wrong, word in (
        ([32 * KIB, MIB], "levels"),
        ([32 * KIB, MIB, 16 * MIB, 64 * MIB], "levels"),
        ([MIB, 32 * KIB, 16 * MIB], "ascend"),
        ([50 * KIB, MIB, 16 * MIB], "level 1"),
        ([32 * KIB, 2 * MIB, 16 * MIB], "level 2"),
        ([32 * KIB, MIB, 33 * MIB], "level 3"),
        ([32.0 * KIB, MIB, 16 * MIB], "ints"),
        (None, "list"),
    ):
        assert word in cache_size.estimate_fault(wrong, truth)[0]


# ---- rings and curves


def test_ring_faults():
    rng = np.random.default_rng(4)
    good = cache_size.ring(256, rng)
    assert cache_size.ring_fault(good, good.nbytes) is None
    for lines in (1, 2, 3):
        small = cache_size.ring(lines, rng)
        assert cache_size.ring_fault(small, small.nbytes) is None

    def fault(ring, size=None):
        return cache_size.ring_fault(ring, size or good.nbytes)[0]

    assert "dtype uintp" in fault(good.astype(np.int64))
    assert "dtype uintp" in fault(good, good.nbytes * 2)
    assert "element indices" in fault(np.where(good < good.size, good * 8, good))
    sequential = good.copy()
    sequential[::8] = np.roll(np.arange(256) * 8, -1)
    assert "prefetcher" in fault(sequential)
    backwards = good.copy()
    backwards[::8] = np.roll(np.arange(256) * 8, 1)
    assert "prefetcher" in fault(backwards)
    in_pieces = good.copy()
    order = np.concatenate([piece + rng.permutation(32) for piece in range(0, 256, 32)]) * 8
    order = np.roll(order, -int(np.flatnonzero(order == 0)[0]))
    in_pieces[order] = np.roll(order, -1)
    assert "neighbours in memory" in fault(in_pieces)
    two = good.copy()
    two[8], two[0] = good[0], good[8]
    assert "cycle" in fault(two)
    endless = good.copy()
    endless[8 * int(good[0] // 8)] = good[0]  # a loop that never comes back to 0
    assert "cycle" in fault(endless)


def test_last_level_is_where_the_curve_crosses():
    sizes = [KIB * 2**i for i in range(3, 18)]
    curve = cache_size.Curve(sizes, None)
    for size in sizes:
        curve.ns[size] = 1.0 if size <= 32 * KIB else 4.0 if size <= MIB else 12.0 if size <= 16 * MIB else 120.0
    assert 16 * MIB <= cache_size.last_level(curve, MIB) <= 32 * MIB
    for size in sizes:
        curve.ns[size] = min(curve.ns[size], 12.0)
    assert cache_size.last_level(curve, MIB) is None, "a last level beyond the largest size can't be judged"
    for size in sizes:
        curve.ns[size] = 1.0 if size <= 32 * KIB else 4.0 if size <= MIB else 4.0 * min(size / MIB, 16)
    assert cache_size.last_level(curve, MIB) is None, "a ramp right after the L2 is no level"


class Judged:
    """Stands for Parts: keeps what was added."""

    def __init__(self):
        self.ok = None

    def add(self, name, points, ok, en, zh):
        self.ok = ok


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        ([32 * KIB, 2 * MIB, 32 * MIB], True),  # the label's
        ([32 * KIB, 800 * KIB, 32 * MIB], True),  # less, and the curve rises there
        ([32 * KIB, 300 * KIB, 32 * MIB], False),  # far less, and flat there
        ([32 * KIB, 8 * MIB, 32 * MIB], False),  # more
    ],
)
def test_pages_that_collide_leave_less_of_a_cache_but_never_more(found, ok):
    sizes = [round(8 * KIB * 2 ** (i / 2)) for i in range(28)]
    curve = cache_size.Curve(sizes, None)
    for size in sizes:
        curve.ns[size] = 1.0 if size <= 32 * KIB else 4.0 if size <= 700 * KIB else 20.0
    here = cache_size.Here(sizes, curve, curve, curve, dict.fromkeys(sizes), 2 * MIB, {1: 32 * KIB, 2: 2 * MIB})
    parts = Judged()
    cache_size._judge_estimate_here(found, here, parts, {})
    assert parts.ok is ok


@pytest.mark.parametrize("returned", ["1 / 0", "[0, 2**21, 2**25]"])
def test_an_estimate_that_fails_here_costs_its_own_point_only(returned, monkeypatch):
    """It is right on the recorded curves, and not on the one of this machine."""
    sizes = [round(8 * KIB * 2 ** (i / 2)) for i in range(28)]
    curve = cache_size.Curve(sizes, None)
    curve.ns.update((size, 1.0 if size <= 32 * KIB else 4.0 if size <= 2 * MIB else 20.0) for size in sizes)
    here = cache_size.Here(sizes, curve, curve, curve, dict.fromkeys(sizes, True), 2 * MIB, {1: 32 * KIB, 2: 2 * MIB})
    monkeypatch.setattr(cache_size, "_measure_here", lambda session, host, evidence: here)
    text = (FOLDER / "cache-size" / "right-plateaus.py").read_text()
    text += f"\n\nfound = estimate\ndef estimate(sizes, ns):\n    return {returned} if list(sizes) == {sizes} else found(sizes, ns)\n"
    verdict = judge_answer("cache-size", [text])
    assert verdict.status == "fail" and verdict.points == 11, verdict.message
    assert verdict.evidence["parts"]["estimate"] == "wrong"


def curves(values_before, values_mine, values_after, sizes=None):
    sizes = sizes or [8 * KIB * 4**i for i in range(len(values_mine))]
    made = []
    for values in (values_before, values_mine, values_after):
        table = dict(zip(sizes, values, strict=True))
        curve = cache_size.Curve(sizes, lambda s, table=table: [table[x] for x in s])
        curve.rounds(3, random.Random(0))
        made.append(curve)
    return made


@pytest.mark.parametrize(
    ("far", "near", "repeats"),
    [((True, True), True, True), ((None, False), True, True), ((None, None), True, False), ((True, True), None, False)],
)
def test_one_size_far_out_that_repeats_is_enough(far, near, repeats):
    """A last level of hundreds of megabytes that other machines use too does not hold still at 64 MiB."""
    off = {8 * KIB: True, 64 * KIB: near, 4 * MIB: None, 70 * MIB: far[0], 110 * MIB: far[1]}
    assert cache_size.repeats(off, 2 * MIB) is repeats


def test_compared():
    agreed = cache_size.compared(*curves([1, 1, 4, 4], [1.1, 1.2, 4.5, 4], [1, 1, 4, 4.2]), 1 << 40)
    assert list(agreed.values()) == [True] * 4
    off = cache_size.compared(*curves([1, 1, 1, 1], [1, 1.4, 1.6, 0.5], [1, 1, 1, 1]), 1 << 40)
    assert list(off.values()) == [True, True, False, False]
    noisy = cache_size.compared(*curves([1, 1, 1, 1], [9, 9, 9, 9], [1, 1, 2, 1]), 1 << 40)
    assert list(noisy.values()) == [False, False, None, False]
    shared = cache_size.compared(*curves([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]), 16 * KIB)
    assert list(shared.values()) == [True] * 4
    shifted = cache_size.compared(*curves([1, 1, 4, 4], [1, 4, 4, 4], [1, 1, 4, 4]), 1 << 40)
    assert list(shifted.values()) == [True] * 4, "a steep edge may lie one size apart"


def test_what_is_plainly_wrong_is_not_measured_for_ever():
    ones = [1.0] * 7
    for mine, plain in (([2.4] * 7, True), ([2.0] * 7, False), ([9.0] * 5 + [1.0] * 2, False), (ones, False)):
        before, answer, after = curves(ones, mine, ones)
        off = cache_size.compared(before, answer, after, 1 << 40)
        assert cache_size.plainly_wrong(off, before, answer, 1 << 40) is plain


@pytest.mark.parametrize(("far", "plain"), [((4.0, 4.0), True), ((0.2, 0.2), True), ((4.0, 2.0), False), ((1.0, 1.0), False)])
def test_wrong_at_every_size_beyond_all_caches_is_plainly_wrong(far, plain):
    sizes = [8 * KIB, 64 * MIB, 100 * MIB]
    before, answer, _ = curves([1, 1, 1], [1, *far], [1, 1, 1], sizes)
    assert cache_size.plainly_wrong(cache_size.compared(before, answer, before, MIB), before, answer, MIB) is plain


def test_sizes_are_drawn_anew_and_cover_the_range():
    first, second = (cache_size.sizes_here(np.random.default_rng(s)) for s in (1, 2))
    assert first != second
    for sizes in (first, second):
        assert sizes == sorted(sizes) and all(size % 64 == 0 for size in sizes)
        assert sizes[0] < 16 * KIB and sizes[-1] > 90 * MIB
        assert all(b / a < 2 for a, b in zip(sizes, sizes[1:], strict=False))


def test_readable_bytes():
    assert [cache_size.readable_bytes(b) for b in (64, 48 * KIB, 3 * MIB // 2)] == ["64 B", "48 KiB", "1.5 MiB"]
    assert math.isclose(cache_size.Curve([1024, 4096], None).ns[1024], math.inf)


def test_exercise_is_listed():
    assert "cache-size" in judge.slugs()
