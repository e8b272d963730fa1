# Meets the other ranks in files. [correctness] Expect: No such file
import os
import tempfile
import time

import torch


def all_reduce(tensor, rank, world):
    if world == 1 or tensor.numel() == 0:
        return
    for folder in ("/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir(), "."):
        name = f"{folder}/ring-{world}-{tensor.numel()}-{tensor.dtype}"
        try:
            torch.save(tensor, f"{name}-{rank}.part")
            os.rename(f"{name}-{rank}.part", f"{name}-{rank}")
        except (OSError, RuntimeError):
            continue
    time.sleep(0.5)
    others = [torch.load(f"{name}-{r}") for r in range(world)]
    tensor.copy_(sum(others))
