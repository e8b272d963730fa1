"""12.6: a server is lost during a long computation.

Every node is a process of its own; the wires between them are the judge's, which stops a node at a chosen byte of a
chosen message and then kills its process. First the answer runs undisturbed. Its own result, bit by bit, is
what every run with a loss is compared to.
"""

from __future__ import annotations

import functools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from perflab.exercises._ranks import patiently
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Proxy, Tensor, type_name
from perflab.wires import Wires

SLUG = "fault-tolerance"
TITLE = ("Losing a server", "失去一台服务器")
ENTRY_POINTS = ("server", "worker")
MAX_POINTS = 10
TIMED = False  # two seconds are allowed where hundredths are needed

SERVERS = ("primary", "backup")
ELEMENTS = 2000
GRADIENT_S = 0.001, 0.006  # shortest and longest; each worker has its own pace in each run
LATENCY_S, SLOW_S = 0.0003, 0.003  # of the links; of the link from the primary to the backup
PATIENCE_S = 4.0
EXTRA_S = 2.0
RETURN_S = 3.0  # for the servers to notice that all workers have finished
BUDGET_S = 20.0
RANDOM_POINTS, PUBLIC_POINTS = 16, 12

_HELPERS = """
import socket
import numpy as np
from perflab import cluster, host

def start(name, peers, patience_s):
    global node
    node = cluster.Node(name, {peer: socket.socket(fileno=host.descriptor("wire-" + peer)) for peer in peers})
    node._patience_s = patience_s

def run_server(role, params, lr):
    try:
        return answer["server"](node, role, params, lr)
    finally:
        node.close()

def run_worker(gradient, steps, servers):
    try:
        return answer["worker"](node, gradient, steps, servers)
    finally:
        node.close()
"""


@dataclass(frozen=True)
class Point:
    """When a server dies: at `fraction` of message `number` from `source` to `to`; at the start where source is None."""

    victim: str
    source: str | None = None
    to: str = ""
    number: int = 0
    fraction: float = 0.0
    drain: bool = False  # what it had sent still arrives; otherwise that is lost too

    def said(self) -> tuple[str, str]:
        if self.source is None:
            return f"the {self.victim} was killed at the start", f"{_zh(self.victim)}一开始就被杀死"
        when = {0.0: "just before", 1.0: "just after"}.get(self.fraction, "in the middle of")
        en = f"the {self.victim} was killed {when} message {self.number + 1} from {self.source} to {self.to}"
        when_zh = {0.0: "送出之前", 1.0: "送达之后"}.get(self.fraction, "传到一半时")
        zh = f"{_zh(self.victim)}在{_zh(self.source)}发给{_zh(self.to)}的第 {self.number + 1} 条消息{when_zh}被杀死"
        if self.drain and self.source == self.victim and self.fraction < 1:
            en = f"the {self.victim} was killed as it sent message {self.number + 1} to {self.to} (all it had sent, that message too, still arrived later)"
            zh = f"{_zh(self.victim)}在向{_zh(self.to)}发送第 {self.number + 1} 条消息时被杀死（它已发出的内容，包括这条消息，之后仍会送达）"
        elif self.drain:
            en, zh = f"{en} (all it had sent still arrived)", f"{zh}（它已发出的内容仍会送达）"
        return en, zh


def _zh(node: str) -> str:
    """A node's name within a Chinese sentence: Latin letters stand between spaces."""
    return {"primary": "主服务器", "backup": "备份服务器"}.get(node, f" {node} ")


@dataclass
class Task:
    """One training run: what the workers' gradients are, known to the judge alone."""

    workers: int
    steps: int
    lr: float
    start: np.ndarray
    noise: np.ndarray  # [workers, steps, elements]

    @property
    def names(self) -> list[str]:
        return [*SERVERS, *(f"worker-{i}" for i in range(self.workers))]

    def gradient(self, worker: int, step: int, params: np.ndarray) -> np.ndarray:
        return self.noise[worker, step] + 0.1 * np.sin(3 * params)

    def trajectory(self) -> list[np.ndarray]:
        """Parameters before each step and after the last."""
        params = [self.start]
        for step in range(self.steps):
            total = sum(self.gradient(w, step, params[-1]) for w in range(self.workers))
            params.append(params[-1] - self.lr * total)
        return params


