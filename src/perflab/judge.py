"""Asks an answer questions and decides: :class:`Verdict`.

A judge never shares a process with the answer. It holds a :class:`Session`, gets hosts from it (perflab.launch),
sends fresh inputs, reads plain values back, measures with its own clock and adds up :class:`Parts`. An exercise
is a module of perflab.exercises with::

    SLUG = "async-on-cpu"
    TITLE = ("…", "…")                    # English, Chinese
    ENTRY_POINTS = ("measure", …)         # names that the answer's cells must define
    MAX_POINTS = 10
    def judge(session) -> Verdict: …

and optionally ``TIMED = False`` where nothing in it depends on how fast the machine is at that moment.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib
import os
import pkgutil
import random
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from perflab import bench, exercises, machine
from perflab.launch import RAISED_PRIORITY, AnswerFailed, Finished, Host, Launcher, may_raise_priority

# How long the judge asks nothing, before and after it compares, to see whether the answer computes all the same.
IDLE_CHECK_S = 0.1


@dataclass
class Part:
    """One thing that was asked: `ok` is True, False, or None where noise left it open."""

    name: str
    points: float
    ok: bool | None
    en: str
    zh: str


@dataclass
class Verdict:
    """What the judge decided about one exercise of one answer.

    status: ``pass``, ``fail`` or ``inconclusive``; points: earned for certain, of `max_points`; evidence: plain data
    behind the decision; message: English, a blank line, Chinese; figure: a PNG or None.
    """

    slug: str
    status: str
    points: float
    max_points: float
    evidence: dict
    message: str
    figure: bytes | None = None
    parts: list[Part] = field(default_factory=list)

    def __str__(self) -> str:
        return self.message

    @property
    def reason(self) -> str:
        """One line: what first went wrong, or that nothing did."""
        for ok in (False, None):
            for part in self.parts:
                if part.ok is ok:
                    return part.en
        return "Everything asked was shown."

    def _repr_html_(self) -> str:
        """How a notebook shows it: the message in both languages, then the picture."""
        blocks = "".join(f"<p style='white-space: pre-wrap'>{html.escape(text)}</p>" for text in self.message.split("\n\n"))
        if self.figure:
            data = base64.b64encode(self.figure).decode()
            blocks += f"<img alt='your measurement beside the judge’s' src='data:image/png;base64,{data}'>"
        return f"<div>{blocks}</div>"

    def as_json(self) -> dict:
        """The fields that ``python -m grader judge --json`` prints."""
        names = ("status", "points", "max_points", "evidence", "message")
        return {"slug": self.slug} | {name: _plain(getattr(self, name)) for name in names}


def _plain(value):
    """`value` with NumPy scalars, arrays and odd keys turned into what JSON has; NaN and infinity become strings."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        value = float(value)
        return value if np.isfinite(value) else str(value)
    return value if value is None else str(value)


