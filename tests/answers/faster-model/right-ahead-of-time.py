# Compiles ahead of time into a package that holds machine code; the package is what is saved.
import os
import shutil

import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package

_count = iter(range(1000))


def optimise(model, example):
    example = example if isinstance(example, tuple) else (example,)
    package = os.path.abspath(f"compiled{next(_count)}.pt2")
    with torch.no_grad():
        aoti_compile_and_package(torch.export.export(model, example), package_path=package)
    runner = aoti_load_package(package)

    def run(*inputs):
        return runner(*inputs)

    run.package = package
    return run


def save(fast, path):
    shutil.copyfile(fast.package, path)


def load(path):
    shutil.copyfile(path, path + ".pt2")
    return aoti_load_package(os.path.abspath(path + ".pt2"))