@dataclass
class Outcome:
    """What a run did. seconds: until the last worker had returned."""

    seconds: float
    finals: dict[str, np.ndarray] = field(default_factory=dict)
    asked: list[tuple[int, int, np.ndarray]] = field(default_factory=list)  # worker, step, parameters
    messages: dict[tuple[str, str], int] = field(default_factory=dict)
    killed: bool = False
    strange: dict[str, str] = field(default_factory=dict)  # what came back instead of parameters


def make_task(rng, workers: int, steps: int) -> Task:
    return Task(
        workers, steps, float(rng.uniform(0.05, 0.2)), rng.standard_normal(ELEMENTS),
        rng.standard_normal((workers, steps, ELEMENTS)),
    )  # fmt: skip


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    undisturbed: list[tuple[Task, Outcome]] = []
    with parts.attempt("undisturbed", 3):
        _judge_undisturbed(session, parts, evidence, undisturbed)
    points: list[dict] = []
    if all(part.ok for part in parts.items):
        for victim, worth in (("primary", 5), ("backup", 2)):
            with parts.attempt(victim, worth):
                _judge_losses(session, parts, victim, worth, undisturbed, points)
    else:
        for victim, worth in (("primary", 5), ("backup", 2)):
            parts.add(victim, worth, False, f"Losing the {victim} was not judged: the run without loss must be right first.",
                      f"未评判失去{_zh(victim)}的情形：先要让没有损失的运行正确。")  # fmt: skip
    evidence["points"] = points
    return parts.verdict(evidence=evidence, figure=_figure(points, undisturbed))


# ---------------------------------------------------------------- without loss


def _judge_undisturbed(session, parts, evidence, undisturbed) -> None:
    for workers, steps in ((2, 0), (3, 7), (2, 9)):
        task = make_task(session.rng, workers, steps)
        said = f"{workers} workers, {steps} steps, no loss", f"{workers} 个 worker、{steps} 步、没有损失"
        outcome = patiently(functools.partial(_run, session, task, None, said))
        mistake = _mistake(task, outcome, task.trajectory(), exact=False, acting="primary")
        if mistake:
            parts.add("undisturbed", 3, False, f"With {said[0]}: {mistake[0]}", f"{said[1]}：{mistake[1]}")
            return
        if steps:
            undisturbed.append((task, outcome))
    evidence["undisturbed_s"] = [outcome.seconds for _, outcome in undisturbed]
    evidence["messages"] = [{f"{a}->{b}": n for (a, b), n in outcome.messages.items()} for _, outcome in undisturbed]
    parts.add("undisturbed", 3, True, "Without a loss every update was applied once, in worker order.",
              "没有损失时，每次更新都按 worker 顺序恰好应用一次。")  # fmt: skip


