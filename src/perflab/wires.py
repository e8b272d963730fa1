"""Wires between processes: paced, counted, and cut when asked, by a process that is none of theirs.

Every pair of nodes that may talk has one wire. A wire is two Unix stream sockets that end in a *forwarder*,
a process of its own started by `Wires`: what node a writes is read by the forwarder and written on to node b,
no sooner than a link of the given bandwidth and latency would have delivered it. The nodes hold nothing but
their own ends, so they can neither speed a link up nor change what was counted.

Pacing. Each direction is a line that serialises its bytes one after the other: n bytes that begin at time s
have arrived at s + n / bandwidth + latency, where s is the moment they reached the line or the moment the
line became free, whichever is later. There is no burst: an idle line saves nothing up. If the forwarder
itself wakes late it catches up, since the line of the model would not have slept.

Lanes. A protocol in which the receiver asks for data needs its small requests not to stand in line behind
megabytes of data going the same way. With `lanes=True` each wire has a second pair of sockets for such frames
of at most `LANE_BYTES`; it has the wire's latency and a fiftieth of its bandwidth, and counts with the wire.

Frames. What the nodes write are frames: a header (`HEADER`) and a payload. The forwarder reads the headers to
count messages and to stop at a chosen byte of a chosen message; bytes that are not frames are carried and
counted all the same, and marked as `foreign`.

The forwarder ends when the process that started it does, however that ends, and the nodes then see their
wires close. Nothing here needs a port, a file or a name, so any number of runs can go on at once.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import json
import select
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable

# magic, kind, a number for the protocol's own use, tag, payload length in bytes
HEADER = struct.Struct("<2sBxIqQ")
MAGIC = b"PL"
LANE_BYTES = 8  # the longest payload that a lane carries
DATA = 1  # the kind of a frame that counts as a message; all others are the protocol's own overhead

_SEGMENT_BYTES = 1 << 16
_SOCKET_BYTES = 1 << 20
# How far the forwarder reads ahead of the line, in seconds of the line's time: a forwarder that the operating
# system keeps waiting for less than this loses no bandwidth.
_READ_AHEAD_S = 0.06


class Wires:
    """Starts a forwarder for the nodes `names` and holds the nodes' ends of the wires.

    names: node names (any strings or integers), or a number n for the nodes 0 … n-1.
    bandwidth_bytes_per_s: of each direction of each wire; None: as fast as the machine can.
    latency_s: added to every byte's way.
    pairs: the pairs of names that are connected; None: all. lanes: give every wire a lane for small frames.

    `ends(name)` gives {peer: socket} and `lanes(name)` the same for the lanes; hand those to the node's
    process and then call `hand_over(name)`, so that the node's death is seen by its peers (a socket closes
    when its *last* holder closes it). A context manager; `close()` ends the forwarder, and with it every
    wire.
    """

    def __init__(
        self,
        names,
        *,
        bandwidth_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        pairs=None,
        lanes=False,
    ):
        self.names = list(range(names)) if isinstance(names, int) else list(names)
        if pairs is None:
            pairs = [(a, b) for i, a in enumerate(self.names) for b in self.names[i + 1 :]]
        self.pairs = sorted({tuple(sorted((self.names.index(a), self.names.index(b)))) for a, b in pairs})
        if any(a == b for a, b in self.pairs):
            raise ValueError("a wire joins two different nodes")
        if bandwidth_bytes_per_s is not None and not bandwidth_bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s must be positive or None, not {bandwidth_bytes_per_s!r}")
        if not latency_s >= 0:
            raise ValueError(f"latency_s must be 0 or more, not {latency_s!r}")
        self._ends: dict[int, dict[tuple[int, bool], socket.socket]] = {i: {} for i in range(len(self.names))}
        self._events: collections.deque[dict] = collections.deque()
        self._buffer = b""
        theirs, wires = [], []
        self._control, forwarder_control = socket.socketpair()
        try:
            for a, b, lane in [
                (*pair, lane) for pair in self.pairs for lane in ((False, True) if lanes else (False,))
            ]:
                fds = []
                for me, peer in ((a, b), (b, a)):
                    mine, far = socket.socketpair()
                    for end in (mine, far):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
                    self._ends[me][peer, lane] = mine
                    theirs.append(far)
                    fds.append(far.fileno())
                wires.append((a, b, lane, *fds))
            settings = {
                "control": forwarder_control.fileno(),
                "wires": wires,
                "rate": bandwidth_bytes_per_s,
                "latency": latency_s,
            }
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                pass_fds=[forwarder_control.fileno(), *(s.fileno() for s in theirs)],
            )
        except BaseException:
            self._close_ends()
            self._control.close()
            raise
        finally:
            forwarder_control.close()
            for s in theirs:
                s.close()

    # ---- the nodes' ends

    def ends(self, name) -> dict:
        """{peer's name: socket} for the wires of one node."""
        return {self.names[p]: s for (p, lane), s in self._ends[self.names.index(name)].items() if not lane}

    def lanes(self, name) -> dict:
        """{peer's name: socket} for the lanes of one node; empty unless the wires were made with `lanes=True`."""
        return {self.names[p]: s for (p, lane), s in self._ends[self.names.index(name)].items() if lane}

    def hand_over(self, name) -> None:
        """Closes this process's copies of a node's ends: call it once the node's own process holds them."""
        for s in self._ends[self.names.index(name)].values():
            s.close()
        self._ends[self.names.index(name)] = {}

    def become(self, name) -> None:
        """For a forked child: keeps the ends of one node, closes everything else that it inherited."""
        self._control.close()
        for other in self.names:
            if other != name:
                self.hand_over(other)

    # ---- what a run asks of the wires

    def set_links(self, *, bandwidth_bytes_per_s: float | None, latency_s: float = 0.0, links=None) -> None:
        """Sets bandwidth and latency from now on; links: directed (from, to) pairs, None for all."""
        self._ask("set", rate=bandwidth_bytes_per_s, latency=latency_s, links=self._directed(links))

    def hold(self, names=None) -> None:
        """Lets no byte pass on any wire of these nodes (None: on any) until `release`."""
        self._ask("hold", nodes=self._indices(names))

    def release(self, names=None) -> None:
        self._ask("release", nodes=self._indices(names))

    def kill(self, name, *, drain: bool = False) -> None:
        """Breaks every wire of one node, at once; what is still on its way from it or to it is lost.

        drain: what is on its way from it still arrives, and only then do its peers see their wires close.
        """
        self._ask("kill", node=self.names.index(name), drain=drain)

    def cut(self, a, b) -> None:
        """Breaks the wire between two nodes, at once."""
        self._ask("cut", a=self.names.index(a), b=self.names.index(b))

    def arm(self, do: str, *, source, to, message: int, fraction: float = 0.0, node=None, for_s: float = 0.0,
        drain: bool = False, label=None,
    ) -> None:  # fmt: skip
        """Does something when a chosen byte is about to pass.

        do: "kill" (the node `node`, with `drain` as in `kill`), "cut" (the wire between `source` and `to`) or
        "pause" (hold every wire of `node` for `for_s` seconds). The moment: `message` counts the messages from `source` to `to` from 0;
        `fraction` 0 is before its first byte, 0.5 in the middle, 1 after its last byte was delivered.
        When it happens `event` returns {"did": do, "label": label, "at_s": …} (label: any JSON value).
        """
        if do not in ("kill", "cut", "pause"):
            raise ValueError(f'do must be "kill", "cut" or "pause", not {do!r}')
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must lie between 0 and 1, not {fraction!r}")
        self._ask(
            "arm",
            do=do,
            link=self._directed([(source, to)])[0],
            message=message,
            fraction=fraction,
            node=None if node is None else self.names.index(node),
            for_s=for_s,
            drain=drain,
            label=label,
        )

    def counts(self, *, reset: bool = False) -> dict:
        """What each direction of each wire has carried: {(from, to): {...}} with

        bytes (everything, headers too), messages and message_bytes (payloads of messages), foreign (bytes
        that were no frames), first_s and last_s (first byte taken in, last byte delivered, on the clock of
        `time.monotonic`; None before there was one). reset: start again from 0.
        """
        return {
            (self.names[a], self.names[b]): counts
            for a, b, counts in self._ask("counts", reset=reset)["links"]
        }

    def event(self, timeout_s: float) -> dict | None:
        """The next thing that an `arm` did, waiting for it at most timeout_s; None if there was none."""
        deadline = time.monotonic() + timeout_s
        while not self._events:
            if not select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            self._read_lines()
        return self._events.popleft()

    def fileno(self) -> int:
        """Readable when `event` may have something to return."""
        return self._control.fileno()

    def close(self) -> None:
        self._control.close()
        self._close_ends()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _close_ends(self) -> None:
        for ends in self._ends.values():
            for s in ends.values():
                s.close()

    def _indices(self, names: Iterable | None) -> list[int] | None:
        return None if names is None else [self.names.index(n) for n in names]

    def _directed(self, links) -> list[list[int]] | None:
        return None if links is None else [[self.names.index(a), self.names.index(b)] for a, b in links]

    def _ask(self, op: str, **arguments) -> dict:
        self._control.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
        while True:
            for reply in self._read_lines():
                return reply

    def _read_lines(self) -> list[dict]:
        """Replies read from the forwarder; events are put aside. One question is out at a time."""
        data = self._control.recv(1 << 16)
        if not data:
            raise RuntimeError("the process that carries the wires has ended; start the run again")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        replies = []
        for line in lines:
            message = json.loads(line)
            if "did" in message:
                self._events.append(message)
            elif "error" in message:
                raise ValueError(message["error"])
            else:
                replies.append(message)
        return replies


# ---------------------------------------------------------------------------------------------------------------
# The forwarder's side, in its own process.


class _Line:
    """One direction of one wire."""

    def __init__(self, a: int, b: int, source: socket.socket, sink: socket.socket, lane: bool):
        self.a, self.b, self.source, self.sink, self.lane = a, b, source, sink, lane
        self.segments: collections.deque[tuple[float, memoryview]] = collections.deque()
        self.buffered = 0
        self.free_s = 0.0  # when the line has serialised everything taken from `segments` so far
        self.holds = 0  # reasons to let nothing pass
        self.blocked = False  # the receiving node's socket is full
        self.full = False  # enough has been read ahead
        self.ended = False  # the sending node has closed its end
        self.dead = False
        self.alarm_s: float | None = None
        self.delivered = 0  # position in the stream, in bytes, of the next byte to deliver
        self.taken = 0  # position of the next byte to read
        self.header = b""
        self.skip = 0  # payload bytes of the current frame not yet read
        self.not_frames = False
        self.ordinal = 0  # messages seen since the start, for `arm`
        self.traps: list[dict] = []
        self.stops: list[tuple[int, dict]] = []
        self.reset()

    def set(self, rate: float | None, latency: float) -> None:
        self.rate, self.latency = rate, latency
        if self.lane and rate is not None:
            self.rate = rate / 50

    def reset(self) -> None:
        self.count = dict(bytes=0, messages=0, message_bytes=0, foreign=0, first_s=None, last_s=None)

    def ahead_bytes(self) -> float:
        """How much to read ahead of what the line has delivered."""
        ahead = _SOCKET_BYTES if self.rate is None else self.rate * (self.latency + _READ_AHEAD_S)
        return max(ahead, 4 * _SEGMENT_BYTES)

    def wants_input(self) -> bool:
        return not (self.dead or self.ended or self.full)

    def take(self, now: float) -> None:
        try:
            data = self.source.recv(_SEGMENT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return
        if self.count["first_s"] is None:
            self.count["first_s"] = now
        self.count["bytes"] += len(data)
        self.find_frames(data)
        self.taken += len(data)
        self.segments.append((now, memoryview(data)))
        self.buffered += len(data)
        self.full = self.buffered >= self.ahead_bytes()

    def find_frames(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self.not_frames:
                self.count["foreign"] += len(data) - at
                return
            if self.skip:
                step = min(self.skip, len(data) - at)
                self.skip -= step
                at += step
                continue
            step = min(HEADER.size - len(self.header), len(data) - at)
            self.header += data[at : at + step]
            at += step
            if len(self.header) < HEADER.size:
                return
            magic, kind, _, _, length = HEADER.unpack(self.header)
            self.header = b""
            if magic != MAGIC or length > (LANE_BYTES if self.lane else 1 << 40):
                self.not_frames = True
                self.count["foreign"] += HEADER.size
                continue
            self.skip = length
            if kind == DATA:
                start, size = self.taken + at - HEADER.size, HEADER.size + length
                for trap in self.traps:
                    if trap["message"] == self.ordinal:
                        self.stops.append((start + round(size * trap["fraction"]), trap))
                self.ordinal += 1
                self.count["messages"] += 1
                self.count["message_bytes"] += length

    def advance(self, now: float) -> tuple[float | None, list[dict]]:
        """Delivers what is due. Returns when to come back (None: when something else happens) and traps sprung."""
        if self.dead or self.holds:
            return None, []
        while True:
            sprung = [trap for position, trap in self.stops if position <= self.delivered]
            if sprung:
                self.stops = [s for s in self.stops if s[1] not in sprung]
                self.traps = [t for t in self.traps if t not in sprung]
                return None, sprung
            if not self.segments:
                if self.ended:
                    self.finish()
                return None, []
            arrived, data = self.segments[0]
            limit = min([len(data), *(position - self.delivered for position, _ in self.stops)])
            if self.rate is None:
                start, due_s = arrived, arrived + self.latency
            else:
                # A lane alone saves up for a short burst: frames of a few bytes are not worth a timer each.
                start = max(self.free_s, arrived - (4096 / self.rate if self.lane else 0.0))
                due_s = start + limit / self.rate + self.latency
            if due_s > now:
                return due_s, []
            if self.blocked:
                return None, []
            try:
                sent = self.sink.send(data[:limit])
            except BlockingIOError:
                # A node that does not read holds its line up; the time is gone, not saved for a burst.
                self.blocked = True
                return None, []
            except OSError:
                self.die()
                return None, []
            self.delivered += sent
            self.buffered -= sent
            self.full = self.full and self.buffered > 0.75 * self.ahead_bytes()
            self.count["last_s"] = now
            if self.rate is not None:
                self.free_s = start + sent / self.rate
            if sent == len(data):
                self.segments.popleft()
            else:
                self.segments[0] = (arrived, data[sent:])

    def unblock(self, now: float) -> None:
        self.blocked = False
        self.free_s = max(self.free_s, now - self.latency)

    def finish(self) -> None:
        """The sender has closed and everything was delivered: close the way to the receiver too."""
        self.dead = True
        with contextlib.suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Takes nothing more in; what has been taken in is still delivered."""
        self.ended = True
        with contextlib.suppress(OSError):
            self.source.shutdown(socket.SHUT_RD)

    def die(self) -> None:
        """Nothing can be delivered any more: drop what is under way and let the sender see a broken pipe."""
        self.dead = True
        self.segments.clear()
        self.buffered = 0
        with contextlib.suppress(OSError):
            self.source.shutdown(socket.SHUT_RD)
        with contextlib.suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)


class _Forwarder:
    def __init__(self, settings: dict):
        self.control = socket.socket(fileno=settings["control"])
        self.asked = b""
        self.lines: list[_Line] = []
        # For each socket the line that reads from it and the line that writes to it.
        self.ends: dict[socket.socket, tuple[_Line, _Line]] = {}
        self.watched: dict[socket.socket, int] = {}
        # What to do when: advance a line, or let paused nodes go on.
        self.alarms: list[tuple[float, int, _Line | list[int]]] = []
        self.order = itertools.count()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.control, selectors.EVENT_READ, None)
        for a, b, lane, fd_a, fd_b in settings["wires"]:
            end_a, end_b = socket.socket(fileno=fd_a), socket.socket(fileno=fd_b)
            end_a.setblocking(False)
            end_b.setblocking(False)
            there, back = _Line(a, b, end_a, end_b, lane), _Line(b, a, end_b, end_a, lane)
            self.lines += [there, back]
            self.ends[end_a], self.ends[end_b] = (there, back), (back, there)
        for line in self.lines:
            line.set(settings["rate"], settings["latency"])
            self.watch(line.source)

    def run(self) -> None:
        while True:
            wait_s = max(0.0, self.alarms[0][0] - time.monotonic()) if self.alarms else None
            # A selector's own time-out has a resolution of a millisecond; that of select is finer.
            select.select([self.selector], [], [], wait_s)
            events = self.selector.select(0)
            now = time.monotonic()
            touched = set()
            for key, mask in events:
                if key.data is None:
                    if not self.answer_questions():
                        return
                    touched.update(self.lines)
                    continue
                outward, inward = key.data
                if mask & selectors.EVENT_READ and outward.wants_input():
                    outward.take(now)
                    touched.add(outward)
                if mask & selectors.EVENT_WRITE and inward.blocked:
                    inward.unblock(now)
                    touched.add(inward)
            while self.alarms and self.alarms[0][0] <= now:
                _, _, what = heapq.heappop(self.alarms)
                if isinstance(what, _Line):
                    what.alarm_s = None
                    touched.add(what)
                else:
                    self.change_holds(what, -1)
                    touched.update(self.lines)
            while touched:
                self.advance(touched.pop(), now, touched)

    def advance(self, line: _Line, now: float, touched: set) -> None:
        again, sprung = line.advance(now)
        for trap in sprung:
            self.spring(trap, line, now)
            touched.update(self.lines)
        if again is not None and (line.alarm_s is None or again < line.alarm_s):
            line.alarm_s = again
            self.set_alarm(again, line)
        for end in (line.source, line.sink):
            self.watch(end)

    def set_alarm(self, at_s: float, what) -> None:
        heapq.heappush(self.alarms, (at_s, next(self.order), what))

    def watch(self, end: socket.socket) -> None:
        """Registers what one socket is to be watched for now."""
        outward, inward = self.ends[end]
        mask = (selectors.EVENT_READ if outward.wants_input() else 0) | (
            selectors.EVENT_WRITE if inward.blocked and not inward.dead else 0
        )
        if mask == self.watched.get(end, 0):
            return
        if not self.watched.get(end, 0):
            self.selector.register(end, mask, self.ends[end])
        elif mask:
            self.selector.modify(end, mask, self.ends[end])
        else:
            self.selector.unregister(end)
        self.watched[end] = mask

    def answer_questions(self) -> bool:
        """False when the process that started the forwarder is gone."""
        data = self.control.recv(1 << 16)
        if not data:
            return False
        *lines, self.asked = (self.asked + data).split(b"\n")
        for line in lines:
            try:
                reply = self.answer(json.loads(line))
            except (KeyError, StopIteration, ValueError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            self.tell(reply)
        return True

    def tell(self, message: dict) -> None:
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def answer(self, ask: dict) -> dict:
        op = ask["op"]
        if op == "counts":
            reply = {"links": self.counts()}
            if ask["reset"]:
                for line in self.lines:
                    line.reset()
            return reply
        if op == "set":
            for line in self.lines:
                if ask["links"] is None or [line.a, line.b] in ask["links"]:
                    line.set(ask["rate"], ask["latency"])
        elif op == "hold":
            self.change_holds(ask["nodes"], +1)
        elif op == "release":
            self.change_holds(ask["nodes"], -1)
        elif op == "kill":
            self.kill(ask["node"], ask["drain"])
        elif op == "cut":
            self.cut(ask["a"], ask["b"])
        elif op == "arm":
            line = next((x for x in self.lines if [x.a, x.b] == ask["link"] and not x.lane), None)
            if line is None:
                raise ValueError("there is no wire between these two nodes")
            if line.ordinal > ask["message"]:
                raise ValueError(f"message {ask['message']} has passed already")
            line.traps.append(ask)
        else:
            raise ValueError(f"unknown question {op!r}")
        return {}

    def counts(self) -> list[tuple[int, int, dict]]:
        total: dict[tuple[int, int], dict] = {}
        for line in self.lines:  # a wire comes before its lane
            so_far = total.setdefault((line.a, line.b), dict(line.count))
            if line.lane:
                for key in ("bytes", "foreign"):
                    so_far[key] += line.count[key]
        return [(a, b, count) for (a, b), count in total.items()]

    def change_holds(self, nodes, by: int) -> None:
        now = time.monotonic()
        for line in self.lines:
            if nodes is None or line.a in nodes or line.b in nodes:
                line.holds = max(0, line.holds + by)
                if not line.holds:
                    line.free_s = max(line.free_s, now - line.latency)

    def spring(self, trap: dict, line: _Line, now: float) -> None:
        # Told first: whoever sees a wire close finds the reason waiting.
        self.tell({"did": trap["do"], "label": trap["label"], "at_s": now})
        if trap["do"] == "kill":
            self.kill(trap["node"], trap["drain"])
        elif trap["do"] == "cut":
            self.cut(line.a, line.b)
        else:
            self.change_holds([trap["node"]], +1)
            self.set_alarm(now + trap["for_s"], [trap["node"]])

    def kill(self, node: int, drain: bool) -> None:
        for line in self.lines:
            if node == line.a and drain:
                line.end()
            elif node in (line.a, line.b):
                line.die()

    def cut(self, a: int, b: int) -> None:
        for line in self.lines:
            if {a, b} == {line.a, line.b}:
                line.die()


if __name__ == "__main__":
    try:
        _Forwarder(json.loads(sys.argv[1])).run()
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        sys.exit(0)  # the process that started the wires is gone, or going
