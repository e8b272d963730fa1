"""Machines that can be lost: nodes that send each other messages, in processes that are killed on purpose.

A *node* stands for one machine. It shares nothing with the others: no variables, no files, no clock. All it
has is a `Node` object, with which it sends and receives messages. This page is all there is to know about it.

    from perflab import cluster

    def server(node):
        total = 0
        while True:
            try:
                sender, number = node.recv()
                total += number
                node.send(sender, total)
            except cluster.PeerLost:          # the only client has finished, or died
                return total

    def client(node, numbers):
        for number in numbers:
            node.send("server", number)
            sender, total = node.recv(timeout=1.0)
        return total

    run = cluster.run({"server": server, "client": (client, [1, 2, 3])})
    run.values                                # {"server": 6, "client": 6}

**A node has**

`node.name`     its own name, a string.
`node.peers`    the names of the nodes it has a link to, a tuple, in the same order on every node.
`node.lost`     the set of peers that it knows to be lost. `send` may find out first: messages of such a peer can then still
                be waiting, and `recv` gives them, and its `PeerLost` at their end, all the same.

**`node.send(to, message)`** sends a message to the peer named `to`. A message is any value that `pickle`
carries: numbers, strings, tuples, dictionaries, NumPy arrays, tensors. It is copied: what you change
afterwards doesn't travel. `send` returns as soon as the message is handed to the network. *That it returned
says nothing about whether the message arrived*, let alone whether it was acted upon: only an answer from the
other side says that. Raises `PeerLost` when the peer is known to be lost, ValueError for a name that isn't a peer.

**`node.recv(timeout=None)`** returns `(sender, message)` of the next message, whoever sent it; it waits for
one at most `timeout` seconds (None: for ever; 0: take one that is here already). Raises `TimeoutError` when
none came in time, and `PeerLost` when a peer is lost.

**`PeerLost`** has the lost node's name in `.peer`. `recv` raises it exactly once for each lost peer, at the
place in the stream of messages where that peer fell silent: everything it had sent completely comes first,
then the exception, then `recv` goes on with the other peers. A message that was cut off half way is never
seen, not even in part. A lost peer stays lost.

**What is promised.** Messages from one node to another arrive complete, unchanged, once, and in the order
they were sent.

**What is not.** Nothing is known about the order of messages from *different* nodes. A node
dies between any two of its steps, also within `send`: it may have told one peer and not yet the other. A peer
that died *may* have acted on your last message before it died, or not: you can't know, and must be right in
both cases. A silent peer may be dead, slow or paused: a time-out does not tell which; `PeerLost` does. A node
whose function has returned looks to the others just like one that died.

**Breaking things.** `cluster.run(..., faults=[...])` takes

`Kill(node, when)`           the node ends, with all it had in memory; what it was sending is cut off.
`Pause(node, when, for_s)`   nothing comes from it or to it for so long; then everything arrives.
`Cut(a, b, when)`            the link between two nodes breaks; each is lost to the other.

`when` is a number of seconds after the start, or, exactly repeatable, `Message(source, to, number,
fraction)`: when that fraction of message `number` (from 0) from `source` to `to` has arrived; 0 is before its
first byte, 0.5 inside it, 1 (the default) just after its last byte. `Kill("server", Message("client",
"server", 2))` kills the server when the third request has reached it and before any answer to it gets out.

On the command line and in notebooks the nodes are forked from your own process. When an exercise is graded
each is in a sandbox of its own, and the links belong to the grader; the `Node` is the same, but a `recv` without a
time-out that has waited for 4 s ends with a RuntimeError. The grader also kills a node whose messages still under way
arrive a little later, before the others see it fall silent.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import pickle
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from .forked import Processes
from .wires import DATA, HEADER, MAGIC, Wires

__all__ = ["Cut", "Kill", "Message", "Node", "NodeFailed", "Pause", "PeerLost", "Run", "run"]


class PeerLost(Exception):
    """A peer has died, or returned, or the link to it is cut; `.peer` is its name."""

    def __init__(self, peer: str):
        super().__init__(f"the node {peer!r} is lost")
        self.peer = peer

    def __reduce__(self):
        return PeerLost, (self.peer,)


class Node:
    """One node's view of the cluster; see the text of `perflab.cluster`.

    ends: {peer's name: connected Unix socket}. Nodes get theirs from `run`, or from the grader.
    """

    def __init__(self, name: str, ends: Mapping[str, socket.socket]):
        self.name = name
        self.peers = tuple(sorted(ends))
        self.lost: set[str] = set()
        self._ends = dict(ends)
        self._locks = {peer: threading.Lock() for peer in ends}
        self._arrived: collections.deque[tuple[str, bytes | None]] = (
            collections.deque()
        )  # None: that peer is lost
        self._news = threading.Condition()
        self._patience_s: float | None = (
            None  # the grader's: how long a recv without time-out waits before it says so
        )
        self._sent = "it has sent nothing"
        threading.Thread(target=self._read, name="perflab.cluster", daemon=True).start()

    def __repr__(self) -> str:
        return f"Node({self.name!r}, peers={self.peers})"

    def send(self, to: str, message) -> None:
        """Sends `message` to the peer `to`. Raises PeerLost, ValueError."""
        if to not in self._ends:
            raise ValueError(
                f"{self.name} has no link to {to!r}; its peers are {', '.join(self.peers) or 'none'}"
            )
        if to in self.lost:
            raise PeerLost(to)
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._locks[to]:
                self._ends[to].sendall(HEADER.pack(MAGIC, DATA, 0, 0, len(data)) + data)
        except OSError:
            self.lost.add(to)
            raise PeerLost(to) from None
        self._sent = f"its last message went to {to}"

    def recv(self, timeout: float | None = None):
        """(sender, message) of the next message. Raises TimeoutError after `timeout` seconds, PeerLost."""
        limit_s = self._patience_s if timeout is None else timeout
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with self._news:
            while not self._arrived:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    if timeout is None:
                        raise RuntimeError(
                            f"{self.name} waited {limit_s:g} s in vain in recv(); {self._sent}"
                        )
                    raise TimeoutError(f"no message came to {self.name} within {timeout:g} s")
                self._news.wait(left)
            peer, data = self._arrived.popleft()
        if data is None:
            self.lost.add(peer)
            raise PeerLost(peer)
        return peer, pickle.loads(data)

    def close(self) -> None:
        """Closes all links: to its peers the node is lost. Done when the node's function returns."""
        for end in self._ends.values():
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was first
                continue

    def _read(self) -> None:
        """Takes in whatever comes, so that no sender waits for this node to call `recv`."""
        with selectors.DefaultSelector() as selector:
            buffers = {peer: bytearray() for peer in self._ends}
            for peer, end in self._ends.items():
                selector.register(end, selectors.EVENT_READ, peer)
            while selector.get_map():
                for key, _ in selector.select():
                    peer, buffer = key.data, buffers[key.data]
                    try:
                        data = key.fileobj.recv(1 << 18)
                    except OSError:
                        data = b""
                    buffer += data
                    news = [(peer, message) for message in _complete(buffer)]
                    if not data:
                        selector.unregister(key.fileobj)
                        news.append((peer, None))
                    if news:
                        with self._news:
                            self._arrived += news
                            self._news.notify_all()


def _complete(buffer: bytearray) -> Iterable[bytes]:
    """Takes the payloads of the complete frames out of a buffer."""
    while len(buffer) >= HEADER.size:
        length = HEADER.unpack_from(buffer)[4]
        if len(buffer) < HEADER.size + length:
            return
        yield bytes(buffer[HEADER.size : HEADER.size + length])
        del buffer[: HEADER.size + length]


# ------------------------------------------------------------------------------------------------------ what breaks


@dataclasses.dataclass(frozen=True)
class Message:
    """A moment: when the `fraction` of message `number` (from 0) from `source` to `to` has arrived."""

    source: str
    to: str
    number: int
    fraction: float = 1.0


@dataclasses.dataclass(frozen=True)
class Kill:
    """Ends `node` without warning at `when` (seconds after the start, or a Message)."""

    node: str
    when: float | Message


@dataclasses.dataclass(frozen=True)
class Pause:
    """Holds back everything from and to `node` for `for_s` seconds, from `when` on."""

    node: str
    when: float | Message
    for_s: float


@dataclasses.dataclass(frozen=True)
class Cut:
    """Breaks the link between `a` and `b` at `when`; a Message must be one between these two."""

    a: str
    b: str
    when: float | Message


# ------------------------------------------------------------------------------------------------------------- run


@dataclasses.dataclass
class Run:
    """What `run` saw. Keys of `bytes` and `messages` are directed links (from, to)."""

    values: dict[str, object]  # what each node's function returned; a killed node has none
    killed: list[str]  # in the order in which they were killed
    time_s: float  # from the common start to the return of the last node
    bytes: dict[tuple[str, str], int]
    messages: dict[tuple[str, str], int]


class NodeFailed(RuntimeError):
    """One or more nodes raised, died unasked, or did not finish; `errors` is {name: text}."""

    def __init__(self, errors: dict[str, str]):
        self.errors = errors
        super().__init__("\n".join(f"{name}: {text}" for name, text in errors.items()))


def run(
    nodes: Mapping[str, Callable | tuple],
    *,
    faults: Iterable[Kill | Pause | Cut] = (),
    bandwidth_bytes_per_s: float | None = None,
    latency_s: float = 0.0,
    pairs=None,
    timeout_s: float = 60.0,
) -> Run:
    """Starts one process for each node, lets all begin at once, and returns what they returned, as a `Run`.

    nodes: {name: function} or {name: (function, argument, …)}, called as function(node, argument, …).
    faults: what is to break (Kill, Pause, Cut). pairs: the pairs of names that are linked; None: all.
    bandwidth_bytes_per_s, latency_s: of each direction of each link; without them as fast as the machine can.
    Raises NodeFailed with what each node raised; a node still running after timeout_s seconds is ended and
    counts as failed.
    """
    faults = list(faults)
    with Wires(
        list(nodes), bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, pairs=pairs
    ) as wires:
        jobs = {}
        for name, job in nodes.items():
            function, *arguments = job if isinstance(job, tuple) else (job,)
            jobs[name] = functools.partial(_run_node, wires, name, function, arguments)
        with Processes(jobs, wires.become) as processes:
            for name in nodes:
                wires.hand_over(name)
            alarms = []
            for number, fault in enumerate(faults):
                if isinstance(fault.when, Message):
                    _arm(wires, fault, number)
                else:
                    alarms += _alarms(wires, processes, fault)

            def sprung() -> None:
                while event := wires.event(0):
                    if event["did"] == "kill":
                        processes.kill(faults[event["label"]].node)

            wires.counts()  # answered only when the forwarder is up: its start is nobody's time
            processes.start(timeout_s)
            began = time.monotonic()
            processes.collect(timeout_s, alarms, also={wires.fileno(): sprung})
            time_s = time.monotonic() - began
        counts = wires.counts()
    processes.print_output()
    replies = processes.replies
    errors = {name: reply["error"] for name, reply in replies.items() if "error" in reply}
    if errors:
        raise NodeFailed(errors)
    return Run(
        values={name: replies[name]["value"] for name in nodes if name in replies},
        killed=processes.killed,
        time_s=time_s,
        bytes={link: count["bytes"] for link, count in counts.items()},
        messages={link: count["messages"] for link, count in counts.items()},
    )


def _run_node(wires: Wires, name: str, function: Callable, arguments: list):
    node = Node(name, wires.ends(name))
    try:
        return function(node, *arguments)
    finally:
        node.close()


def _arm(wires: Wires, fault: Kill | Pause | Cut, label: int) -> None:
    moment = fault.when
    if isinstance(fault, Cut) and {fault.a, fault.b} != {moment.source, moment.to}:
        raise ValueError(f"the moment of {fault} must be a message between {fault.a} and {fault.b}")
    wires.arm(
        type(fault).__name__.lower(),
        source=moment.source,
        to=moment.to,
        message=moment.number,
        fraction=moment.fraction,
        node=getattr(fault, "node", None),
        for_s=getattr(fault, "for_s", 0.0),
        label=label,
    )


def _alarms(
    wires: Wires, processes: Processes, fault: Kill | Pause | Cut
) -> list[tuple[float, Callable[[], None]]]:
    """[(seconds after the start, what to do)]"""
    if isinstance(fault, Kill):

        def kill() -> None:
            wires.kill(fault.node)
            processes.kill(fault.node)

        return [(fault.when, kill)]
    if isinstance(fault, Cut):
        return [(fault.when, lambda: wires.cut(fault.a, fault.b))]
    return [
        (fault.when, lambda: wires.hold([fault.node])),
        (fault.when + fault.for_s, lambda: wires.release([fault.node])),
    ]
