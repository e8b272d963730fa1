# [correctness] Saves weights and program in two files. Expect: 2 files
import torch


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    example = _as_tuple(example)
    fast = model

    def run(*inputs):
        return fast(*inputs)

    run.exported = torch.export.export(model, example)
    return run


def save(fast, path):
    for part in ("", ".weights"):
        with open(path + part, "wb") as file:
            torch.export.save(fast.exported, file)


def load(path):
    with open(path, "rb") as file:
        return torch.export.load(file).module()