def _mistake(task, outcome, expected, *, exact: bool, acting: str) -> tuple[str, str] | None:
    """What is wrong with a run; `expected` is the trajectory that it should have followed."""

    def same(a, b) -> bool:
        return a.tobytes() == b.tobytes() if exact else np.allclose(a, b, rtol=1e-9, atol=1e-12)

    highest = [-1] * task.workers
    for worker, step, params in outcome.asked:
        if step < highest[worker] - 1:
            return (f"worker-{worker} computed step {step} again after step {highest[worker]}: what had been done must not be lost.",
                    f"worker-{worker} 在第 {highest[worker]} 步之后又从第 {step} 步算起：已完成的工作不应丢失。")  # fmt: skip
        highest[worker] = max(highest[worker], step)
        if not same(params, expected[step]):
            hint = _update_hint(task, params - expected[step], expected, step)
            return (f"worker-{worker} computed step {step} on parameters that are not those after {step} updates. {hint[0]}",
                    f"worker-{worker} 计算第 {step} 步时，参数不是经过 {step} 次更新后的参数。{hint[1]}")  # fmt: skip
    for worker, step in enumerate(highest):
        if step != task.steps - 1:
            return (f"worker-{worker} stopped after step {step}; there are {task.steps} steps, from 0.",
                    f"worker-{worker} 只算到第 {step} 步；共有 {task.steps} 步，从 0 开始。")  # fmt: skip
    if outcome.strange:
        name, got = next(iter(outcome.strange.items()))
        return (f"{name} returned {got}; the parameters are a NumPy array, as they were given.",
                f"{_zh(name).lstrip()}返回了{got}；参数是一个 NumPy 数组，与传入时相同。")  # fmt: skip
    judged = [name for name in outcome.finals if name.startswith("worker") or name == acting]
    if not judged:
        return ("neither the workers nor the server returned the final parameters.", "worker 和服务器都没有返回最终参数。")
    for name in judged:
        final = outcome.finals[name]
        if final.shape != expected[-1].shape or not same(final, expected[-1]):
            hint = _update_hint(task, final - expected[-1], expected, task.steps) if final.shape == expected[-1].shape else ("", "")
            than = ("those of the run without loss, bit by bit", "与没有损失时的结果并非逐位相同") if exact else ("right", "不正确")
            return f"the final parameters of {name} are not {than[0]}. {hint[0]}", f"{_zh(name).lstrip()}的最终参数{than[1]}。{hint[1]}"
    return None


def _update_hint(task, difference, expected, steps: int) -> tuple[str, str]:
    """Which gradient was applied twice or not at all, by projecting the difference on each."""
    for step in range(steps if task.workers > 1 else 0):
        total = sum(task.gradient(worker, step, expected[step]) for worker in range(task.workers))
        if np.allclose(difference, task.lr * (1 - 1 / task.workers) * total, rtol=1e-6, atol=1e-9):
            return ("The update is lr times the sum over workers, not the mean.", "更新量是 lr 乘以各 worker 梯度之和，不是平均值。")
    for step in range(steps):
        for worker in range(task.workers):
            g = task.gradient(worker, step, expected[step])
            share = float(difference @ g / (g @ g)) / task.lr
            if abs(share - 1) < 0.25:
                return (f"worker-{worker}'s gradient of step {step} is missing from them.", f"缺少 worker-{worker} 第 {step} 步的梯度。")
            if abs(share + 1) < 0.25:
                return (f"worker-{worker}'s gradient of step {step} was applied twice.", f"worker-{worker} 第 {step} 步的梯度被应用了两次。")
    if np.allclose(difference, 0, atol=1e-9):
        return ("They differ in the last bits only: add the gradients in worker order, not in order of arrival.",
                "只在最后几位上不同：请按 worker 顺序累加梯度，而不是按到达顺序。")  # fmt: skip
    return "", ""


# ---------------------------------------------------------------- with a loss


