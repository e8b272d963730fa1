"""12.1 faster-model: the right answers pass, the wrong ones and the cheats fail and are told why."""

import pytest
from verdicts import answers, judged_as_promised

from grader.judging import hidden_cases
from perflab.exercises import faster_model


@pytest.mark.parametrize("path", answers("faster-model"), ids=lambda p: p.stem)
def test_verdict(path):
    judged_as_promised("faster-model", path)


def test_a_hidden_model_is_judged_too():
    class Session:
        hidden = hidden_cases("faster-model")

    source, chosen = faster_model.models(Session)
    assert len(chosen) == len(faster_model.PUBLIC) + 1
    assert f"class {chosen[-1].cls}(" in source
    assert chosen[-1].cls not in faster_model.MODELS


def test_every_model_can_be_exported_and_has_eval_behaviour():
    """The contract's promise: torch.export can export them; at least one has BatchNorm or Dropout."""
    import torch

    class Session:
        hidden = hidden_cases("faster-model")

    source, chosen = faster_model.models(Session)
    namespace: dict = {}
    exec(source, namespace)
    kinds = set()
    for model in chosen:
        made = namespace[model.cls]().eval()
        kinds |= {type(m).__name__ for m in made.modules()}
        example = tuple(torch.randn(shape) for shape in model.shapes)
        torch.export.export(made, example)
    assert {"BatchNorm2d", "Dropout"} <= kinds