class Parts:
    """Collects what was asked of an answer and turns it into a verdict."""

    def __init__(self, slug: str, max_points: float):
        self.slug, self.max_points = slug, max_points
        self.items: list[Part] = []

    def add(self, name: str, points: float, ok: bool | None, en: str, zh: str) -> bool:
        """Notes one part; returns whether it was shown."""
        self.items.append(Part(name, points, ok, en, zh))
        return ok is True

    @contextmanager
    def attempt(self, name: str, points: float):
        """Where the answer fails within, that becomes the failed part `name`, and the judge goes on behind it."""
        try:
            yield
        except AnswerFailed as error:
            self.add(name, points, False, error.en, error.zh)

    def verdict(self, *, evidence: dict | None = None, figure: bytes | None = None) -> Verdict:
        """pass: every part shown. fail: a part was shown to be wrong. inconclusive: noise left a part open, nothing failed."""
        known = sum(part.points for part in self.items)
        if known > self.max_points + 1e-9:
            raise ValueError(f"{self.slug}: the parts give {known:g} points, more than {self.max_points:g}")
        states = [part.ok for part in self.items]
        if False in states:
            status = "fail"
        elif None in states or not states:
            status = "inconclusive"
        else:
            status = "pass"
        points = self.max_points if status == "pass" else sum(p.points for p in self.items if p.ok)
        if status == "fail":
            points = min(points, self.max_points)
        if status != "pass" and points >= self.max_points:
            raise ValueError(f"{self.slug}: full points without a pass; every part must carry some")
        evidence = dict(evidence or {})
        evidence["parts"] = {p.name: {True: "shown", False: "wrong", None: "undecided"}[p.ok] for p in self.items}
        undecided = sum(p.points for p in self.items if p.ok is None)
        if undecided:
            evidence["undecided_points"] = undecided
        return Verdict(self.slug, status, points, self.max_points, evidence, self._message(status, points), figure, self.items)

    def _message(self, status: str, points: float) -> str:
        score = f"{points:g} / {self.max_points:g}"
        head_en = {"pass": "Passed", "fail": "Not passed", "inconclusive": "Undecided"}[status]
        head_zh = {"pass": "通过", "fail": "未通过", "inconclusive": "无法判定"}[status]
        tail_en = tail_zh = ""
        if status == "inconclusive":
            tail_en = "\nNoise on the machine hid the answer. It costs you no point: an instructor decides, with the evidence."
            tail_zh = "\n机器上的干扰使结果无法判定。你不会因此失分：教师会根据测量证据评定。"
        mark = {True: "✓", False: "✗", None: "?"}
        ordered = sorted(self.items, key=lambda p: (p.ok is True, p.ok is None))
        en = "\n".join(f"{mark[p.ok]} {p.en}" for p in ordered)
        zh = "\n".join(f"{mark[p.ok]} {p.zh}" for p in ordered)
        here = _machine_line()
        return (
            f"{head_en}: {score} points.\n{en}{tail_en}\nMeasured on: {here}"
            f"\n\n{head_zh}：{score} 分。\n{zh}{tail_zh}\n测量机器：{here}"
        )


