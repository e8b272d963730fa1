# Compiles for speed, exports to save: the exported program needs no class.
import torch


def optimise(model, example):
    """A callable that computes what `model` computes, faster; `example` is a tensor or a tuple of tensors."""
    example = example if isinstance(example, tuple) else (example,)
    fast = torch.compile(model)
    with torch.inference_mode():
        fast(*example)  # compiles now, not at the first call that counts

    def run(*inputs):
        return fast(*inputs)

    run.exported = torch.export.export(model, example)  # the program without its class, for save()
    return run


def save(fast, path):
    """Writes one regular file at `path`."""
    with open(path, "wb") as file:
        torch.export.save(fast.exported, file)


def load(path):
    """A callable out of the file that save() wrote, where the model's class is absent."""
    with open(path, "rb") as file:
        return torch.export.load(file).module()
