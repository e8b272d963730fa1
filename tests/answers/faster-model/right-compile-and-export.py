# Compiles for speed, exports to save: the exported program needs no class.
import torch


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    example = _as_tuple(example)
    fast = torch.compile(model)
    with torch.inference_mode():
        fast(*example)  # compiles now, not at the first call that counts

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