class Session:
    """What a judge has in hand for one judgement.

    rng: numpy Generator from the seed (secret when grading); cpu: the core that hosts are pinned to, cpus: all usable
    cores of its kind, both None where pinning is impossible; public: True under ``perflab.check``; hidden: the folder of
    this exercise's secret cases, or None; cells: the answer's cells.
    """

    def __init__(self, slug: str, cells: list[str], launcher: Launcher, *, seed: int, hidden: Path | None = None, public: bool = False):
        self.slug, self.cells, self.launcher = slug, list(cells), launcher
        self.entry_points = exercise(slug).ENTRY_POINTS
        self.timed = getattr(exercise(slug), "TIMED", True)
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.public, self.hidden = public, hidden
        self._hosts: list[Host] = []
        self._answers: list[Host] = []
        self._spans: list[tuple[float, float]] = []
        with self._own_work():
            self.cpus = like_cpus()
            self.cpu = quietest_cpu(self.cpus)

    def order(self) -> random.Random:
        """A random.Random for orders and choices, seeded from :attr:`rng`."""
        return random.Random(int(self.rng.integers(1 << 62)))

    def answer(self, *, timeout_s: float = 60, **options) -> Host:
        """A fresh process in which the answer's cells have run. Raises AnswerFailed. `options` as Launcher.start."""
        host = self._started(self.cells, self.entry_points, timeout_s, options)
        self._answers.append(host)
        return host

    def trusted(self, source: str, **options) -> Host:
        """A process like an answer's, pinned alike, that runs the judge's own `source`."""
        return self._started([source], (), 60, options)

    def _started(self, cells, entry_points, timeout_s, options) -> Host:
        if "cpus" not in options and options.get("threads", 1) == 1 and self.cpu is not None:
            options["cpus"] = {self.cpu}
        with self._own_work():
            host = self.launcher.start(raised=self.timed, **options)
        self._hosts.append(host)
        host.run_answer(cells, entry_points, timeout_s=timeout_s)
        return host

    def run(self, argv: list[str], files: dict[str, bytes] | None = None, collect=(), timeout_s: float = 60, **limits) -> Finished:
        """Runs a command in a sandbox of its own: see Launcher.run."""
        return self.launcher.run(argv, files, collect, timeout_s, **limits)

    def paired_ratio(self, reference, answer, threshold: float, *, max_s: float = 20) -> bench.Comparison:
        """bench.paired_ratio with this session's order of calls.

        Raises AnswerFailed where the answer's processes computed while they were not asked: a thread left running
        slows the reference, which runs on the same core.
        """
        def used_s() -> float:
            return sum(h.cpu_s() for h in self._answers)

        stolen_s = unasked_s = 0.0

        def unasked(work):
            """What `work` returns; whatever the answer's processes compute meanwhile, nobody asked for."""
            nonlocal stolen_s, unasked_s
            before_s, began = used_s(), time.perf_counter()
            value = work()
            unasked_s += time.perf_counter() - began
            stolen_s += used_s() - before_s
            return value

        unasked(lambda: time.sleep(IDLE_CHECK_S))
        found = bench.paired_ratio(lambda: unasked(reference), answer, threshold, max_s=max_s, rng=self.order())
        unasked(lambda: time.sleep(IDLE_CHECK_S))
        if stolen_s > 0.15 * unasked_s + 0.05:  # 0.05: counts of CPU time may come in steps
            raise AnswerFailed(
                "protocol",
                f"Your code used {stolen_s:.2g} s of CPU time in {unasked_s:.2g} s in which it was asked nothing: something kept running"
                " between the calls. End every thread and process before you return.",
                f"在没有调用你的代码的 {unasked_s:.2g} 秒里，它仍用了 {stolen_s:.2g} 秒 CPU 时间：在两次调用之间仍有东西在运行。"
                "返回之前请结束所有线程和进程。",
            )
        return found

    def close(self) -> None:
        with self._own_work():
            for host in self._hosts:
                host.close()

    @contextmanager
    def _own_work(self):
        """Notes when it began and ended: neither the answer's own run nor measurement."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spans.append((began, time.monotonic()))

    @property
    def hosts_s(self) -> float:
        """Seconds that went into choosing a core and into starting and ending hosts; several at once count once."""
        total_s, until = 0.0, 0.0
        for began, ended in sorted(self._spans):
            total_s += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total_s


# ---------------------------------------------------------------- exercises


@lru_cache
def exercise(slug: str):
    """The module of an exercise. Raises KeyError with the known slugs."""
    if slug not in slugs():
        raise KeyError(f"there is no exercise {slug!r}; there are: {', '.join(slugs())}")
    return importlib.import_module(f"perflab.exercises.{slug.replace('-', '_')}")


@lru_cache
def slugs() -> tuple[str, ...]:
    """The exercises there are."""
    return tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(exercises.__path__) if not m.name.startswith("_")))


# Modules of perflab on which no verdict depends.
_FOR_PAGES_ONLY = {"plot.py", "widgets.py", "recorded.py", "compilers.py", "costmodel.py", "memory.py", "units.py", "notebook.py"}


@lru_cache
def exercise_version(slug: str, hidden: Path | None = None) -> str:
    """A fingerprint of all that a verdict depends on beside the answer: perflab's source and the exercise's cases.

    The modules of other exercises and those that only draw are left out: a new colour must not have a class judged anew.
    """
    digest = hashlib.sha256(slug.encode())
    package = Path(__file__).parent
    others = {f"{name.replace('-', '_')}.py" for name in slugs() if name != slug}
    for root in [package, *([hidden] if hidden else [])]:
        for path in sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            left_out = path.parent == package and path.name in _FOR_PAGES_ONLY or path.parent.name == "exercises" and path.name in others
            if not left_out:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------- the machine, for the time of a judgement


def like_cpus() -> set[int] | None:
    """The usable cores of the fastest kind there is; None where cores can't be chosen."""
    return machine.like_cores(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def quietest_cpu(cpus: set[int] | None) -> int | None:
    """Of `cpus` the one that was idle longest during the last 50 ms; None where cores can't be chosen."""
    if not cpus or len(cpus) == 1:
        return min(cpus or (), default=None)
    before = _idle_ticks()
    time.sleep(0.05)
    after = _idle_ticks()
    return max(cpus, key=lambda cpu: (after.get(cpu, 0) - before.get(cpu, 0), cpu))


def _idle_ticks() -> dict[int, int]:
    ticks = {}
    with open("/proc/stat") as file:
        for line in file:
            name, *rest = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks[int(name[3:])] = int(rest[3]) + int(rest[4])
    return ticks


def idle_fraction(wait_s: float = 0.5) -> float:
    """The share of all cores' time that was idle during `wait_s` seconds; 1.0 where the system does not say."""
    import psutil

    return 1 - psutil.cpu_percent(interval=wait_s) / 100


@contextmanager
def measurement_lease():
    """Holds this machine's one measurement lease, so that no two judgements time anything at once."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system, which then is a student's own
        yield
        return
    path = Path(tempfile.gettempdir()) / "perflab-measurement.lock"
    try:
        # never O_CREAT on a file that is there: in a sticky folder the kernel refuses that to all but its owner
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        fd = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def _measuring_thread(cpu: int | None):
    """Keeps this thread off the measured core where there is another, and ahead of other work where that is allowed.

    A judge that wakes up late sees a device's work end late: what it measures must not depend on its neighbours.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    others = before - {cpu}
    if others:
        os.sched_setaffinity(0, others)
    if may_raise_priority():
        os.setpriority(os.PRIO_PROCESS, 0, RAISED_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        os.sched_setaffinity(0, before)


# ---------------------------------------------------------------- judging


def judge(
    slug: str, cells: list[str], launcher: Launcher, *, seed: int, hidden: Path | None = None, public: bool = False,
    quiet_wait_s: float = 20.0,
) -> Verdict:  # fmt: skip
    """Judges one answer once, and once more when the machine is quiet if noise left it open.

    Whatever the answer does, this returns a verdict. KeyError: no such exercise; SandboxError: no process for it.
    """
    module = exercise(slug)
    verdict = _judge_once(module, cells, launcher, seed, hidden, public)
    if verdict.status == "inconclusive" and quiet_wait_s > 0:
        deadline = time.monotonic() + quiet_wait_s
        while idle_fraction() < 0.8 and time.monotonic() < deadline:
            pass
        second = _judge_once(module, cells, launcher, seed + 1, hidden, public)
        second.evidence["first_try"] = verdict.evidence
        verdict = second
    return verdict


def _judge_once(module, cells, launcher, seed, hidden, public) -> Verdict:
    launcher.warm_up()
    _machine_line()  # before this thread is pinned
    timed = getattr(module, "TIMED", True)
    started = time.monotonic()
    try:  # cells that don't even run need not wait for their turn to be measured
        with launcher.start() as probe:
            probe.run_answer(cells, module.ENTRY_POINTS, timeout_s=30)
    except AnswerFailed as error:
        return _failed_at_once(module, error, _times(probe_s=time.monotonic() - started))
    probed = time.monotonic()
    with measurement_lease() if timed else nullcontext():
        began = time.monotonic()
        session = Session(module.SLUG, cells, launcher, seed=seed, hidden=hidden, public=public)
        try:
            with _measuring_thread(session.cpu) if timed else nullcontext():
                verdict = module.judge(session)
        except AnswerFailed as error:
            verdict = _failed_at_once(module, error, {})
        finally:
            session.close()
        judged_s = time.monotonic() - began
    verdict.evidence["machine"] = _machine_line()
    verdict.evidence |= _times(
        probe_s=probed - started, waited_s=began - probed, hosts_s=session.hosts_s, measured_s=judged_s - session.hosts_s
    )
    return verdict


def _times(*, probe_s: float, waited_s: float = 0.0, hosts_s: float = 0.0, measured_s: float = 0.0) -> dict[str, float]:
    """Where the time of a judgement went, for its evidence.

    probe_s: the cells run once, in a process of their own; waited_s: for the measurement lease; hosts_s: a core chosen,
    the other processes started and ended; measured_s: the judge's questions, its answers' runs and its picture;
    seconds: all of it but the wait, which is not this answer's.
    """
    times = {"seconds": probe_s + hosts_s + measured_s, "waited_s": waited_s}
    times |= {"probe_s": probe_s, "hosts_s": hosts_s, "measured_s": measured_s}
    return {name: round(value, 3) for name, value in times.items()}


def _failed_at_once(module, error: AnswerFailed, times: dict[str, float]) -> Verdict:
    """The verdict of an answer that failed as a whole: no point, and the reason."""
    parts = Parts(module.SLUG, module.MAX_POINTS)
    parts.add(error.kind, module.MAX_POINTS, False, error.en, error.zh)
    return parts.verdict(evidence={"failed": error.kind, "machine": _machine_line(), **times})


@lru_cache
def _machine_line() -> str:
    return machine.line()
