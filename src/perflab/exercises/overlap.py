"""12.6: communicate while the backward pass still computes.

The device that computes and the wire that reduces are the judge's: threads in its process, which take a known time and
hand values over only when that time is up. So the answer's process can neither make them faster nor learn a value
before it is there, and both work apart from the CPU, as a GPU and a network card do.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from perflab import bench, wire
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Tensor, type_name

SLUG = "overlap"
TITLE = ("Communicating while computing", "边计算边通信")
ENTRY_POINTS = ("backward",)
MAX_POINTS = 10

HIDDEN_PASSES, HIDDEN_FAILS = 0.5, 0.25
SERIAL_WITHIN = 1.15
LOOKS = (11, 22, 44)
MAX_S = 20.0
LATER_S = 0.03
LAYER_S = 0.026  # to compute a layer and to reduce it: long beside the messages that each costs

_HELPERS = """
import socket
import threading

import numpy as np
import torch
from perflab import host, wire

device = wire.Connection(socket.socket(fileno=host.descriptor("device")))
network = wire.Connection(socket.socket(fileno=host.descriptor("network")))
one_at_a_time = threading.Lock()
sending = threading.Lock()
pending = {}


class Handle:
    def __init__(self, tensor):
        self._tensor, self._finished, self._error = tensor, threading.Event(), None

    def wait(self):
        self._finished.wait()
        if self._error:
            raise RuntimeError(self._error)


def compute(i):
    with one_at_a_time:
        device.send({"value": i})
        header, arrays = device.receive()
    if "error" in header:
        raise RuntimeError(header["error"])
    return torch.from_numpy(arrays[0])


def start_reduce(tensor):
    if type(tensor) is not torch.Tensor or tensor.dtype != torch.float32:
        raise TypeError("start_reduce takes a float32 tensor")
    handle = Handle(tensor)
    with sending:
        number = len(pending)
        pending[number] = handle
        network.send({"number": number, "value": tensor.detach().numpy()})
    return handle


def receive():
    while True:
        try:
            header, arrays = network.receive()
        except wire.Closed:
            return
        handle = pending[header["number"]]
        if "error" in header:
            handle._error = header["error"]
        else:
            with torch.no_grad():
                handle._tensor.copy_(torch.from_numpy(arrays[0]).view(handle._tensor.shape))
        handle._finished.set()


threading.Thread(target=receive, daemon=True).start()


def go(layers, world):
    pending.clear()
    gradients = answer["backward"](layers, compute, start_reduce, world)
    if type(gradients) not in (list, tuple):
        return gradients
    # copied at once: what arrives later was not waited for
    return [g.detach().clone() if type(g) is torch.Tensor else g for g in gradients]
"""

SERIAL = """
def backward(layers, compute, start_reduce, world):
    gradients = [None] * layers
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        start_reduce(gradients[i]).wait()
    return gradients
