"""12.4 stride: the right answers pass, the wrong ones and the cheats fail and are told why."""

import numpy as np
import pytest
from verdicts import answers, judged_as_promised

from grader.judging import judge_answer
from perflab import judge
from perflab.exercises import _c_answers, stride

ANSWERS = answers("stride")


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("stride", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is bool({"device", "here"} & verdict.evidence.keys())


def test_a_wrong_experiment_keeps_the_points_of_right_c():
    text = next(p for p in ANSWERS if p.stem == "wrong-list").read_text()
    verdict = judge_answer("stride", [text])
    assert verdict.evidence["parts"]["exact"] == "shown"
    assert verdict.points == 3


def test_hash_is_the_loop_that_the_exercise_states():
    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 3, 10, 37):
        for step in (1, 2, 3, 9, 10, 11, 36, 37, 38, stride.SIZE_MAX):
            a = rng.integers(0, 2**64, n, dtype=np.uint64)
            h = 0
            for first in range(min(step, n)):
                for i in range(first, n, step):
                    h = (h * 31 + int(a[i])) % 2**64
            assert stride.hash_of(a, step) == h


class TestAgreement:
    """The rule by which an instrument's figures are compared with the judge's."""

    def test_one_attempt_that_agrees_is_enough(self):
        agreement = _c_answers.Agreement()
        agreement.note("x", 9.0, 1.0, 1.1, 1.5)  # disturbed
        assert agreement.ok("x") is None
        agreement.note("x", 1.2, 1.0, 1.1, 1.5)
        assert agreement.ok("x") is True and agreement.wrong(["x"]) == []

    def test_two_that_disagree_are_wrong(self):
        agreement = _c_answers.Agreement()
        for _ in range(2):
            agreement.note("x", 2.0, 1.0, 1.1, 1.5)
        assert agreement.ok("x") is False
        assert agreement.wrong(["x"])[0][:2] == ("x", 2.0)

    def test_nothing_is_said_where_the_judge_disagrees_with_itself(self):
        agreement = _c_answers.Agreement()
        for _ in range(5):
            agreement.note("x", 9.0, 1.0, 1.6, 1.5)
        assert agreement.ok("x") is None and not agreement.settled(["x"])
        assert agreement.all_ok(["x"]) is None

    def test_the_edges_of_the_factor(self):
        agreement = _c_answers.Agreement()
        agreement.note("in", 1.49, 1.0, 1.0, 1.5)
        agreement.note("below", 1 / 1.49, 1.0, 1.0, 1.5)
        for _ in range(2):
            agreement.note("out", 1.51, 1.0, 1.0, 1.5)
        assert [agreement.ok(k) for k in ("in", "below", "out")] == [True, True, False]


def test_no_position_is_free_of_disturbances():
    """An answer that always reports the first, the second or the third of its passes meets three disturbed ones."""
    for seed in range(50):
        device = stride.Device(np.random.default_rng(seed))
        assert sorted(device.disturbed.values()) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_one_figure_a_little_off_is_left_open():
    assert stride.lone([(64, 2.66, 4.59)])
    assert not stride.lone([])
    assert not stride.lone([(64, 2.0, 4.6)])
    assert not stride.lone([(64, 2.66, 4.59), (128, 2.66, 4.59)])


def test_exercise_is_listed():
    assert "stride" in judge.slugs()