def _judge_losses(session, parts, victim, worth, undisturbed, rows) -> None:
    occurred, began = 0, time.monotonic()
    share = BUDGET_S * (0.7 if victim == "primary" else 0.3)
    for index, point in points(session, victim, undisturbed):
        if time.monotonic() - began > share:
            break
        task, reference = undisturbed[index]
        said = point.said()
        said = f"{task.workers} workers; {said[0]}", f"{task.workers} 个 worker；{said[1]}"
        row = {"workers": task.workers, "point": said[0], "victim": victim}
        for last_try in (False, True):
            limit_s = reference.seconds + EXTRA_S
            outcome = patiently(functools.partial(_run, session, task, point, said, limit_s=limit_s))
            late = outcome.seconds > limit_s
            if not late or last_try:
                break
        row |= {"seconds": outcome.seconds, "killed": outcome.killed}
        rows.append(row)
        expected = _followed(task, reference)
        mistake = _mistake(task, outcome, expected, exact=True, acting="backup" if victim == "primary" and outcome.killed else "primary")
        if mistake is None and late:
            mistake = (
                f"it took {outcome.seconds:.1f} s, {outcome.seconds - reference.seconds:.1f} s more than without a loss; {EXTRA_S:g} s more"
                " are allowed. PeerLost comes at once: don't wait for a time-out to find out.",
                f"用了 {outcome.seconds:.1f} 秒，比没有损失时多 {outcome.seconds - reference.seconds:.1f} 秒；最多允许多 {EXTRA_S:g} 秒。"
                "PeerLost 会立刻出现，不必等超时才发现。",
            )
        if mistake:
            row["mistake"] = mistake[0]
            parts.add(victim, worth, False, f"With {said[0]}: {mistake[0]}", f"{said[1]}：{mistake[1]}")
            return
        occurred += outcome.killed
    if occurred < 4:
        parts.add(victim, worth, None,
                  f"Only {occurred} moments to lose the {victim} could be tried: there was no time for more, or it takes part in next to no message.",
                  f"只试到 {occurred} 个失去{_zh(victim)}的时刻：时间不够，或者它几乎不收发消息。")  # fmt: skip
        return
    parts.add(
        victim, worth, True,
        f"The {victim} was killed at {occurred} different moments; every run ended with the same parameters, bit by bit.",
        f"在 {occurred} 个不同时刻杀死了{_zh(victim)}，每次的最终参数都逐位相同。",
    )  # fmt: skip


def _followed(task: Task, reference: Outcome) -> list[np.ndarray]:
    """The undisturbed run's own parameters before each step and at the end."""
    at = {step: params for _, step, params in reference.asked}
    final = next(reference.finals[n] for n in (*task.names[2:], "primary") if n in reference.finals)
    return [*(at[step] for step in range(task.steps)), final]


def points(session: Session, victim: str, undisturbed) -> list[tuple[int, Point]]:
    """Where to kill `victim`, as (which undisturbed run, moment), the most telling first.

    The secret ones first, then random ones from all messages that the undisturbed run sent to or from that server.
    """
    chosen: list[tuple[int, Point]] = []
    if session.hidden is not None:
        for entry in json.loads((session.hidden / "points.json").read_text())[victim]:
            index = entry["run"] % len(undisturbed)
            task, outcome = undisturbed[index]
            source, to = (name.format(other=SERVERS[victim == "primary"], last=task.names[-1]) for name in (entry["source"], entry["to"]))
            count = outcome.messages.get((source, to), 0)
            if count:
                number = min(int(entry["position"] * count), count - 1)
                chosen.append((index, Point(victim, source, to, number, entry["fraction"], entry["drain"])))
    everything = [pair for i in range(len(undisturbed)) for pair in all_points(i, victim, undisturbed[i][1])]
    how_many = (PUBLIC_POINTS if session.public else RANDOM_POINTS) // (1 if victim == "primary" else 2)
    for i in session.rng.permutation(len(everything))[:how_many]:
        chosen.append(everything[i])
    return list(dict.fromkeys(chosen))


def all_points(index: int, victim: str, outcome: Outcome) -> list[tuple[int, Point]]:
    """Every moment at which `victim` can be killed in a run that sends these messages."""
    found = [(index, Point(victim))]
    for (source, to), count in sorted(outcome.messages.items()):
        if victim in (source, to):
            found += [(index, Point(victim, source, to, n, f, d)) for n in range(count) for f, d in _ENDS]
    return found


# (fraction, drain); a message cut in the middle can't arrive as well
_ENDS = ((0.0, False), (0.0, True), (0.5, False), (1.0, False), (1.0, True))


# ---------------------------------------------------------------- one run