"""


@dataclass
class Plan:
    """One backward pass. gradients: what `compute` returns; others: the sum of the other ranks' gradients, by layer.

    deferred: a layer whose reduction the wire leaves until all others are done; None: first come, first served.
    """

    gradients: list[np.ndarray]
    others: list[np.ndarray]
    compute_s: list[float]
    reduce_s: list[float]
    deferred: int | None = None
    computed: list[int] = field(default_factory=list)
    reduced: np.ndarray | None = None  # how often each element was
    misuse: tuple[str, str] | None = None

    def __post_init__(self):
        self.values = np.concatenate([g.ravel() for g in self.gradients])
        self.order = np.argsort(self.values)
        self.layer_of = np.repeat(np.arange(len(self.gradients)), [g.size for g in self.gradients])
        self.sums = self.values + np.concatenate([o.ravel() for o in self.others])
        self.element_s = np.concatenate([np.full(g.size, s / g.size) for g, s in zip(self.gradients, self.reduce_s, strict=True)])
        self.reduced = np.zeros(len(self.values), int)

    @property
    def serial_s(self) -> float:
        return sum(self.compute_s) + sum(self.reduce_s)

    @property
    def hideable_s(self) -> float:
        return min(sum(self.compute_s), sum(self.reduce_s))

    def find(self, tensor: np.ndarray) -> np.ndarray | None:
        """Which elements of the gradients a tensor consists of (all values differ); None if of something else.

        So whole layers, parts of one, and buckets of several can all be reduced.
        """
        at = np.searchsorted(self.values, tensor.ravel(), sorter=self.order)
        at = self.order[np.minimum(at, len(self.order) - 1)]
        return at if np.array_equal(self.values[at], tensor.ravel()) else None


def make_plan(rng, layers: int, compute_s: float, reduce_s: float, *, world: int = 2, defer: bool = False) -> Plan:
    """A plan with times around compute_s and reduce_s a layer, unequal, and equal in sum to within a few per cent.

    In a world of 1 there are no others: the sum is the gradient itself, whether it is given to the wire or not.
    """
    shapes = [(int(rng.integers(3, 9)), int(rng.integers(20, 60))) for _ in range(layers)]
    sizes = [a * b for a, b in shapes]
    # Multiples of 2⁻¹⁰, all different, so that a value tells its place and sums are exact in float32.
    numbers = rng.permutation(1 << 16)[: sum(sizes)].astype(np.float32) / 1024 - 32
    cut = np.split(numbers, np.cumsum(sizes)[:-1])
    others = [(rng.integers(-(1 << 16), 1 << 16, s) * (world > 1) / 1024).astype(np.float32) for s in shapes]
    scale = [rng.uniform(0.8, 1.2, layers) for _ in range(2)]
    times = [(mean * layers * x / x.sum()).tolist() for mean, x in zip((compute_s, reduce_s), scale, strict=True)]
    return Plan(
        [c.reshape(s) for c, s in zip(cut, shapes, strict=True)], others, *times,
        deferred=int(rng.integers(1, layers - 1)) if defer else None,
    )  # fmt: skip


class Machine:
    """A process of the answer (or, with `source`, of the judge) with a device and a wire on the judge's side."""

    def __init__(self, session: Session, source: str | None = None):
        self.plan: Plan | None = None
        pairs = {name: socket.socketpair() for name in ("device", "network")}
        try:
            fds = {name: theirs.fileno() for name, (_, theirs) in pairs.items()}
            self.host = session.answer(fds=fds) if source is None else session.trusted(source, fds=fds)
        finally:
            for _, theirs in pairs.values():
                theirs.close()
        self._device, self._network = [wire.Connection(ours, max_frame_bytes=1 << 24) for ours, _ in pairs.values()]
        for work in (self._compute, self._reduce):
            threading.Thread(target=self._serve, args=(work,), daemon=True).start()
        self.host.define(_HELPERS)

    def backward(self, plan: Plan, world: int) -> tuple[list, float]:
        """(what the answer returned, seconds). Raises AnswerFailed."""
        self.plan = plan
        try:
            value, seconds = self.host.timed_call("$go", len(plan.gradients), world, timeout_s=10, inference=False)
        except AnswerFailed:
            if plan.misuse:
                raise AnswerFailed("protocol", *plan.misuse) from None
            raise
        deadline = time.monotonic() + 0.5  # an answer that did not wait returns before the wire has seen everything
        while world > 1 and not (plan.reduced > 0).all() and time.monotonic() < deadline:
            time.sleep(0.005)
        if plan.misuse:
            raise AnswerFailed("protocol", *plan.misuse)
        return value, seconds

    def close(self) -> None:
        self.host.close()
        for connection in (self._device, self._network):
            with contextlib.suppress(OSError):  # its thread has closed it already
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it, which closes it

    def _serve(self, work) -> None:
        connection = self._device if work == self._compute else self._network
        try:
            work(connection)
        except wire.WireError:  # the process is gone, or wrote nonsense: the call that is under way will say so
            connection.close()

    def _compute(self, device: wire.Connection) -> None:
        while True:
            header, _ = device.receive()
            began = time.perf_counter()
            plan, i = self.plan, header.get("value")
            expected = len(plan.gradients) - 1 - len(plan.computed)
            if type(i) is not int or i != expected:
                wanted_en = f"compute({expected}) comes next" if expected >= 0 else "all layers have been computed"
                wanted_zh = f"下一个应是 compute({expected})" if expected >= 0 else "所有层都已计算过"
                plan.misuse = plan.misuse or (
                    f"`compute({i})` was called, but {wanted_en}: each layer once, from the last to layer 0.",
                    f"调用了 `compute({i})`，但{wanted_zh}：每层一次，从最后一层到第 0 层。",
                )
                device.send({"error": plan.misuse[0]})
                continue
            plan.computed.append(i)
            _sleep_until(began + plan.compute_s[i])
            device.send({"value": plan.gradients[i]})

    def _reduce(self, network: wire.Connection) -> None:
        """Serves one reduction after the other; a deferred layer last, or when nothing else has come for a while."""
        put_off: list = []
        free_s = 0.0
        while True:
            if put_off and not select.select([network], [], [], 0.05)[0]:
                number, elements, _, plan = put_off.pop()
                network.send({"number": number, "value": plan.sums[elements]})
            header, arrays = network.receive()
            arrived = time.perf_counter()
            plan = self.plan
            at = plan.find(arrays[0]) if len(arrays) == 1 else None
            if at is None or type(header.get("number")) is not int:
                plan.misuse = plan.misuse or (
                    "`start_reduce` was given values that are no gradients of this pass: pass what `compute` returned, before it"
                    " is changed and only once.",
                    "传给 `start_reduce` 的数值不是这次反向传播的梯度：请把 `compute` 返回的张量原样传入，只传一次。",
                )
                network.send({"number": header.get("number"), "error": plan.misuse[0]})
                continue
            put_off = [entry for entry in put_off if entry[3] is plan]
            plan.reduced[at] += 1
            jobs = [(header["number"], at, arrived, plan)]
            if plan.deferred is not None and (plan.layer_of[at] == plan.deferred).any() and not (plan.reduced > 0).all():
                put_off += jobs
                jobs = []
            elif (plan.reduced > 0).all():
                jobs += put_off
                put_off = []
            for k, (number, elements, since, _) in enumerate(jobs):
                # what was put off comes clearly later, so that who did not wait for it has not got it by luck
                free_s = max(free_s, since) + float(plan.element_s[elements].sum()) + (LATER_S if k == 1 else 0)
                _sleep_until(free_s)
                network.send({"number": number, "value": plan.sums[elements]})


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    machine = Machine(session)
    try:
        with parts.attempt("correct", 4):
            _judge_correct(session, machine, parts, evidence)
        if not all(part.ok for part in parts.items):
            parts.add("hidden", 6, False, "The overlap was not judged: the gradients must be right first.", "未评判重叠程度：先要让梯度正确。")
            return parts.verdict(evidence=evidence)
        rounds = evidence["rounds"] = []
        with parts.attempt("hidden", 6):
            _judge_overlap(session, machine, parts, evidence, rounds)
        return parts.verdict(evidence=evidence, figure=_figure(rounds))
    finally:
        machine.close()


