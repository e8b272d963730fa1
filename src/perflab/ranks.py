"""Processes that stand in for devices: run one function on every rank of a torch.distributed group.

The pages of chapters 12.5 and 12.6 define a function `fn(rank, world, ...)` in a cell and run it with

    ranks = Ranks(2)
    ranks.run(fn, x)        # -> [fn(0, 2, x), fn(1, 2, x)], each in a process of its own

which is what `torchrun --nproc-per-node 2 script.py` does for a script. The processes stay alive between
calls (importing torch takes longer than most experiments here) and each uses one thread.
"""

import multiprocessing
import os
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait

import cloudpickle

_START_S = 120.0


class RankFailed(RuntimeError):
    """A rank raised an exception, died, or did not finish in time."""


class Ranks:
    """`world` processes, joined in a default torch.distributed group.

    `backend` is Gloo; where every rank has a GPU of its own, "cpu:gloo,cuda:nccl" uses NCCL between them.

    They are started by the first `run`, and again by the next one after a failure. Leaving a `with` block,
    `close()` and the end of the parent process end them.
    """

    def __init__(self, world: int, backend: str = "gloo"):
        if world < 1:
            raise ValueError(f"world is {world}; expected at least 1 process.")
        self.world, self.backend = world, backend
        self._processes, self._pipes = [], []

    def run(self, fn, *args, timeout_s: float = 120.0) -> list:
        """Call `fn(rank, world, *args)` on every rank; return their values in the order of the ranks.

        `fn` may be defined in a notebook: it travels by value (cloudpickle), with the globals it uses.
        RankFailed: a rank raised (its traceback is quoted), died, or `timeout_s` passed. All ranks are then
        ended, for the others may wait for ever for the one that is gone.
        """
        request = cloudpickle.dumps((fn, args))
        try:
            if not self._processes:
                self._start()
                self._gather(_START_S)  # importing torch on a busy machine is not the function's time
            for pipe in self._pipes:
                pipe.send_bytes(request)
            return self._gather(timeout_s)
        except BaseException:
            self.close()
            raise

    def _gather(self, timeout_s):
        values, deadline = {}, time.monotonic() + timeout_s
        while len(values) < self.world:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in values]
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                late = [rank for rank in range(self.world) if rank not in values]
                raise RankFailed(
                    f"Rank(s) {late} of {self.world} did not finish in {timeout_s:g} s; expected every "
                    "rank to return. Look for a send without its receive, or a skipped collective.\n"
                    f"{self.world} 个进程中的 {late} 在 {timeout_s:g} 秒内没有结束；请检查有没有缺少接收方的发送，"
                    "或只有部分进程调用的集合操作。"
                )
            for pipe in ready:
                rank = self._pipes.index(pipe)
                values[rank] = self._reply(rank)
        return [values[rank] for rank in range(self.world)]

    def _reply(self, rank):
        try:
            succeeded, value = cloudpickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, OSError) as error:
            self._processes[rank].join(5)
            code = self._processes[rank].exitcode
            raise RankFailed(
                f"Rank {rank} of {self.world} died (exit status {code}); expected a value. "
                "A negative status is the number of the signal that ended it.\n"
                f"{self.world} 个进程中的 {rank} 号进程死了（退出状态 {code}）；负数是使它终止的信号编号。"
            ) from error
        if not succeeded:
            raise RankFailed(
                f"Rank {rank} of {self.world} raised; the last line says what. "
                f"{self.world} 个进程中的 {rank} 号进程抛出异常，见最后一行：\n{value}"
            )
        return value

    def _start(self):
        context = multiprocessing.get_context("spawn")
        # A file as meeting point: no fixed port, so two sessions on one machine cannot meet.
        self._folder = tempfile.TemporaryDirectory(prefix="perflab-ranks-")
        store = os.path.join(self._folder.name, "store")
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            args = (theirs, rank, self.world, self.backend, store)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def close(self):
        """End the processes. Calling it twice does no harm."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._processes:
            self._folder.cleanup()
        self._processes, self._pipes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _serve(pipe, rank, world, backend, path):
    # Ctrl-C goes to the whole terminal; the parent decides what it means and ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Gloo otherwise binds to whatever the host's name resolves to, which in a container may be nothing.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, store=dist.FileStore(path, world), rank=rank, world_size=world)
    pipe.send_bytes(cloudpickle.dumps((True, "ready")))
    while True:
        try:
            fn, args = cloudpickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # the parent closed the pipe or is gone
            return
        try:
            reply = (True, fn(rank, world, *args))
        except Exception:
            reply = (False, traceback.format_exc())
        pipe.send_bytes(cloudpickle.dumps(reply))


def sent_bytes() -> int | None:
    """Payload bytes that this process has written to its open TCP connections, counted by the kernel.

    Call it before and after; the difference is what went over the wire, the library's own headers included.
    None where the kernel does not count (`TCP_INFO` with `tcpi_bytes_sent` needs Linux 4.19 or later).
    """
    if sys.platform != "linux":
        return None
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        except OSError:  # closed since the listing, or not TCP
            continue
        if len(info) < 216:
            return None
        # struct tcp_info in <linux/tcp.h>: tcpi_notsent_bytes; tcpi_bytes_sent, tcpi_bytes_retrans
        (waiting,), (sent, again) = struct.unpack_from("=I", info, 144), struct.unpack_from("=QQ", info, 200)
        total += sent - again + waiting
    return total