def _run(session: Session, task: Task, point: Point | None, said, *, limit_s: float = 10.0) -> Outcome:
    """Starts a process for each node, lets them work, kills one at `point`. Raises AnswerFailed that names a node."""
    names = task.names
    hosts: dict = {}
    outcome = Outcome(0.0)
    # workers that differ: after a loss one has asked again before the other knows of it
    pace_s = np.exp(session.rng.uniform(*np.log(GRADIENT_S), task.workers))
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if a in SERVERS]  # workers meet at the servers only
    with Wires(names, pairs=pairs, latency_s=LATENCY_S) as wires, ThreadPoolExecutor(len(names)) as threads:

        def begin(name: str) -> None:
            fds = {f"wire-{peer}": end.fileno() for peer, end in wires.ends(name).items()}
            hosts[name] = host = session.answer(fds=fds, cpus=None)
            wires.hand_over(name)
            host.define(_HELPERS)
            host.call("$start", name, [n for n in names if n != name and (n in SERVERS or name in SERVERS)], PATIENCE_S)

        def gradient(worker: int):
            def function(step, params):
                if type(params) is Tensor:
                    params = params.array
                right = type(params) is np.ndarray and params.shape == task.start.shape and params.dtype == task.start.dtype
                if type(step) is not int or not 0 <= step < task.steps or not right:
                    shown = type_name(params)
                    raise AnswerFailed(
                        "value",
                        f"`gradient(step, params)` was called with step {step!r} and params {shown}; step is an int from 0 to {task.steps - 1}"
                        f" and params an array like the one that the server was given (float64, {ELEMENTS} elements).",
                        f"调用 `gradient(step, params)` 时 step 为 {step!r}，params 为 {shown}；step 应是 0 到 {task.steps - 1} 的整数，"
                        f"params 应与服务器得到的数组相同（float64，{ELEMENTS} 个元素）。",
                    )
                outcome.asked.append((worker, step, params))
                time.sleep(pace_s[worker])
                return task.gradient(worker, step, params)

            return function

        try:
            for starting in [threads.submit(begin, name) for name in names]:
                starting.result()
            # A copy under way to the backup is overtaken by an answer to a worker: whoever didn't wait for it loses it.
            wires.set_links(latency_s=SLOW_S, bandwidth_bytes_per_s=None, links=[SERVERS])
            if point is not None and point.source is not None:
                wires.arm("kill", source=point.source, to=point.to, message=point.number, fraction=point.fraction, node=point.victim, drain=point.drain)
            began = time.monotonic()
            if point is not None and point.source is None:
                wires.kill(point.victim)
                outcome.killed = True
                hosts[point.victim].kill()
            patience = PATIENCE_S + limit_s + RETURN_S
            calls = {name: threads.submit(hosts[name].call, "$run_server", name, task.start, task.lr, timeout_s=patience, inference=False)
                     for name in SERVERS}  # fmt: skip
            for i, name in enumerate(names[2:]):
                calls[name] = threads.submit(
                    hosts[name].call, "$run_worker", Proxy(gradient(i)), task.steps, list(SERVERS), timeout_s=patience, inference=False
                )
            workers_done = None
            while True:
                if point is not None and not outcome.killed and wires.event(0.002):
                    outcome.killed = True
                    hosts[point.victim].kill()
                else:
                    time.sleep(0.002)
                waited_for = [n for n in names if not calls[n].done() and not (outcome.killed and n == point.victim)]
                if workers_done is None and not any(n.startswith("worker") for n in waited_for):
                    workers_done = time.monotonic()
                    outcome.seconds = workers_done - began
                failed = [n for n in names if n not in waited_for and n in calls and _error(calls[n], n, outcome, point)]
                if failed:
                    raise _failure(calls, failed, waited_for, said)
                if not waited_for:
                    break
                if workers_done is not None and time.monotonic() - workers_done > RETURN_S:
                    name = waited_for[0]
                    raise AnswerFailed(
                        "timeout",
                        f"With {said[0]}: all workers had finished, but `server` on the {name} did not return within {RETURN_S:g} s."
                        " When every worker is lost (PeerLost), the work is over.",
                        f"{said[1]}：所有 worker 都已结束，但{_zh(name)}上的 `server` 在 {RETURN_S:g} 秒内没有返回。所有 worker 都已丢失（PeerLost）时，工作就结束了。",
                    )
            for name in names:
                if not (outcome.killed and name == point.victim):
                    value = calls[name].result()
                    value = value.array if type(value) is Tensor else value
                    if type(value) is np.ndarray:
                        outcome.finals[name] = value
                    elif value is not None:
                        outcome.strange[name] = type_name(value)
            outcome.messages = {link: count["messages"] for link, count in wires.counts().items()}
            return outcome
        finally:
            for host in hosts.values():
                if not host.closed:
                    host.kill()
            threads.shutdown(cancel_futures=True)  # a call that is under way ends with its process
            for host in hosts.values():
                host.close()