# ---------------------------------------------------------------- values


def _judge_correct(session, machine, parts, evidence) -> None:
    passes = 0
    for layers, world, defer in ((4, 2, False), (4, 3, True), (9, 4, True), (6, 2, True), (5, 1, False)):
        plan = make_plan(session.rng, layers, 0.002, 0.003, world=world, defer=defer)
        value, _ = machine.backward(plan, world)
        mistake = _mistake(plan, value, world)
        if mistake:
            parts.add("correct", 4, False, f"{layers} layers, world {world}: {mistake[0]}", f"{layers} 层，world = {world}：{mistake[1]}")
            return
        passes += 1
    evidence["passes"] = passes
    parts.add("correct", 4, True, f"The gradients were right in all {passes} passes, also when reductions finished out of order.",
              f"全部 {passes} 次反向传播的梯度都正确，规约乱序完成时也是如此。")  # fmt: skip


def _mistake(plan: Plan, value, world: int) -> tuple[str, str] | None:
    layers = len(plan.gradients)
    if type(value) is not list or len(value) != layers or not all(type(t) is Tensor for t in value):
        got = f"{len(value)} of {sorted({type_name(t) for t in value})}" if type(value) in (list, tuple) else type_name(value)
        return (f"`backward` must return a list of {layers} tensors, indexed by layer; it returned {got}.",
                f"`backward` 必须返回 {layers} 个张量的列表，按层编号；实际返回 {got}。")  # fmt: skip
    for i in range(layers):
        got, alone, total = value[i].array, plan.gradients[i], plan.gradients[i] + plan.others[i]
        if got.shape == total.shape and np.array_equal(got, total):
            continue
        if any(got.shape == g.shape and np.array_equal(got, g + o) for g, o in zip(plan.gradients, plan.others, strict=True)):
            return (f"entry {i} of the list is another layer's gradient: the list is indexed by layer, not by order of computation.",
                    f"列表的第 {i} 项是另一层的梯度：列表按层编号，而不是按计算顺序。")  # fmt: skip
        if got.shape != total.shape:
            return f"layer {i} has the wrong shape, {got.shape}.", f"第 {i} 层的形状不对：{got.shape}。"
        mask = plan.layer_of == i
        if np.array_equal(got, alone):
            if not plan.reduced[mask].all():
                return (f"layer {i} was never given to `start_reduce`.", f"第 {i} 层没有交给 `start_reduce`。")
            return (
                f"layer {i} still holds this rank's own gradient: was its handle waited for? Reductions may finish in any order, so"
                " the last one's `wait()` says nothing about the others; and it is the tensor given to `start_reduce` that changes.",
                f"第 {i} 层还是本进程自己的梯度：等过它的句柄吗？规约可能以任意顺序完成，最后一个的 `wait()` 并不能说明其他的；"
                "另外，改变的是传给 `start_reduce` 的那个张量。",
            )
        if np.allclose(got * world, total, rtol=1e-5) and world > 1:
            return (f"layer {i} holds the mean; the sum is asked for.", f"第 {i} 层是平均值，题目要的是总和。")
        at = np.unravel_index(int(np.argmax(got != total)), total.shape)
        return (f"layer {i} holds {got[at]:.6g} at {tuple(map(int, at))} where the sum is {total[at]:.6g}.",
                f"第 {i} 层在 {tuple(map(int, at))} 处是 {got[at]:.6g}，而总和是 {total[at]:.6g}。")  # fmt: skip
    return None


