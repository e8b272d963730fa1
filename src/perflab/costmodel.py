"""All-reduce as data: what is sent when, so that one description can be run, drawn, counted and simulated.

A schedule cuts the vector to be summed into equal pieces and says, round by round, who sends which pieces to whom and
whether the receiver adds them to its own or replaces its own by them. In a round each machine sends at most one
message and receives at most one (the one-port, full-duplex model). `simulate` gives the time by the α–β model, in
which a message of m bytes takes α + m/β (Hockney, Parallel Computing 20(3), 1994), without assuming that all machines
start together or are equally fast; Thakur, Rabenseifner and Gropp (IJHPCA 19(1), 2005) derive the closed forms for
those that do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Round(NamedTuple):
    """Messages that go at the same time: `src[k]` sends the `width` pieces from `first[k]` on to `dst[k]`."""

    src: np.ndarray
    dst: np.ndarray
    first: np.ndarray
    width: int
    add: bool  # the receiver adds; else it copies


@dataclass(frozen=True)
class Schedule:
    """An all-reduce among machines 0 … n−1 on a vector of `pieces` equal pieces; `rounds()` starts it afresh."""

    name: str
    n: int
    pieces: int
    rounds: Callable[[], Iterator[Round]]

    def sent_pieces(self) -> np.ndarray:
        """Pieces that each machine sends in all, shape [n]."""
        sent = np.zeros(self.n, dtype=np.int64)
        for r in self.rounds():
            sent[r.src] += r.width
        return sent


def one_server(n: int) -> Schedule:
    """Machine 0 receives everybody's vector, one after the other, and sends everybody the sum."""

    def rounds():
        for add in (True, False):
            for i in range(1, n):
                way = (i, 0) if add else (0, i)
                yield Round(np.array([way[0]]), np.array([way[1]]), np.array([0]), 1, add)

    return Schedule("one server", n, 1, rounds)


def sharded_servers(n: int) -> Schedule:
    """Every machine is the server of one piece in n. In round r machine i talks to machine i + r."""

    def rounds():
        me = np.arange(n)
        for add in (True, False):
            for r in range(1, n):
                to = (me + r) % n
                yield Round(me, to, to if add else me, 1, add)

    return Schedule("sharded servers", n, n, rounds)


def tree(n: int) -> Schedule:
    """A binomial tree: in round k machines 2^k apart are joined; then the same backwards with the sum."""

    def rounds():
        distances = [1 << k for k in range(math.ceil(math.log2(n)))] if n > 1 else []
        for add, order in ((True, distances), (False, distances[::-1])):
            for distance in order:
                low = np.arange(0, n - distance, 2 * distance)
                src, dst = (low + distance, low) if add else (low, low + distance)
                yield Round(src, dst, np.zeros_like(low), 1, add)

    return Schedule("tree", n, 1, rounds)


def ring(n: int) -> Schedule:
    """Reduce-scatter, then all-gather, each in n − 1 rounds to the right-hand neighbour."""

    def rounds():
        me = np.arange(n)
        right, twice = (me + 1) % n, np.tile(me, 2)
        for add, offset in ((True, 0), (False, 1)):
            for r in range(n - 1):
                shift = (offset - r) % n
                yield Round(me, right, twice[shift : shift + n], 1, add)  # machine i sends piece i + shift

    return Schedule("ring", n, n, rounds)


def hierarchical(groups: int, members: int) -> Schedule:
    """Reduce-scatter inside each group, a ring across the groups for each member's share, all-gather inside.

    Machine g · members + m is member m of group g.
    """
    n = groups * members

    def inside(add, offset):
        g, m = np.divmod(np.arange(n), members)
        for r in range(members - 1):
            yield Round(
                np.arange(n), g * members + (m + 1) % members, (m - r + offset) % members * groups, groups, add
            )

    def rounds():
        g, m = np.divmod(np.arange(n), members)
        yield from inside(True, 0)
        mine = (m + 1) % members * groups  # the share that the rounds above left complete at member m
        me, to = np.arange(n), (g + 1) % groups * members + m
        for add, offset in ((True, 0), (False, 1)):
            for r in range(groups - 1):
                yield Round(me, to, mine + (g - r + offset) % groups, 1, add)
        yield from inside(False, 1)

    return Schedule("hierarchical", n, n, rounds)


Cost = Callable[[np.ndarray, np.ndarray, float], np.ndarray | float]


def uniform(alpha_s: float, beta_bytes_per_s: float) -> Cost:
    """The same link between any two machines."""
    return lambda src, dst, n_bytes: alpha_s + n_bytes / beta_bytes_per_s


def two_level(members: int, inner: Cost, outer: Cost) -> Cost:
    """`inner` between machines of one group of `members`, `outer` between groups; each has its own outer link."""

    def cost(src, dst, n_bytes):
        same = src // members == dst // members
        return np.where(same, inner(src, dst, n_bytes), outer(src, dst, n_bytes))

    return cost


def simulate(
    schedule: Schedule,
    n_bytes: float,
    cost: Cost,
    *,
    ready_s: np.ndarray | float = 0.0,
    slowness: np.ndarray | float = 1.0,
    jitter: Callable[[int], np.ndarray] | None = None,
) -> np.ndarray:
    """When each machine has the sum, in s, shape [n].

    A message starts when its sender and its receiver have finished their earlier rounds, and takes `cost(src, dst,
    bytes)`, times the `slowness` of the slower of the two, plus `jitter(k)` seconds for each of the k messages of a
    round. `ready_s`: when each machine has its own vector. `slowness`: at least 1; shape [n] or one number.
    """
    ready = np.broadcast_to(np.asarray(ready_s, dtype=float), schedule.n).copy()
    slow = np.asarray(slowness, dtype=float)
    piece = n_bytes / schedule.pieces
    for src, dst, _, width, _ in schedule.rounds():
        took = cost(src, dst, piece * width) * (np.maximum(slow[src], slow[dst]) if slow.ndim else slow)
        if jitter is not None:
            took = took + jitter(len(src))
        end = np.maximum(ready[src], ready[dst]) + took
        ready[src] = end
        ready[dst] = np.maximum(ready[dst], end)
    return ready


def run_with_failures(
    work_s: float,
    interval_s: float,
    checkpoint_s: float,
    restart_s: float,
    mean_between_failures_s: float,
    rng: np.random.Generator,
) -> float:
    """Seconds until `work_s` of work are done, with a checkpoint after every `interval_s` of work.

    Failures come at random (exponential gaps), also during a checkpoint or a restart. Each throws the run back to its
    last complete checkpoint and costs `restart_s`.
    """
    now, saved, next_failure = 0.0, 0.0, rng.exponential(mean_between_failures_s)
    while saved < work_s:
        stretch = min(interval_s, work_s - saved)
        last = saved + stretch >= work_s
        end = now + stretch + (0.0 if last else checkpoint_s)
        if end <= next_failure:
            now, saved = end, saved + stretch
            continue
        now = next_failure
        while True:  # a restart may fail, too
            next_failure = now + rng.exponential(mean_between_failures_s)
            if now + restart_s <= next_failure:
                now += restart_s
                break
            now = next_failure
    return now


def best_interval_s(checkpoint_s: float, mean_between_failures_s: float) -> float:
    """Young's interval between checkpoints, √(2CM): "A first order approximation …", CACM 17(9), 1974."""
    return math.sqrt(2 * checkpoint_s * mean_between_failures_s)
