"""12.5 data-parallel: verdicts, the right answers on Gloo too, and the judge's own parts."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from verdicts import ANSWERS, answers, judged_as_promised

from grader.judging import judge_answer
from perflab import links
from perflab.exercises import data_parallel
from perflab.wire import Tensor


@pytest.mark.parametrize("path", answers("data-parallel"), ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("data-parallel", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is any(run["world"] > 1 and run.get("sent") for run in verdict.evidence.get("runs", []))
    if verdict.status == "pass":
        assert [run["world"] for run in verdict.evidence["runs"]] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_forged_count_of_rows_fails():
    """The count is kept in the answer's own process, where the answer can reach it."""
    forge = """

def train_step(model, batch, world, rank, lr, train_step=train_step):
    import gc
    train_step(model, batch, world, rank, lr)
    for found in gc.get_objects():
        if type(found) is dict and {"rows", "parameters"} <= found.keys():
            found["rows"] = "none"
"""
    text = (ANSWERS / "data-parallel" / "right-reference.py").read_text()
    parts = judge_answer("data-parallel", [text + forge]).evidence["parts"]
    assert parts["training"] == "shown" and parts["split"] == "wrong"


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def batches():
    generator = torch.Generator().manual_seed(1)
    for n in (10, 2, 7):
        yield (
            torch.randn(n, 8, generator=generator),
            torch.randint(3, (n,), generator=generator),
            torch.rand(n, generator=generator) + 0.1,
        )


def train(rank, world, source):
    namespace = {}
    exec(source, namespace)
    model = network()
    for batch in batches():
        namespace["train_step"](model, batch, world, rank, 0.3)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("backend", ["links", "gloo"])
@pytest.mark.parametrize("name", ["right-reference", "right-per-parameter", "right-point-to-point"])
def test_right_answers_on_links_and_on_gloo(backend, name):
    source = (ANSWERS / "data-parallel" / f"{name}.py").read_text()
    model = network()
    for x, y, weight in batches():
        model.zero_grad()
        ((cross_entropy(model(x), y, reduction="none") * weight).sum() / weight.sum()).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.3 * p.grad
    for parameters in links.run(train, 3, source, backend=backend).values:
        for got, expected in zip(parameters, model.parameters(), strict=True):
            assert torch.allclose(got, expected, atol=1e-5)


def test_shards_are_checked():
    batch = data_parallel._batch(np.random.default_rng(0), 5)

    def cut(*ranges):
        return [tuple(Tensor(t.array[list(r)]) for t in batch) for r in ranges]

    mistake = data_parallel._shard_mistake
    assert mistake(batch, cut(range(3), range(3, 5)), 2) is None
    assert mistake(batch, cut([0, 2, 4], [3, 1]), 2) is None
    assert "share an example" in mistake(batch, cut(range(3), range(2, 5)), 2)[0]
    assert "are on no rank" in mistake(batch, cut(range(2), range(3, 5)), 2)[0]
    assert "differ by at most 1" in mistake(batch, cut(range(4), range(4, 5)), 2)[0]
    swapped = cut(range(3), range(3, 5))
    swapped[0] = (swapped[0][0], swapped[0][1], Tensor(swapped[0][2].array[::-1].copy()))
    assert "not in the batch" in mistake(batch, swapped, 2)[0]
    assert "tuple (x, y, weight)" in mistake(batch, [None, None], 2)[0]


def test_weights_make_a_mean_of_means_wrong():
    """The batches must tell the right loss from a mean of the shards' means by far more than the tolerance."""
    for seed in range(20):
        _, _, weight = data_parallel._batch(np.random.default_rng(seed), 8)
        halves = weight.array[:4].sum(), weight.array[4:].sum()
        assert abs(halves[0] / halves[1] - 1) > 1e-3


def trained(namespace, kind, dtype, values, batches, lr, world):
    """The parameters after some steps in `dtype`, the gradient summed up shard by shard."""
    model = namespace["build"](kind, values, dtype)
    for x, y, weight in batches:
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(world):
            own = slice(rank, None, world)
            if len(x[own]):
                model.zero_grad()
                losses = cross_entropy(model(x[own].to(dtype)), y[own], reduction="none")
                ((losses * weight[own].to(dtype)).sum() / weight.to(dtype).sum()).backward()
                for total, p in zip(sums, model.parameters(), strict=True):
                    total += 0 if p.grad is None else p.grad
        with torch.no_grad():
            for p, total in zip(model.parameters(), sums, strict=True):
                p -= lr * total
    return [p.detach().double() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["perceptron", "convolutional"])
def test_rounding_stays_far_below_the_tolerance(kind):
    """A right answer computes in float32 and the judge in float64: only mistakes may leave the tolerance."""
    namespace = {}
    exec(data_parallel._MODELS, namespace)
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        world = data_parallel.WORLDS[seed % 4]
        shapes = [p.shape for p in namespace["build"](kind, [], torch.float32).parameters()]
        values = [torch.from_numpy(data_parallel._start(rng, shape).array) for shape in shapes]
        batches = [[torch.from_numpy(t.array) for t in data_parallel._batch(rng, n)] for n in (3 * world + 1, max(world - 1, 1), 8 * world, 1)]
        lr = float(rng.uniform(*data_parallel.LEARNING_RATES))
        single, double = (trained(namespace, kind, d, values, batches, lr, world) for d in (torch.float32, torch.float64))
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(single, double, strict=True)))
        moved = [float((after - before).abs().max()) for after, before in zip(double, values, strict=True)]
        assert all(m == 0 or m > 10 * data_parallel.TOLERANCE for m in moved)  # 0: frozen, or a layer that takes no part
    assert 0 < worst < data_parallel.TOLERANCE / 10
