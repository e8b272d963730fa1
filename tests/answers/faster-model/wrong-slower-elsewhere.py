# Copies the weights at every call: slower where there is nothing to fuse. Expect: slower than the model
import torch


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    example = _as_tuple(example)
    import copy

    compiled = torch.compile(model)
    deep = len(list(model.parameters())) > 4

    def fast(*inputs):
        if deep:
            for _ in range(4):
                copy.deepcopy(model)
        return compiled(*inputs)

    with torch.inference_mode():
        fast(*example)

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
