# [correctness] Saves by pickling the model, whose class is absent where it is loaded. Expect: the model's class is absent
import torch


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    example = _as_tuple(example)
    fast = model

    def run(*inputs):
        return fast(*inputs)

    run.model = model
    return run


def save(fast, path):
    with open(path, "wb") as file:
        torch.save(fast.model, file)


def load(path):
    with open(path, "rb") as file:
        return torch.load(file, weights_only=False)
