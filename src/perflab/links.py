"""torch.distributed between processes on one machine, over links whose bandwidth you choose.

On a page or in a notebook:

    import torch
    import torch.distributed as dist
    from perflab import links

    def hello(rank, world):
        x = torch.full((1_000_000,), float(rank))
        got = torch.empty_like(x)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, x, (rank + 1) % world),
            dist.P2POp(dist.irecv, got, (rank - 1) % world),
        ])
        for work in works:
            work.wait()
        return got[0].item()

    run = links.run(hello, world=4, bandwidth_bytes_per_s=50e6)
    run.values       # [3.0, 0.0, 1.0, 2.0]: what each rank returned
    run.time_s       # about 0.080: from the common start to the last rank's return
    run.bytes        # {(0, 1): 4000048, (1, 0): 32, …}: what went over each directed link, headers included

Inside the function the default process group is initialised with the back end "links", and what it does is ordinary
`torch.distributed`: `send`, `recv` (also with src=None), `isend`, `irecv`, `batch_isend_irecv`, `barrier`,
and the collectives `all_reduce`, `broadcast` and `all_gather`. The same function runs unchanged on Gloo:
`links.run(hello, world=4, backend="gloo")`, then of course at the machine's own speed.

What it keeps to, as torch documents it: messages between two ranks with the same tag arrive in the order they
were sent; different tags don't wait for each other; any number may be in flight, both ways at once; a tensor
that is being sent must not be changed before `wait()`. As on Gloo and NCCL a send *finishes only once the
receiver has posted its recv*: a ring in which every rank first sends and then receives stops for good (here:
until the time-out, with an error that names both sides). Tensors are dense, contiguous and on the CPU; sender
and receiver agree on the number of bytes. A peer whose process has ended makes the operations with it raise
`RuntimeError`, also those already waiting.

Only wires between the ranks carry data (`perflab.wires`: a process of its own paces and counts them). A
24-byte header goes with each message, and 32 bytes the other way ask for it. Handing a message over costs the
processes some tenths of a millisecond besides: measure it, it is the α of the cost model.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from .forked import Processes
from .wires import DATA, HEADER, MAGIC, Wires

__all__ = ["Links", "RankFailed", "Run", "join", "run"]

# Kinds of frames besides DATA. READY and ANNOUNCE go over the lane, so that they don't queue behind data.
_READY = 2  # receiver → sender: a recv is posted; its 8-byte payload is the recv's size
_ANNOUNCE = 3  # sender → receiver: a send waits for its recv (for src=None, and to say what a rank waits for)
_REFUSE = 4  # sender → receiver, in the place of DATA: the two sizes differ; 8-byte payload: the send's size
_INTERNAL_TAG = -(1 << 62)  # collectives count upwards from here, out of the way of every user's tag
_COLLECTIVES = ("all_reduce", "broadcast", "all_gather")


# ------------------------------------------------------------------------------------------------- the operations


class _Operation:
    """One send or recv. `done`, `error` and `source` are guarded by the engine's lock."""

    def __init__(self, engine: _Engine, what: str, peer: int | None, tag: int, data: memoryview, tensor):
        self.engine, self.what, self.peer, self.tag, self.data = engine, what, peer, tag, data
        self.tensor = tensor  # keeps the memory alive
        self.filled = 0
        self.done = self.waited_for = False
        self.error: str | None = None
        self.source: int | None = peer

    def __str__(self) -> str:
        name = {"send": "dst", "recv": "src"}[self.what]
        tag = f", tag={self.tag}" if self.tag > _INTERNAL_TAG // 2 else ", part of a collective or barrier"
        return f"{self.what}({name}={self.peer}{tag}) of {len(self.data)} bytes"

    def finish(self, error: str | None = None) -> None:
        self.done, self.error, self.tensor = True, error, None
        if self.waited_for:
            self.engine.changed.notify_all()


