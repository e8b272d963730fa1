"""12.3 small-operations: the right answers pass, the wrong ones and the cheats fail and are told why."""

import numpy as np
import pytest
from verdicts import answers, judged_as_promised

from perflab.exercises import small_operations
from perflab.launch import AnswerFailed
from perflab.wire import Tensor


@pytest.mark.parametrize("path", answers("small-operations"), ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("small-operations", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is ("comparison" in verdict.evidence)


def test_the_truth_is_the_serial_loop():
    rng = np.random.default_rng(0)
    xs, w = small_operations.chains(rng, 3, 5)
    expected = xs.astype(np.float64)
    for _ in range(7):
        expected = expected @ w.astype(np.float64)
    assert np.allclose(small_operations.truth(xs, w, 7), expected)
    assert np.array_equal(small_operations.truth(xs, w, 0), xs)


def test_powers_of_w_neither_grow_nor_vanish():
    xs, w = small_operations.chains(np.random.default_rng(1), 2, 40)
    assert 0.9 < np.linalg.norm(small_operations.truth(xs, w, 500)) / np.linalg.norm(xs) < 1.1


def test_nan_and_other_types_are_no_result():
    expected = np.ones((2, 3, 3))
    assert small_operations.deviation(Tensor(np.full((2, 3, 3), np.nan, np.float32)), expected) == float("inf")
    for value in (Tensor(np.ones((2, 3, 3))), Tensor(np.ones((2, 3), np.float32)), np.ones((2, 3, 3), np.float32), None):
        with pytest.raises(AnswerFailed, match="float32 tensor"):
            small_operations.deviation(value, expected)
