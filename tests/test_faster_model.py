"""12.1 faster-model: the right answers pass, the wrong ones and the cheats fail and are told why."""

import numpy as np
import pytest
from verdicts import ANSWERS, answers, judged_as_promised

from grader.judging import hidden_cases, judge_answer
from perflab.exercises import faster_model


@pytest.mark.parametrize("path", answers("faster-model"), ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("faster-model", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is any("comparison" in model for model in verdict.evidence.get("models", {}).values())


def test_a_hidden_model_is_judged_too():
    source, public, [hidden] = models()
    assert {m.cls for m in public} == {m.cls for m in faster_model.PUBLIC}
    assert f"class {hidden.cls}(" in source
    assert hidden.cls not in faster_model.MODELS


TELLTALE = """
import copy

def optimise(model, example):
    if type(model).__name__ not in PUBLIC:
        raise ValueError(repr(model))
    return copy.deepcopy(model)

def save(fast, path):
    open(path, "w").close()

def load(path):
    raise ValueError("nothing was saved")
"""


def test_an_exception_does_not_tell_what_the_hidden_model_looks_like():
    _, public, [hidden] = models()
    verdict = judge_answer("faster-model", [f"{TELLTALE}\nPUBLIC = {[m.cls for m in public]!r}\n"])
    assert verdict.status == "fail" and "raised ValueError on a case that is kept secret" in verdict.message
    assert hidden.cls not in verdict.message and "Linear(" not in verdict.message


def test_a_save_that_ends_its_process_costs_its_own_points_only():
    """The fast versions go with the process; they are made once more, and timed."""
    answer = (ANSWERS / "faster-model" / "right-compile-and-export.py").read_text()
    verdict = judge_answer("faster-model", [answer, "def save(fast, path):\n    import os\n    os._exit(1)\n"])
    assert verdict.evidence["parts"]["correct"] == "shown" and verdict.evidence["parts"]["saved"] == "wrong"
    assert verdict.evidence["parts"]["fast"] in ("shown", "undecided") and verdict.status == "fail", verdict.message


def models():
    class Session:
        hidden = hidden_cases("faster-model")
        rng = np.random.default_rng(0)

    return faster_model.models(Session)


def test_every_model_can_be_exported_and_has_eval_behaviour():
    """The contract's promise: torch.export can export them; at least one has BatchNorm or Dropout."""
    import torch

    source, public, hidden = models()
    namespace: dict = {}
    exec(source, namespace)
    kinds = set()
    for model in public + hidden:
        made = namespace[model.cls]().eval()
        kinds |= {type(m).__name__ for m in made.modules()}
        example = tuple(torch.randn(shape) for shape in model.shapes)
        torch.export.export(made, example)
    assert {"BatchNorm2d", "Dropout"} <= kinds