class _Engine:
    """Moves the frames of one rank. A thread of its own reads and writes, so transfers go on while the rank
    computes.

    Protocol: the receiver says READY for each posted recv, the sender answers with DATA; so the receiver
    always has the tensor's memory at hand and nothing is stored in between. A send that finds no READY is
    ANNOUNCEd.
    """

    def __init__(self, rank: int, wires: dict[int, socket.socket], lanes: dict[int, socket.socket]):
        self.rank = rank
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # Channels are (peer, is a lane). A rank may isend to itself: two socket pairs of its own.
        own, own_lane = socket.socketpair(), socket.socketpair()
        channels = {(peer, False): s for peer, s in wires.items()} | {
            (peer, True): s for peer, s in lanes.items()
        }
        self.outgoing = {**channels, (rank, False): own[0], (rank, True): own_lane[0]}
        self.incoming = {**channels, (rank, False): own[1], (rank, True): own_lane[1]}
        self.peers = {rank, *wires}
        self.wake_near, self.wake_far = socket.socketpair()
        self.sockets = {*self.outgoing.values(), *self.incoming.values(), self.wake_near, self.wake_far}
        for s in self.sockets:
            s.setblocking(False)
        self.lost: dict[int, str] = {}
        self.closed = False
        self.awake = False  # the thread has something to do and will look at `to_write` after it
        queue = collections.deque
        self.to_write: dict[tuple[int, bool], queue] = {channel: queue() for channel in self.outgoing}
        self.sends: dict[tuple[int, int], queue] = collections.defaultdict(queue)  # waiting for READY
        self.ready: dict[tuple[int, int], queue] = collections.defaultdict(queue)  # READY waiting for a send
        self.recvs: dict[tuple[int, int], queue] = collections.defaultdict(queue)  # waiting for DATA
        self.any_recvs: dict[int, queue] = collections.defaultdict(queue)  # by tag, waiting for ANNOUNCE
        self.announced: dict[tuple[int, int], queue] = collections.defaultdict(queue)
        self.granted: dict[tuple[int, int], int] = collections.Counter()
        self.posted: dict[tuple[int, int], int] = collections.Counter()
        self.head: dict[tuple[int, bool], bytearray] = {channel: bytearray() for channel in self.incoming}
        self.body: dict[int, _Operation | None] = dict.fromkeys(self.peers)
        self.thread = threading.Thread(target=self._loop, name="perflab.links", daemon=True)
        self.thread.start()

    # ---- called by the rank's own threads

    def send(self, peer: int, tag: int, data: memoryview, tensor=None) -> _Operation:
        operation = _Operation(self, "send", peer, tag, data, tensor)
        with self.lock:
            if self._refused(operation):
                return operation
            key = (peer, tag)
            number = self.posted[key]
            self.posted[key] += 1
            if self.ready[key]:
                self._pair(operation, self.ready[key].popleft())
            else:
                self.sends[key].append(operation)
                self._queue((peer, True), HEADER.pack(MAGIC, _ANNOUNCE, number, tag, 0))
        return operation

    def recv(self, peer: int | None, tag: int, data: memoryview, tensor=None) -> _Operation:
        operation = _Operation(self, "recv", peer, tag, data, tensor)
        with self.lock:
            if self._refused(operation):
                return operation
            if peer is None:
                for source in sorted(self.peers):
                    if self.announced[source, tag]:
                        self._grant(operation, source)
                        break
                else:
                    self.any_recvs[tag].append(operation)
            else:
                self._grant(operation, peer)
        return operation

    def wait(self, operation: _Operation, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self.lock:
            operation.waited_for = True
            while not operation.done:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RuntimeError(self._why_waiting(operation, timeout_s))
                self.changed.wait(left)
            if operation.error:
                raise RuntimeError(operation.error)

    def close(self) -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self._wake()
        if threading.current_thread() is not self.thread:
            self.thread.join()
        for s in self.sockets:
            s.close()

    # ---- under the lock

    def _refused(self, operation: _Operation) -> bool:
        error = None
        if self.closed:
            error = "the process group has been destroyed"
        elif operation.peer in self.lost:
            error = f"rank {self.rank}: {operation} is impossible: {self.lost[operation.peer]}"
        elif operation.peer is None and len(self.lost) == len(self.peers) - 1 > 0:
            error = f"rank {self.rank}: {operation} is impossible: every other rank has ended"
        elif operation.peer is not None and operation.peer not in self.peers:
            near = ", ".join(str(peer) for peer in sorted(self.peers) if peer != self.rank) or "none"
            error = (
                f"rank {self.rank} has no link to rank {operation.peer}; it is linked to: {near}. "
                f"Send through a neighbour."
            )
        if error:
            operation.finish(error)
        return error is not None

    def _queue(
        self, channel: tuple[int, bool], frame: bytes, data: memoryview | None = None, operation=None
    ) -> None:
        """Hands a frame over for writing; `operation` is finished when the last byte of header and data is written."""
        queue = self.to_write[channel]
        queue.append([memoryview(frame), None if data else operation])
        if data:
            queue.append([data, operation])
        if not self.awake:  # else the thread is about to write anyway, and all at once
            self._write(channel)

    def _pair(self, operation: _Operation, wanted_bytes: int) -> None:
        """A send and the recv it belongs to have met."""
        peer, tag, size = operation.peer, operation.tag, len(operation.data)
        if wanted_bytes == size:
            self._queue((peer, False), HEADER.pack(MAGIC, DATA, 0, tag, size), operation.data, operation)
        else:
            operation.finish(
                f"rank {self.rank}: {operation} meets a recv of {wanted_bytes} bytes on rank {peer}; "
                f"both sides must agree on shape and dtype"
            )
            self._queue((peer, False), HEADER.pack(MAGIC, _REFUSE, 0, tag, 8) + size.to_bytes(8, "little"))

    def _grant(self, operation: _Operation, source: int) -> None:
        """Ties a recv to the next message from `source` with its tag, and asks for that message."""
        key = (source, operation.tag)
        operation.source = source
        if self.announced[key]:
            self.announced[key].popleft()
        self.granted[key] += 1
        self.recvs[key].append(operation)
        size = len(operation.data)
        self._queue(
            (source, True), HEADER.pack(MAGIC, _READY, 0, operation.tag, 8) + size.to_bytes(8, "little")
        )

    def _write(self, channel: tuple[int, bool]) -> None:
        """Writes what the socket takes now; the thread goes on with the rest."""
        queue = self.to_write[channel]
        while queue:
            try:
                sent = self.outgoing[channel].sendmsg([data for data, _ in itertools.islice(queue, 16)])
            except BlockingIOError:
                self._wake()
                return
            except OSError:
                # What the peer wrote before it ended is still to be read; the thread calls `_lose` after that.
                for operation in [op for _, op in queue if op is not None]:
                    operation.finish(
                        f"rank {self.rank}: {operation} failed: rank {channel[0]} has ended or its link is cut"
                    )
                queue.clear()
                return
            while sent:
                data, operation = queue[0]
                if sent < len(data):
                    queue[0][0] = data[sent:]
                    break
                sent -= len(data)
                queue.popleft()
                if operation is not None:
                    operation.finish()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wake_near.send(b"x")

    def _lose(self, peer: int) -> None:
        if peer in self.lost:
            return
        self.lost[peer] = reason = f"rank {peer} has ended or its link is cut"
        waiting = [op for _, op in self.to_write[peer, False] if op is not None]
        self.to_write[peer, False].clear()
        self.to_write[peer, True].clear()
        if self.body[peer] is not None:
            waiting.append(self.body[peer])
            self.body[peer] = None
        for table in (self.sends, self.recvs):
            for (other, _), queue in table.items():
                if other == peer:
                    waiting += queue
                    queue.clear()
        if len(self.lost) == len(self.peers) - 1:
            for queue in self.any_recvs.values():
                waiting += queue
                queue.clear()
        for operation in waiting:
            if not operation.done:
                operation.finish(f"rank {self.rank}: {operation} failed: {reason}")

    def _why_waiting(self, operation: _Operation, timeout_s: float) -> str:
        text = f"rank {self.rank} waited {timeout_s:g} s in vain for {operation}"
        if operation.what == "send":
            other = f"rank {operation.peer} posted no recv for it"
            if operation not in self.sends[operation.peer, operation.tag]:
                other = "its transfer had begun but did not end in time"
        elif self.body.get(operation.source) is operation:
            other = f"{operation.filled} bytes had arrived"
        else:
            sources = [operation.peer] if operation.peer is not None else sorted(self.peers)
            tags = sorted({tag for (s, tag), queue in self.announced.items() if s in sources and queue})
            other = (
                f"rank {operation.peer} sent nothing"
                if operation.peer is not None
                else "nobody sent anything"
            )
            other += " with this tag"
            if tags:
                other += f", but has a send waiting with tag {', '.join(map(str, tags))}"
        own = [op for queue in self.sends.values() for op in queue if op is not operation]
        if operation.what == "recv" and own:
            other += f"; meanwhile this rank's own {own[0]} waits as well"
        return f"{text}: {other}"

    # ---- the thread

    def _loop(self) -> None:
        selector = selectors.DefaultSelector()
        watched: dict[socket.socket, int] = {}

        def watch(s: socket.socket, event: int, on: bool) -> None:
            mask = watched.get(s, 0)
            wanted = mask | event if on else mask & ~event
            if wanted == mask:
                return
            if mask and wanted:
                selector.modify(s, wanted)
            elif wanted:
                selector.register(s, wanted)
            else:
                selector.unregister(s)
            watched[s] = wanted

        for s in (*self.incoming.values(), self.wake_far):
            watch(s, selectors.EVENT_READ, True)
        channel_in = {s: channel for channel, s in self.incoming.items()}
        channel_out = {s: channel for channel, s in self.outgoing.items()}
        while True:
            events = selector.select()
            self.awake = True
            with self.lock:
                if self.closed:
                    selector.close()
                    return
                for key, mask in events:
                    s = key.fileobj
                    if s is self.wake_far:
                        s.recv(1 << 12)
                        continue
                    if mask & selectors.EVENT_WRITE:
                        self._write(channel_out[s])
                    if mask & selectors.EVENT_READ and not self._read(channel_in[s]):
                        watch(s, selectors.EVENT_READ, False)
                        peer, lane = channel_in[s]
                        if not lane:
                            self._lose(peer)
                for channel, s in self.outgoing.items():
                    if self.to_write[channel] and not watched.get(s, 0) & selectors.EVENT_WRITE:
                        self._write(channel)
                    watch(s, selectors.EVENT_WRITE, bool(self.to_write[channel]))
                self.awake = False

    def _read(self, channel: tuple[int, bool]) -> bool:
        """Reads what is there, about a quarter of a megabyte at most; False at the end of the stream."""
        source, head = self.incoming[channel], self.head[channel]
        peer, lane = channel
        budget = 1 << 18
        try:
            while budget > 0:
                operation = None if lane else self.body[peer]
                if operation is not None:
                    got = source.recv_into(operation.data[operation.filled :])
                    operation.filled += got
                    if operation.filled == len(operation.data):
                        self.body[peer] = None
                        operation.finish()
                else:
                    # READY and REFUSE frames carry 8 bytes more than their header.
                    data = source.recv(HEADER.size + (8 if len(head) >= HEADER.size else 0) - len(head))
                    got = len(data)
                    head += data
                    if len(head) >= HEADER.size and self._understand(peer, head):
                        head.clear()
                if got == 0:
                    return False
                budget -= got
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _understand(self, peer: int, head: bytearray) -> bool:
        """Acts on a frame's header; False when it needs its 8 more bytes."""
        magic, kind, number, tag, length = HEADER.unpack_from(head)
        key = (peer, tag)
        if magic != MAGIC:
            raise OSError("not a frame")
        if kind in (_READY, _REFUSE):
            if len(head) < HEADER.size + 8:
                return False
            size = int.from_bytes(head[HEADER.size :], "little")
            if kind == _REFUSE:
                operation = self.recvs[key].popleft()
                operation.finish(
                    f"rank {self.rank}: {operation} meets a send of {size} bytes on rank {peer}; "
                    f"both sides must agree on shape and dtype"
                )
            elif self.sends[key]:
                self._pair(self.sends[key].popleft(), size)
            else:
                self.ready[key].append(size)
        elif kind == _ANNOUNCE:
            if number >= self.granted[key]:
                self.announced[key].append(number)
                if self.any_recvs[tag]:
                    self._grant(self.any_recvs[tag].popleft(), peer)
        elif kind == DATA:
            operation = self.recvs[key].popleft()
            if length:
                self.body[peer] = operation
            else:
                operation.finish()
        return True


# ------------------------------------------------------------------------------------------- torch's view of it


def _memory(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory as bytes."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"links carry dense CPU tensors, not one on {tensor.device} with layout {tensor.layout}"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            "links carry contiguous tensors only: send x.contiguous(), receive into a contiguous buffer"
        )
    if tensor.numel() == 0:
        return memoryview(bytearray())
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


class _Work(dist.Work):
    """The request that `isend`, `irecv` and asynchronous collectives return."""

    def __init__(self, engine: _Engine, timeout_s: float, operation: _Operation):
        super().__init__()
        self._engine, self._timeout_s, self._operation = engine, timeout_s, operation

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Blocks until finished, at most `timeout` (default: the group's); raises RuntimeError if it failed."""
        self._engine.wait(self._operation, timeout.total_seconds() or self._timeout_s)
        return True

    def is_completed(self) -> bool:
        return self._operation.done

    def is_success(self) -> bool:
        return self._operation.done and self._operation.error is None

    def exception(self):
        return RuntimeError(self._operation.error) if self._operation.error else None

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._operation.source

    _source_rank = source_rank


class _CollectiveWork(dist.Work):
    """A collective runs its point-to-point steps in the group's collective thread."""

    def __init__(self, what: str, function: Callable[[], None], result: list[torch.Tensor]):
        super().__init__()
        self._what, self._function, self._result = what, function, result
        self._finished = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            # The caller may be in this mode, which belongs to its thread, and so may its tensors.
            with torch.inference_mode():
                self._function()
        except BaseException as error:  # handed to whoever waits
            self._error = error
        self._finished.set()

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Blocks until finished. Without `timeout` each step inside has the group's time-out."""
        if not self._finished.wait(timeout.total_seconds() or None):
            raise RuntimeError(f"{self._what} did not finish within {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._finished.is_set()

    def is_success(self) -> bool:
        return self._finished.is_set() and self._error is None

    def exception(self):
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()

        def complete() -> None:
            try:
                self.wait()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(self._result)

        threading.Thread(target=complete, daemon=True).start()
        return future


class Links(dist.ProcessGroup):
    """The process group behind the back end "links"; made by `join` or `run`, used through `torch.distributed`."""

    def __init__(self, rank: int, world: int, ends, lanes, timeout_s: float, collectives: Iterable[str]):
        super().__init__(rank, world)
        self._rank, self._world, self._timeout_s = rank, world, timeout_s
        self._collectives = frozenset(collectives)
        self._engine = _Engine(rank, ends, lanes)
        self._tag = _INTERNAL_TAG
        self._jobs: collections.deque[_CollectiveWork] = collections.deque()
        self._job = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def getBackendName(self) -> str:
        return "links"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world

    # ---- point to point

    def send(self, tensors, dst: int, tag: int = 0):
        (tensor,) = tensors
        return _Work(self._engine, self._timeout_s, self._engine.send(dst, tag, _memory(tensor), tensor))

    def recv(self, tensors, src: int, tag: int = 0):
        (tensor,) = tensors
        return _Work(self._engine, self._timeout_s, self._engine.recv(src, tag, _memory(tensor), tensor))

    def recv_anysource(self, tensors, tag: int = 0):
        (tensor,) = tensors
        return _Work(self._engine, self._timeout_s, self._engine.recv(None, tag, _memory(tensor), tensor))

    # ---- all ranks together

    def barrier(self, opts=None):
        tag = self._next_tag()
        nothing = memoryview(bytearray())

        def twice_round() -> None:
            # The first turn tells rank 0 that all have come, the second tells all.
            if self._world == 1:
                return
            right, left = (self._rank + 1) % self._world, (self._rank - 1) % self._world
            for _ in range(2):
                if self._rank == 0:
                    self._wait(self._engine.send(right, tag, nothing))
                    self._wait(self._engine.recv(left, tag, nothing))
                else:
                    self._wait(self._engine.recv(left, tag, nothing))
                    self._wait(self._engine.send(right, tag, nothing))

        return self._start("barrier", twice_round, [])

    def allreduce(self, tensors, opts=None):
        self._allow("all_reduce")
        (tensor,) = tensors
        reduce = _reduction(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        mean = getattr(opts, "reduceOp", None) == dist.ReduceOp.AVG
        tag = self._next_tag()
        _memory(tensor)

        def ring() -> None:
            flat = tensor.detach().view(-1)
            parts = flat.tensor_split(self._world)
            got = torch.empty_like(parts[0])
            for step in range(self._world - 1):
                here = parts[(self._rank - step - 1) % self._world]
                self._exchange(parts[(self._rank - step) % self._world], got[: here.numel()], tag)
                reduce(here, got[: here.numel()])
            for step in range(self._world - 1):
                self._exchange(
                    parts[(self._rank + 1 - step) % self._world],
                    parts[(self._rank - step) % self._world],
                    tag,
                )
            if mean:
                flat /= self._world

        return self._start("all_reduce", ring, [tensor])

    def broadcast(self, tensors, opts):
        self._allow("broadcast")
        (tensor,) = tensors
        tag = self._next_tag()
        data, root = _memory(tensor), opts.rootRank

        def send_to_all() -> None:
            if self._rank == root:
                peers = [peer for peer in range(self._world) if peer != root]
                for work in [self._engine.send(peer, tag, data, tensor) for peer in peers]:
                    self._wait(work)
            else:
                self._wait(self._engine.recv(root, tag, data, tensor))

        return self._start("broadcast", send_to_all, [tensor])

    def allgather(self, output_tensors, input_tensors, opts=None):
        self._allow("all_gather")
        (outputs,), (tensor,) = output_tensors, input_tensors
        tag = self._next_tag()
        if len(outputs) != self._world:
            raise ValueError(f"all_gather needs one output tensor a rank: {self._world}, not {len(outputs)}")

        def ring() -> None:
            outputs[self._rank].copy_(tensor)
            for step in range(self._world - 1):
                self._exchange(
                    outputs[(self._rank - step) % self._world],
                    outputs[(self._rank - step - 1) % self._world],
                    tag,
                )

        return self._start("all_gather", ring, outputs)

    def shutdown(self) -> None:
        self._engine.close()

    abort = shutdown

    def _exchange(self, to_right: torch.Tensor, from_left: torch.Tensor, tag: int) -> None:
        right, left = (self._rank + 1) % self._world, (self._rank - 1) % self._world
        works = [
            self._engine.recv(left, tag, _memory(from_left), from_left),
            self._engine.send(right, tag, _memory(to_right), to_right),
        ]
        for work in works:
            self._wait(work)

    def _wait(self, operation: _Operation) -> None:
        self._engine.wait(operation, self._timeout_s)

    def _allow(self, collective: str) -> None:
        if collective not in self._collectives:
            allowed = ", ".join(sorted(self._collectives)) or "none"
            raise RuntimeError(
                f"{collective} is a collective, and here (allowed collectives: {allowed}) you build it yourself: "
                f"use isend, irecv or batch_isend_irecv"
            )

    def _next_tag(self) -> int:
        self._tag += 1
        return self._tag

    def _start(self, what: str, function: Callable[[], None], result: list) -> _CollectiveWork:
        work = _CollectiveWork(what, function, result)
        self._jobs.append(work)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run_jobs, name="perflab.links collectives", daemon=True
            )
            self._thread.start()
        self._job.release()
        return work

    def _run_jobs(self) -> None:
        while True:
            self._job.acquire()
            self._jobs.popleft().run()


def _refuse(collective: str):
    def refused(self, *args, **kwargs):
        self._allow(collective)

    return refused


# Everything else that a process group can do is refused by name, not by an obscure error of the base class.
for _method, _collective in {
    "allreduce_coalesced": "all_reduce_coalesced",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
}.items():
    setattr(Links, _method, _refuse(_collective))


def _reduction(op) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    functions = {
        dist.ReduceOp.SUM: torch.Tensor.add_,
        dist.ReduceOp.AVG: torch.Tensor.add_,
        dist.ReduceOp.PRODUCT: torch.Tensor.mul_,
        dist.ReduceOp.MAX: lambda a, b: torch.maximum(a, b, out=a),
        dist.ReduceOp.MIN: lambda a, b: torch.minimum(a, b, out=a),
    }
    for known, function in functions.items():
        if op == known:
            return function
    raise ValueError(f"links reduce with SUM, AVG, PRODUCT, MAX or MIN, not {op}")


# ------------------------------------------------------------------------------------------------ joining, running

_joining: list[Links] = []


def _create(store, rank, size, timeout):
    if not _joining:
        raise RuntimeError(
            'process groups over links are made by perflab.links alone: no new_group, no init_process_group("links")'
        )
    return _joining.pop()


def join(
    rank: int,
    world: int,
    ends: dict[int, socket.socket],
    lanes: dict[int, socket.socket],
    *,
    timeout_s: float = 30.0,
    collectives: Iterable[str] = _COLLECTIVES,
) -> None:
    """Makes the links the default process group of this process.

    ends, lanes: {peer's rank: connected Unix socket}, this rank's ends of the wires and of their lanes
    (`perflab.wires.Wires(..., lanes=True)`); a rank without a wire to a peer can't send to it. timeout_s: how
    long a
    `wait()` waits by default. collectives: which of all_reduce, broadcast and all_gather may be used
    (`barrier` always).
    """
    if "LINKS" not in dist.Backend._plugins:
        dist.Backend.register_backend("links", _create, devices=["cpu"])
    _joining.append(Links(rank, world, ends, lanes, timeout_s, collectives))
    dist.init_process_group("links", store=dist.HashStore(), rank=rank, world_size=world)


@dataclasses.dataclass
class Run:
    """What `run` measured. Keys of `bytes` and `messages` are directed links (from, to)."""

    values: list
    time_s: float  # from the common start to the return of the last rank
    times_s: list[float]  # the same, rank by rank
    bytes: dict[tuple[int, int], int]  # everything that went over the link, headers included; empty on Gloo
    messages: dict[tuple[int, int], int]

    def sent_bytes(self, rank: int) -> int:
        """Bytes that one rank sent, on all its links together."""
        return sum(n for (source, _), n in self.bytes.items() if source == rank)


class RankFailed(RuntimeError):
    """One or more ranks raised, died, or did not finish; `errors` is {rank: text}."""

    def __init__(self, errors: dict[int, str]):
        self.errors = errors
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in sorted(errors.items())))


def run(
    function: Callable,
    world: int,
    *args,
    bandwidth_bytes_per_s: float | None = None,
    latency_s: float = 0.0,
    pairs=None,
    collectives=_COLLECTIVES,
    backend: str = "links",
    timeout_s: float = 60.0,
) -> Run:
    """Runs `function(rank, world, *args)` in `world` processes joined by links; returns a `Run`.

    function: any function, also one defined in a notebook; the processes are forked, so it sees what the
    notebook has defined. It returns what pickle can carry. Each process computes with one thread. What it
    prints is printed here, rank by rank, when all have finished.
    bandwidth_bytes_per_s: of each direction of each link; None: as fast as the machine can. latency_s: of
    each link.
    pairs: pairs of ranks that have a link, e.g. [(0, 1), (1, 2), (2, 0)]; None: all.
    collectives: those that may be used. backend: "links", or "gloo" for the same function on torch's own back end.
    Raises RankFailed, which says for each rank what it raised or waited for, after at most about timeout_s.
    """
    if backend not in ("links", "gloo"):
        raise ValueError(f'backend must be "links" or "gloo", not {backend!r}')
    ranks = range(world)
    jobs = {rank: functools.partial(function, rank, world, *args) for rank in ranks}
    if backend == "gloo":
        # A file as meeting point: unlike a TCP store it needs no thread in this process, which is about to fork.
        with tempfile.TemporaryDirectory(prefix="perflab-") as folder:

            def prepare(rank: int) -> None:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
                store = dist.FileStore(os.path.join(folder, "store"), world)
                limit = datetime.timedelta(seconds=timeout_s)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)

            with Processes(jobs, prepare) as processes:
                processes.start(timeout_s)
                processes.collect(timeout_s + 5)
        counts = {}
    else:
        with Wires(
            world, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, pairs=pairs, lanes=True
        ) as wires:

            def prepare(rank: int) -> None:
                wires.become(rank)
                ends, lanes = wires.ends(rank), wires.lanes(rank)
                join(rank, world, ends, lanes, timeout_s=timeout_s, collectives=collectives)

            with Processes(jobs, prepare) as processes:
                for rank in ranks:
                    wires.hand_over(rank)
                wires.counts()  # answered only when the forwarder is up: its start is nobody's time
                processes.start(timeout_s)
                # The ranks' own time-outs say more than this one, so they come first.
                processes.collect(timeout_s + 5)
            counts = wires.counts()
    processes.print_output()
    replies = processes.replies
    errors = {rank: replies[rank]["error"] for rank in ranks if "error" in replies[rank]}
    if errors:
        raise RankFailed(errors)
    return Run(
        values=[replies[rank]["value"] for rank in ranks],
        time_s=max(replies[rank]["time_s"] for rank in ranks),
        times_s=[replies[rank]["time_s"] for rank in ranks],
        bytes={link: count["bytes"] for link, count in counts.items()},
        messages={link: count["messages"] for link, count in counts.items()},
    )
