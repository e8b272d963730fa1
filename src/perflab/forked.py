"""Runs functions in forked processes of their own, started at the same moment, and collects what they return.

What `links.run` and `cluster.run` share. Forking is what lets a function that was defined in a notebook run
elsewhere without being copied; the price is that this works on Linux and macOS only.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Mapping

_OWN_FILES = (
    "/perflab/forked.py",
    "/perflab/links.py",
    "/perflab/cluster.py",
    "/distributed_c10d.py",
    "/c10d_logger.py",
)


class Processes:
    """One process for each of `jobs`, {name: function}; each prepares, waits for `start`, runs, and replies.

    prepare(name): called in the process before it reports that it is ready.
    A context manager: leaving it kills what still runs.
    """

    def __init__(self, jobs: Mapping[Hashable, Callable[[], object]], prepare: Callable[[Hashable], None]):
        self.pipes: dict[Hashable, socket.socket] = {}
        self.pids: dict[Hashable, int] = {}
        self.killed: list[Hashable] = []
        self.replies: dict[Hashable, dict] = {}
        try:
            for name, job in jobs.items():
                mine, theirs = socket.socketpair()
                pid = os.fork()
                if pid == 0:
                    for s in (mine, *self.pipes.values()):
                        s.close()
                    _live(name, job, prepare, theirs)  # never returns
                theirs.close()
                self.pipes[name], self.pids[name] = mine, pid
        except BaseException:
            self.close()
            raise

    def kill(self, name) -> None:
        """SIGKILL; that it gives no reply is then no error."""
        self.killed.append(name)
        os.kill(self.pids[name], signal.SIGKILL)

    def start(self, timeout_s: float) -> None:
        """Lets all go on at once when all are ready."""
        deadline = time.monotonic() + timeout_s
        for name, pipe in self.pipes.items():
            pipe.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                said = pipe.recv(1)
                if said not in (b"r", b""):
                    while more := pipe.recv(1 << 16):
                        said += more
            except TimeoutError:
                said = b""
            pipe.settimeout(None)
            if said != b"r":
                why = pickle.loads(said)["error"] if said else "no reason was given"
                raise RuntimeError(f"the process of {name} did not start: {why}")
        for pipe in self.pipes.values():
            with contextlib.suppress(BrokenPipeError):
                pipe.sendall(b"g")

    def collect(
        self,
        timeout_s: float,
        alarms: list[tuple[float, Callable[[], None]]] = (),
        also: Mapping[int, Callable[[], None]] | None = None,
    ) -> dict[Hashable, dict]:
        """{name: {"value": …, "time_s": …, "printed": …} or {"error": …, "printed": …}} of all that were not killed.

        alarms: what to call so many seconds after now. also: {file descriptor: what to call when it can be
        read}.
        """
        began = time.monotonic()
        alarms = sorted(alarms, key=lambda alarm: alarm[0])
        also = also or {}
        received = {name: bytearray() for name in self.pipes}
        open_pipes = {pipe.fileno(): name for name, pipe in self.pipes.items()}
        while open_pipes:
            now = time.monotonic() - began
            while alarms and alarms[0][0] <= now:
                alarms.pop(0)[1]()
            limit = min([timeout_s, *(alarm[0] for alarm in alarms[:1])])
            readable, _, _ = select.select([*open_pipes, *also], [], [], max(0.0, limit - now))
            if not readable and time.monotonic() - began >= timeout_s:
                break
            for fd in readable:
                if fd in also:
                    also[fd]()
            for fd in readable:
                if fd in also:
                    continue
                name = open_pipes[fd]
                try:
                    data = self.pipes[name].recv(1 << 20)
                except ConnectionResetError:  # it was killed before it had read what we sent
                    data = b""
                received[name] += data
                if not data:
                    del open_pipes[fd]
        for call in also.values():
            call()  # what happened just before the last process ended
        for name, data in received.items():
            if name in self.killed:
                continue
            if self.pipes[name].fileno() in open_pipes:
                self.replies[name] = {"error": f"did not finish within {timeout_s:g} s"}
            elif not data:
                self.replies[name] = {"error": "its process ended without a result (killed, or os._exit)"}
            else:
                self.replies[name] = pickle.loads(data)
        return self.replies

    def print_output(self) -> None:
        for reply in self.replies.values():
            print(reply.get("printed", ""), end="")

    def close(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for pipe in self.pipes.values():
            pipe.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def _live(name, job, prepare, pipe: socket.socket) -> None:
    """A child's whole life."""
    printed = io.StringIO()
    try:
        die_with_parent()
        sys.stdout = printed
        if "torch" in sys.modules:
            # Also what makes a fork of a process that has computed in parallel safe: OpenMP's threads are not here.
            sys.modules["torch"].set_num_threads(1)
        prepare(name)
        pipe.sendall(b"r")
        if pipe.recv(1) != b"g":
            os._exit(1)
        started = time.perf_counter()
        value = job()
        reply = {"value": value, "time_s": time.perf_counter() - started}
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.endswith(_OWN_FILES)]
        where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        reply = {"error": f"{type(error).__name__}: {error}{where}"}
    try:
        message = pickle.dumps({**reply, "printed": printed.getvalue()})
    except Exception as error:
        message = pickle.dumps(
            {"error": f"its result can't be pickled: {error}", "printed": printed.getvalue()}
        )
    pipe.sendall(message)
    os._exit(0)


def die_with_parent() -> None:
    """Asks Linux to end this process when its parent ends, however that ends. Elsewhere its closed wires must do."""
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