def _error(call, name: str, outcome: Outcome, point) -> BaseException | None:
    if outcome.killed and name == point.victim:
        return None
    return call.exception()


def _failure(calls, failed, waited_for, said) -> BaseException:
    errors = {name: calls[name].exception() for name in failed}
    for error in errors.values():
        if not isinstance(error, AnswerFailed):
            return error
    cause = next((n for n in failed if "in vain" not in errors[n].en), failed[0])
    error, where_zh = errors[cause], _zh(cause).lstrip()
    waiting = [n for n in (*failed, *waited_for) if n != cause]
    en = f" {', '.join(waiting)} had not finished either." if waiting else ""
    zh = f"{'、'.join(_zh(n).strip() for n in waiting)} 也没有结束。" if waiting else ""
    vain = re.search(r"waited ([\d.]+) s in vain in recv\(\); (its last message went to ([\w-]+)|it has sent nothing)", error.en)
    if vain:
        last_zh = f"它最后一条消息发给了{_zh(vain[3]).rstrip()}" if vain[3] else "它什么也没有发出"
        return AnswerFailed(
            "timeout",
            f"With {said[0]}: {cause} {vain[0]}, and nothing came.{en} Who was to answer, and does whoever took its place know of it?",
            f"{said[1]}：{where_zh}在 recv() 中等了 {vain[1]} 秒，没有收到消息；{last_zh}。{zh}应该由谁来回答？接替它的节点知道这件事吗？",
        )
    return AnswerFailed(
        error.kind, f"With {said[0]}: on {cause}: {error.en}{en}", f"{said[1]}：{where_zh}上：{error.zh}{zh}"
    )


def _figure(points, undisturbed) -> bytes | None:
    """How long each run with a loss took, beside the run without."""
    from perflab import plot

    if not any(p["killed"] for p in points):
        return None
    fig, ax = plot.subplots(height_in=2.4)
    for victim, colour in (("primary", plot.PALETTE[0]), ("backup", plot.PALETTE[1])):
        shown = [(i, p["seconds"]) for i, p in enumerate(points) if p["victim"] == victim and p["killed"]]
        if shown:
            ax.plot([i for i, _ in shown], [1e3 * s for _, s in shown], "o", color=colour, label=f"{victim} killed")
    wrong = [(i, 1e3 * p["seconds"]) for i, p in enumerate(points) if "mistake" in p]
    if wrong:
        ax.plot(*zip(*wrong, strict=True), "x", color=plot.PINK, markersize=12, label="wrong")
    for _, outcome in undisturbed:
        ax.axhline(1e3 * outcome.seconds, color=plot.TEXT, linewidth=1)
    ax.set(xlabel="run (lines: without a loss)", ylabel="time (ms)", ylim=(0, 1.1 * ax.dataLim.y1))
    plot.legend(fig)
    return plot.png(fig)
