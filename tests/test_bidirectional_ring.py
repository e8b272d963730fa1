"""12.6 bidirectional-ring: verdicts, the reference on Gloo too, and what is said of wrong sums."""

import numpy as np
import psutil
import pytest
import torch
from verdicts import ANSWERS, answers, judged_as_promised

from perflab import links
from perflab.exercises import bidirectional_ring


@pytest.mark.parametrize("path", answers("bidirectional-ring"), ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("bidirectional-ring", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is any(verdict.evidence.get("link_load", {}).values())
    if verdict.status == "pass":
        loads = [load for world, of in verdict.evidence["link_load"].items() if int(world) > 2 for load in of.values()]
        assert len(loads) == 2 * (3 + 4 + 5)
    assert not [p for p in psutil.Process().children(recursive=True) if "wires" in " ".join(p.cmdline())]


def reduce(rank, world, source, n, dtype):
    namespace = {}
    exec(source, namespace)
    torch.manual_seed(rank)
    x = (torch.randn(n) * 1000).to(dtype)
    y = x.clone()
    namespace["all_reduce"](y, rank, world)
    return x, y


@pytest.mark.parametrize("backend", ["links", "gloo"])
@pytest.mark.parametrize("name", ["right-reference", "right-threads", "right-blocking-pairs"])
def test_right_answers_on_links_and_on_gloo(backend, name):
    source = (ANSWERS / "bidirectional-ring" / f"{name}.py").read_text()
    for world in (2, 3, 4):
        for n, dtype in ((1001, torch.float32), (world - 1, torch.int64)):
            values = links.run(reduce, world, source, n, dtype, backend=backend, collectives=()).values
            total = torch.stack([x for x, _ in values]).double().sum(0)
            for _, y in values:
                assert torch.equal(y, values[0][1])
                assert torch.allclose(y.double(), total, atol=1e-2)


def test_the_one_way_ring_of_the_judge_is_right():
    for world in (2, 4):
        values = links.run(reduce, world, bidirectional_ring.ONE_WAY, 1003, torch.int64, collectives=()).values
        total = torch.stack([x for x, _ in values]).sum(0)
        assert all(torch.equal(y, total) for _, y in values)


def test_mistakes_are_told_apart():
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(12).astype(np.float32) for _ in range(3)]
    total = np.sum(inputs, axis=0, dtype=np.float32)
    mistake = bidirectional_ring._mistake
    assert mistake(inputs, [total] * 3) is None
    assert "left as it was" in mistake(inputs, [inputs[0], total, total])[0]
    assert "mean" in mistake(inputs, [total / 3] * 3)[0]
    assert "disagree in the last bits" in mistake(inputs, [total, total, np.nextafter(total, 9)])[0]
    assert "wrong" in mistake(inputs, [total, total, total * np.nan])[0]
    whole = [rng.integers(-(1 << 40), 1 << 40, 9) for _ in range(2)]
    assert mistake(whole, [whole[0] + whole[1]] * 2) is None
    assert mistake(whole, [whole[0] + whole[1] + 1] * 2) is not None
