"""12.3 eight-operations: the right answers pass, the wrong ones and the cheats fail and are told why."""

import numpy as np
import pytest
from verdicts import answers, judged_as_promised

from perflab.exercises import eight_operations


@pytest.mark.parametrize("path", answers("eight-operations"), ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("eight-operations", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is bool(verdict.evidence.get("devices") or "judge" in verdict.evidence.get("torch", {}))


def test_the_devices_run_what_they_say():
    """1, 2, 4 and 8 workers; the mean in flight is between 1 and the number of workers."""
    found = eight_operations.devices(np.random.default_rng(0))
    assert sorted(d.workers for d in found) == [1, 2, 4, 8]
    for device in found:
        mean = sum(device.lengths_s) / eight_operations.makespan(device.lengths_s, device.workers)
        assert 0.99 <= mean <= device.workers + 1e-9
        assert device.startup_s > 2 * sum(device.lengths_s) / 8


def test_hints_allow_for_noise():
    """Every figure upside down is explained, one of them 20 % off; figures that nothing explains are not."""
    rng = np.random.default_rng(1)
    made = [(d, d.truth()) for d in eight_operations.devices(rng) if d.workers > 1]

    def told(figures):
        return eight_operations._hint([(d, {"answer": f, "truth": t}) for (d, t), f in zip(made, figures, strict=True)])[0]

    assert "upside down" in told([0.8 / made[0][1], *(1 / t for _, t in made[1:])])
    assert "start-up" in told([1.2 * t * (1 + d.startup_s / sum(d.lengths_s)) for d, t in made])
    assert "each operation measured" in told([1.7 * t for _, t in made])


def test_makespan():
    assert eight_operations.makespan([3.0, 2.0, 1.0], 1) == 6.0
    assert eight_operations.makespan([3.0, 2.0, 1.0], 2) == 3.0
    assert eight_operations.makespan([3.0, 2.0, 1.0], 8) == 3.0


def test_profiler_records_are_only_data():
    good = ["aten::mm", "", "['float', 'float']", "1", [[400, 400], [400, 400]]]
    assert eight_operations._is_large(good)
    for bad in (None, [], "x", [*good[:4], [[399, 400], [400, 400]]], [*good[:2], "['double', 'double']", *good[3:]], [*good[:4], [["400", 400], [1, 2]]]):
        assert not eight_operations._is_large(bad)
