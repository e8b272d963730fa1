"""Ranks of a torch.distributed group for the judge: each its own host, joined by wires that end on the judge's side."""

from __future__ import annotations

import re
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from perflab.judge import Session
from perflab.launch import AnswerFailed
from perflab.wires import Wires

WAIT_S = 5.0  # how long a rank waits for a message before it says so

# Defined in every rank's process before anything is asked of it.
_JOIN = '''
import socket
import torch
import torch.distributed as dist
from perflab import host, links

def join(rank, world, peers, timeout_s, collectives):
    ends, lanes = [
        {peer: socket.socket(fileno=host.descriptor(f"{kind}-{peer}")) for peer in peers} for kind in ("wire", "lane")
    ]
    links.join(rank, world, ends, lanes, timeout_s=timeout_s, collectives=collectives)
    def refused(name):
        def function(*args, **kwargs):
            raise RuntimeError(f"{name} is not for this exercise: the default process group is there already, use it")
        return function
    for name in ("new_group", "init_process_group", "new_subgroups", "split_group"):
        setattr(dist, name, refused(name))
'''


def patiently(run):
    """run(), and again where the machine, not the answer, had no thread left: all sandboxes share one user's limit."""
    for pause_s in (1.0, 3.0, None):
        try:
            return run()
        except AnswerFailed as error:
            if pause_s is None or "can't start new thread" not in error.en:
                raise
        time.sleep(pause_s)


class Group:
    """`world` ranks that run the answer (or, with `source`, the judge's own code) with links between `pairs`.

    collectives: those that may be used. group: False for no process group. pinned: all on the session's measured core, so
    that the wires have another to themselves; False where nothing is timed. Close it, or use it as a context manager.
    """

    def __init__(
        self, session: Session, world: int, *, bandwidth_bytes_per_s: float | None, latency_s: float = 0.0, pairs=None,
        collectives=(), source: str | None = None, helpers: str = "", group: bool = True, pinned: bool = True,
    ):  # fmt: skip
        self.world = world

        def start() -> None:
            self.wires = Wires(world, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, pairs=pairs, lanes=True)
            self.hosts: list = []
            self.threads = ThreadPoolExecutor(world, thread_name_prefix="rank")
            try:
                for rank in range(world):
                    ends, lanes = self.wires.ends(rank), self.wires.lanes(rank)
                    fds = {f"wire-{peer}": end.fileno() for peer, end in ends.items()}
                    fds |= {f"lane-{peer}": lane.fileno() for peer, lane in lanes.items()}
                    options = {"fds": fds} if pinned else {"fds": fds, "cpus": None}
                    host = session.answer(**options) if source is None else session.trusted(source, **options)
                    self.hosts.append(host)
                    self.wires.hand_over(rank)
                    host.define(_JOIN + helpers)
                    if group:
                        host.call("$join", rank, world, sorted(ends), WAIT_S, list(collectives))
            except BaseException:
                self.close()
                raise

        patiently(start)

    def call(self, name: str, arguments, *, timeout_s: float = 20.0) -> tuple[list, float]:
        """Calls `name(*arguments[rank])` on all ranks at once: (values by rank, seconds until the last had returned).

        Raises AnswerFailed that names the rank that failed and what the others waited for.
        """
        began = time.perf_counter()
        futures = [
            self.threads.submit(host.call, name, *args, timeout_s=timeout_s, inference=False)
            for host, args in zip(self.hosts, arguments, strict=True)
        ]
        wait(futures, return_when=FIRST_EXCEPTION)
        seconds = time.perf_counter() - began
        failed = [rank for rank, f in enumerate(futures) if f.done() and f.exception() is not None]
        if not failed:
            return [f.result() for f in futures], seconds
        # The others wait for something that will never come: let those that are about to say so do it, then end them.
        wait(futures, timeout=0.3)
        for rank in failed:
            self.wires.kill(rank)
        wait(futures)
        raise self._failure({rank: f.exception() for rank, f in enumerate(futures) if f.exception()}, failed)

    def _failure(self, errors: dict[int, BaseException], first: list[int]) -> BaseException:
        for error in errors.values():
            if not isinstance(error, AnswerFailed):
                return error
        # A rank that failed by itself says more than those that waited for it.
        cause = next((rank for rank in first if not _waiting(errors[rank].en)), first[0])
        others = [(rank, _waiting(errors[rank].en)) for rank in errors if rank != cause]
        en = "; ".join(f"rank {rank} was waiting in {what}" for rank, what in others if what)
        zh = "；".join(f"第 {rank} 号进程正在等待 {what}" for rank, what in others if what)
        error = errors[cause]
        return AnswerFailed(
            error.kind,
            f"Rank {cause} of {self.world}: {error.en}" + (f" At that time {en}." if en else ""),
            f"第 {cause} 号进程（共 {self.world} 个）：{error.zh}" + (f"此时{zh}。" if zh else ""),
        )

    def close(self) -> None:
        for host in self.hosts:
            if not host.closed:
                host.kill()
        self.threads.shutdown(cancel_futures=True)  # a call that is under way ends with its process
        for host in self.hosts:
            host.close()
        self.wires.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def _waiting(text: str) -> str | None:
    """The operation that a rank waited for, out of its error: ``recv(src=1, tag=0) of 40 bytes``."""
    found = re.search(r"rank \d+(?: waited [\d.e+-]+ s in vain for|:) ((?:send|recv)\([^)]*\) of \d+ bytes)", text)
    return found[1] if found else None