# ---------------------------------------------------------------- time


def _judge_overlap(session, machine, parts, evidence, rounds: list[dict]) -> None:
    serial = Machine(session, SERIAL)
    layers, began = int(session.rng.integers(6, 9)), time.monotonic()

    def timed(which, plan) -> float:
        value, seconds = which.backward(plan, 2)
        mistake = _mistake(plan, value, 2)
        if mistake:
            raise AnswerFailed("value", f"In a timed pass: {mistake[0]}", f"计时过程中：{mistake[1]}")
        return seconds

    try:
        for look in LOOKS:
            while len(rounds) < look and time.monotonic() - began < MAX_S:
                plan = make_plan(session.rng, layers, LAYER_S, LAYER_S)
                seconds = {}
                for which in session.order().sample(["answer", "serial"], 2):
                    fresh = Plan(plan.gradients, plan.others, plan.compute_s, plan.reduce_s)
                    seconds[which] = timed(machine if which == "answer" else serial, fresh)
                rounds.append(
                    seconds | {"hidden": (seconds["serial"] - seconds["answer"]) / plan.hideable_s, "theory": plan.serial_s}
                )
            if len(rounds) < look:
                break
            middle, low, high = bench.median_interval([r["hidden"] for r in rounds])
            if low >= HIDDEN_PASSES or high <= HIDDEN_FAILS:
                break
    finally:
        serial.close()
    if len(rounds) < LOOKS[0]:
        parts.add("hidden", 6, None, "The machine was too slow for enough passes.", "机器太慢，测不够次数。")
        return
    middle, low, high = bench.median_interval([r["hidden"] for r in rounds])
    control = median(r["serial"] / r["theory"] for r in rounds)
    evidence |= {"hidden": middle, "hidden_low": low, "hidden_high": high, "layers": layers, "serial_over_theory": control}
    told = (
        f"{layers} layers, as long to compute as to reduce: {median(r['answer'] for r in rounds) * 1e3:.0f} ms against"
        f" {median(r['serial'] for r in rounds) * 1e3:.0f} ms one after the other; {middle:.0%} of the time that can be hidden was"
        f" ({low:.0%}–{high:.0%}, n = {len(rounds)})"
    )
    told_zh = (
        f"{layers} 层，计算与规约耗时相当：你的 {median(r['answer'] for r in rounds) * 1e3:.0f} ms，依次进行则为"
        f" {median(r['serial'] for r in rounds) * 1e3:.0f} ms；可隐藏的时间中隐藏了 {middle:.0%}（{low:.0%}–{high:.0%}，n = {len(rounds)}）"
    )
    if not 1 / SERIAL_WITHIN <= control <= SERIAL_WITHIN:
        parts.add("hidden", 6, None, f"{told}. The judge's own serial pass took {control:.2f} times its theory: the machine was too busy.",
                  f"{told_zh}。评测程序自己的串行过程用了理论时间的 {control:.2f} 倍：机器太忙。")  # fmt: skip
    elif low >= HIDDEN_PASSES:
        parts.add("hidden", 6, True, f"{told}.", f"{told_zh}。")
    elif high <= HIDDEN_FAILS:
        parts.add(
            "hidden", 6, False,
            f"{told}; half is asked for. Start a layer's reduction as soon as its gradient is there, go on computing, and wait only at the end.",
            f"{told_zh}；至少应隐藏一半。一层的梯度一算出就启动规约，接着计算下一层，到最后再等待。",
        )  # fmt: skip
    else:
        parts.add(
            "hidden", 6, None,
            f"{told}: between {HIDDEN_FAILS:.0%} and {HIDDEN_PASSES:.0%} it can't be told apart from noise.",
            f"{told_zh}：介于 {HIDDEN_FAILS:.0%} 与 {HIDDEN_PASSES:.0%} 之间，无法与噪声区分。",
        )  # fmt: skip


def _figure(rounds) -> bytes | None:
    """The time of each pass beside the serial one's."""
    from perflab import plot

    if not rounds:
        return None
    fig, ax = plot.subplots(height_in=2.4)
    ax.plot([1e3 * r["serial"] for r in rounds], ".", color=plot.PALETTE[1], label="one after the other")
    ax.plot([1e3 * r["answer"] for r in rounds], ".", color=plot.PALETTE[0], label="your backward")
    ax.set(xlabel="pass", ylabel="time (ms)", ylim=(0, 1.1 * ax.dataLim.y1))
    plot.legend(fig)
    return plot.png(fig)
