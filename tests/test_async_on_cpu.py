"""12.2 async-on-cpu: the right answers pass, the wrong ones and the cheats fail and are told why."""

import numpy as np
import pytest
from verdicts import answers, judged_as_promised

from grader import trial
from grader.judging import judge_answer
from perflab import judge
from perflab.exercises import async_on_cpu

ANSWERS = answers("async-on-cpu")


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("async-on-cpu", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is bool(verdict.evidence.get("devices") or verdict.evidence.get("survey"))


def test_reference_passes_while_the_other_core_is_loaded():
    reference = next(p for p in ANSWERS if p.stem == "right-reference").read_text()
    with trial.noise("cpu"):
        statuses = [judge_answer("async-on-cpu", [reference]).status for _ in range(3)]
    assert "fail" not in statuses
    assert "pass" in statuses


def test_parts_earn_their_points():
    """A wrong classification costs its own points only."""
    text = next(p for p in ANSWERS if p.stem == "wrong-absolute-limit").read_text()
    verdict = judge_answer("async-on-cpu", [text])
    assert verdict.evidence["parts"] == {"times": "shown", "classification": "wrong", "survey": "shown"}
    assert verdict.points == 7


def test_a_survey_without_a_product_is_told_so():
    text = next(p for p in ANSWERS if p.stem == "right-reference").read_text()
    text += "\n\ndef survey():\n    return {'numpy_cpu': None, 'torch_cpu': (0.1, 0.1), 'torch_cuda': None}\n"
    verdict = judge_answer("async-on-cpu", [text])
    assert verdict.evidence["parts"]["survey"] == "wrong" and verdict.points == 7
    assert "numpy_cpu" in verdict.message


def test_the_judges_own_rule():
    assert async_on_cpu.classify(0.001, 0.02) is True
    assert async_on_cpu.classify(0.019, 0.02) is False
    assert async_on_cpu.classify(0.010, 0.02) is None


@pytest.mark.parametrize("pairs", range(4, 20))
def test_a_minimum_or_a_maximum_is_no_median_of_unequal_work(pairs):
    from statistics import median

    for seed in range(30):
        [device] = [d for d in async_on_cpu.devices(np.random.default_rng(seed)) if len(d.scales) > 1]
        times = [device.total_s * device.scales[i % 3] for i in range(pairs)]
        device.pairs = [(0.96 * t, t) for t in times]
        kept = times[1:]

        def accepted(value, device=device):
            true = device.truth((0.96 * value, value))[1]
            return abs(value - true) <= 0.15 * true + 1e-3

        assert accepted(median(kept))
        assert not accepted(min(kept)) and not accepted(max(kept))
        if pairs >= 7:
            assert not accepted(sum(kept) / len(kept))
            assert accepted(sorted(kept)[len(kept) // 2])
        if pairs >= 5 and pairs % 2:
            assert accepted(median(times[2:]))


def test_every_device_is_clearly_one_or_the_other():
    import numpy as np

    for seed in range(200):
        for device in async_on_cpu.devices(np.random.default_rng(seed)):
            ratio = device.launch_s / device.total_s
            assert ratio <= async_on_cpu.ASYNCHRONOUS_TO or ratio >= async_on_cpu.SYNCHRONOUS_FROM
            assert device.total_s * min(device.scales) >= 0.020
            if len(device.scales) > 1:
                works = [device.total_s * device.scales[n % 3] for n in range(1, 10)]
                for estimate in (min(works), sum(works) / len(works)):
                    row = {"launch_s": 0, "true_launch_s": 0, "total_s": estimate, "true_total_s": sorted(works)[4]}
                    assert async_on_cpu._error(row) > 3


def test_exercise_is_listed():
    assert "async-on-cpu" in judge.slugs()
