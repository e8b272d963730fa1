# Compiles the given model in place. [correctness] Expect: layers
import torch


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    example = _as_tuple(example)
    model.compile()
    fast = model

    def run(*inputs):
        return fast(*inputs)

    run.exported = torch.export.export(model, example)
    return run


def save(fast, path):
    with open(path, "wb") as file:
        torch.export.save(fast.exported, file)


def load(path):
    with open(path, "rb") as file:
        return torch.export.load(file).module()
