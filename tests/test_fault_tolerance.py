"""12.6 fault-tolerance: verdicts, and the reference at every kind of moment on a cluster without a judge."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from verdicts import ANSWERS, answers, judged_as_promised

from grader.judging import hidden_cases
from perflab import cluster
from perflab.cluster import Kill, Message
from perflab.exercises import fault_tolerance
from perflab.exercises.fault_tolerance import Outcome, Point


@pytest.mark.parametrize("path", answers("fault-tolerance"), ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("fault-tolerance", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is any(point["killed"] for point in verdict.evidence.get("points", []))
    if verdict.status == "pass":
        assert sum(point["killed"] for point in verdict.evidence["points"]) >= 20


STEPS = 5


def gradient(worker):
    def function(step, params):
        return np.sin(params * (step + 2) + worker)

    return function


def train(source, faults=()):
    namespace = {}
    exec(source, namespace)
    nodes = {
        role: (namespace["server"], role, np.linspace(-1, 1, 3000), 0.1) for role in ("primary", "backup")
    } | {f"worker-{i}": (namespace["worker"], gradient(i), STEPS, ["primary", "backup"]) for i in range(3)}
    return cluster.run(nodes, faults=faults, timeout_s=20)


@pytest.mark.parametrize("name", ["right-reference", "right-polling"])
def test_right_answers_on_a_cluster_of_ones_own(name):
    source = (ANSWERS / "fault-tolerance" / f"{name}.py").read_text()
    expected = train(source).values["worker-0"]
    for victim, source_node, to in (
        ("primary", "primary", "backup"),
        ("primary", "backup", "primary"),
        ("primary", "primary", "worker-1"),
        ("primary", "worker-2", "primary"),
        ("backup", "primary", "backup"),
        ("backup", "backup", "primary"),
    ):
        for fraction in (0.0, 0.5, 1.0):
            run = train(source, [Kill(victim, Message(source_node, to, 2, fraction))])
            assert run.killed == [victim]
            for i in range(3):
                assert run.values[f"worker-{i}"].tobytes() == expected.tobytes()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("victim", ["primary", "backup"])
def test_the_reference_survives_forty_moments_five_times_each(victim):
    source = (ANSWERS / "fault-tolerance" / "right-reference.py").read_text()
    undisturbed = train(source)
    expected = undisturbed.values["worker-0"].tobytes()
    moments = [
        Message(a, b, number, fraction)
        for (a, b), count in sorted(undisturbed.messages.items()) if victim in (a, b)
        for number in range(count) for fraction in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    chosen = [moments[int(i)] for i in np.linspace(0, len(moments) - 1, 20)]  # forty with those of the other server
    assert len(set(chosen)) == 20 and any(m.fraction == 0.5 for m in chosen)
    killed = 0
    for moment in chosen * 5:
        run = train(source, [Kill(victim, moment)])
        killed += run.killed == [victim]
        assert [run.values[f"worker-{i}"].tobytes() == expected for i in range(3)] == [True] * 3, moment
    assert killed >= 95  # after the very last message there may be nothing left to kill


def task():
    return fault_tolerance.make_task(np.random.default_rng(0), 3, 6)


def test_lost_and_doubled_updates_are_found_and_named():
    t = task()
    path = t.trajectory()
    asked = [(w, s, path[s]) for s in range(6) for w in range(3)]

    def judged(final, asked=asked):
        return fault_tolerance._mistake(t, Outcome(0, {"worker-0": final}, asked), path, exact=True, acting="primary")

    assert judged(path[-1]) is None
    g = t.gradient(1, 4, path[4])
    assert "worker-1's gradient of step 4 was applied twice" in judged(path[-1] - t.lr * g)[0]
    assert "worker-1's gradient of step 4 is missing" in judged(path[-1] + t.lr * g)[0]
    assert "bit by bit" in judged(np.nextafter(path[-1], 9))[0]
    assert "must not be lost" in judged(path[-1], asked + [(2, 0, path[0])])[0]
    assert judged(path[-1], asked + [(2, 5, path[5])]) is None  # computing the last step again does no harm
    assert "stopped after step 4" in judged(path[-1], asked[:-3])[0]


def test_there_are_enough_moments_and_the_secret_ones_exist():
    messages = {("primary", "backup"): 6, ("backup", "primary"): 6}
    for i in range(3):
        messages |= {("primary", f"worker-{i}"): 7, (f"worker-{i}", "primary"): 7}
    outcome = Outcome(0.1, messages=messages)
    everything = fault_tolerance.all_points(0, "primary", outcome)
    assert len(set(everything)) == len(everything) >= 40
    assert any(point.fraction == 0.5 for _, point in everything)

    class Session:
        hidden, public, rng = hidden_cases("fault-tolerance"), False, np.random.default_rng(1)

    chosen = fault_tolerance.points(Session, "primary", [(task(), outcome)] * 2)
    secret = json.loads((Session.hidden / "points.json").read_text())["primary"]
    assert len(chosen) > len(secret) >= 10
    for index, point in chosen:
        assert point.source is None or point.number < messages[point.source, point.to]
        assert index in (0, 1)


def test_moments_are_described_in_both_languages():
    en, zh = Point("primary", "primary", "worker-1", 4, 0.5).said()
    assert "in the middle of message 5 from primary to worker-1" in en
    assert "第 5 条" in zh


def test_nothing_outlives_a_killed_judge():
    """kill -9 of the judge in the middle: wires, sandboxes and nodes end too."""
    answer = ANSWERS / "fault-tolerance" / "right-reference.py"
    command = [sys.executable, "-m", "grader", "judge", "fault-tolerance", str(answer)]
    judge = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parent.parent)
    deadline, seen = time.monotonic() + 60, []
    while time.monotonic() < deadline and len(seen) < 12:  # warm parent, forwarder, five nodes with their keepers, boxes
        seen = psutil.Process(judge.pid).children(recursive=True)
        time.sleep(0.02)
    assert len(seen) >= 12
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    gone, alive = psutil.wait_procs(seen, timeout=15)
    assert not alive, [p.cmdline() for p in alive]
