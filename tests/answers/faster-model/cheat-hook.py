# [correctness] Puts a hook on the model so that it would be slower. Expect: hooks
import torch


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    example = _as_tuple(example)
    fast = model
    model.register_forward_hook(lambda m, i, o: sum(range(100_000)) and None)

    def run(*inputs):
        return fast(*inputs)

    return run


def save(fast, path):
    with open(path, "wb") as file:
        torch.export.save(fast.exported, file)


def load(path):
    with open(path, "rb") as file:
        return torch.export.load(file).module()
