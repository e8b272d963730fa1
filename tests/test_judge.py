"""Verdicts, parts, and how the judge handles an answer that misbehaves."""

import json
import math
import multiprocessing
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from verdicts import ANSWERS

from grader import judging, trial
from perflab import bench, judge, wire
from perflab.judge import Parts, Session
from perflab.launch import AnswerFailed, SandboxError
from perflab.wire import Proxy


def parts(*states):
    made = Parts("async-on-cpu", 10)
    for i, (points, ok) in enumerate(states):
        made.add(f"part {i}", points, ok, f"English {i}", f"中文 {i}")
    return made.verdict()


def test_pass_only_when_every_part_is_shown():
    verdict = parts((6, True), (4, True))
    assert (verdict.status, verdict.points) == ("pass", 10)


def test_a_wrong_part_fails_and_the_others_keep_their_points():
    verdict = parts((6, True), (4, False))
    assert (verdict.status, verdict.points) == ("fail", 6)
    assert verdict.reason == "English 1"


def test_noise_leaves_it_open():
    verdict = parts((6, True), (4, None))
    assert (verdict.status, verdict.points) == ("inconclusive", 6)
    assert verdict.evidence["undecided_points"] == 4
    assert "costs you no point" in verdict.message


def test_a_wrong_part_decides_even_beside_an_open_one():
    assert parts((3, True), (3, None), (4, False)).status == "fail"


def test_nothing_asked_is_no_pass():
    assert Parts("async-on-cpu", 10).verdict().status == "inconclusive"


def test_more_points_than_there_are_is_a_mistake_of_the_judge():
    with pytest.raises(ValueError, match="more than"):
        parts((6, True), (5, True))
    with pytest.raises(ValueError, match="every part must carry"):
        parts((10, True), (0, False))


def test_messages_are_in_both_languages_worst_first():
    english, chinese = parts((6, True), (4, False)).message.split("\n\n")
    assert english.splitlines()[:3] == ["Not passed: 6 / 10 points.", "✗ English 1", "✓ English 0"]
    assert chinese.splitlines()[:2] == ["未通过：6 / 10 分。", "✗ 中文 1"]
    assert "Measured on: " in english and "测量机器：" in chinese


def test_evidence_is_json():
    made = Parts("async-on-cpu", 10)
    made.add("a", 10, True, "x", "y")
    verdict = made.verdict(evidence={"array": np.arange(3), "nan": math.nan, 8: np.float32(1.5), "flag": np.bool_(True)})
    line = json.dumps(verdict.as_json(), allow_nan=False)
    assert json.loads(line)["evidence"]["array"] == [0, 1, 2]
    assert set(json.loads(line)) == {"slug", "status", "points", "max_points", "evidence", "message"}


def test_a_notebook_shows_it_without_running_what_it_quotes():
    made = Parts("async-on-cpu", 10)
    made.add("a", 10, False, "raised <script>alert(1)</script>", "y")
    assert "<script>" not in made.verdict()._repr_html_()


def test_an_unknown_exercise_names_those_there_are():
    with pytest.raises(KeyError, match="async-on-cpu"):
        judge.exercise("no-such")


# ---------------------------------------------------------------- misbehaviour, through the whole judge


@pytest.mark.parametrize(
    ("cell", "kind", "says"),
    [
        ("def measure(:\n", "exception", "SyntaxError"),
        ("raise ValueError('on purpose')\n", "exception", "line 1"),
        ("import no_such_package\n", "exception", "no_such_package"),
        ("x = 1\n", "missing", "`measure`, `is_asynchronous`, `survey`"),
        ("import os\nos._exit(0)\n", "died", "ended before it answered"),
        ("import sys\nsys.exit(0)\n", "exception", "must return, not exit"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "died", "SIGKILL"),
        ("x = '\0'\n", "exception", "null byte"),
        ("print(undefined_name)\n", "exception", "Only the answer cells are run"),
        ("b = bytearray(100 << 30)\n", "exception", "GiB of memory"),
        ("while True: print('x' * 1000)\n", "output", "Take the print out"),
        ("input()\n", "exception", "EOFError"),
        ("\ud800", "exception", "UnicodeEncodeError"),
    ],
)  # fmt: skip
def test_every_answer_ends_in_a_verdict(cell, kind, says):
    verdict = judging.judge_answer("async-on-cpu", [cell])
    assert verdict.status == "fail" and verdict.points == 0
    assert verdict.evidence["failed"] == kind
    assert says in verdict.message.split("\n\n")[0]
    json.dumps(verdict.as_json()).encode()


def test_line_numbers_are_those_of_the_cell():
    cells = ["a = 1\nb = 2\n", "c = 3\n\n1 / 0\n"]
    verdict = judging.judge_answer("async-on-cpu", cells)
    assert "answer cell 2, line 3: `1 / 0`" in verdict.message


@pytest.fixture
def session():
    made = Session("async-on-cpu", ["def measure(): pass\ndef is_asynchronous(): pass\ndef survey(): pass\n"], judging.launcher(), seed=1)
    yield made
    made.close()


def test_magics_and_await_run_as_in_a_notebook(session):
    source = "import asyncio\n%matplotlib inline\nasync def g(): return 5\nvalue = await g()\ndef f(): return value\n"
    host = session.trusted(source)
    assert host.call("f") == 5


def test_the_answer_is_main_and_its_source_is_there(session):
    host = session.trusted(
        "import inspect, sys\nclass C:\n    x = 1\ndef f():\n    return __name__, sys.modules['__main__'].f is f, inspect.getsource(f), inspect.getsource(C)\n"
    )
    name, same, function, klass = host.call("f")
    assert name == "__main__" and same
    assert function.startswith("def f()") and klass == "class C:\n    x = 1\n"


def test_calls_run_without_gradient_unless_asked(session):
    host = session.trusted("import torch\ndef f(): return torch.is_inference_mode_enabled(), torch.get_num_threads()\n")
    assert host.call("f") == (True, 1)
    assert host.call("f", inference=False) == (False, 1)


def test_changed_inputs_are_seen(session):
    host = session.trusted("def f(x):\n    x += 1\n    return 0\n")
    _, (after,) = host.call("f", np.zeros(3), echo=True)
    assert after.tolist() == [1, 1, 1]


def test_functions_are_lent_for_one_call_only(session):
    host = session.trusted("kept = []\ndef f(g):\n    kept.append(g)\n    return g(2)\ndef late():\n    return kept[0](3)\n")
    assert host.call("f", wire.Proxy(lambda n: n * 10)) == 20
    with pytest.raises(AnswerFailed) as caught:
        host.call("late")
    assert caught.value.kind == "protocol"


FORGER = """
from perflab import wire
send = wire.Connection.send

def forged(self, message, **options):
    if message.get("op") != "done" or not armed:
        return send(self, message, **options)
    raw = {raw!r}.encode()
    self._write(wire._LENGTHS.pack(len(raw), 0) + raw, None)

wire.Connection.send, armed = forged, False

def f(*functions):
    global armed
    armed = True
    return 1
"""


@pytest.mark.parametrize(
    "raw",
    [
        '{"op": "callback", "number": [1], "value": []}',
        '{"op": "callback", "number": 1, "value": 5}',
        '{"op": "callback", "number": 1, "value": {"f": "inf"}}',
        '{"op": "callback", "number": 99, "value": []}',
        '{"op": "done", "value": ' + '{"x": ' * 900 + "1" + "}" * 900 + "}",
        '{"op": "done", "value": {"t": {"dtype": "float32", "shape": [0]}}}',
        '{"op": "done", "value": {"t": 3}}',
        '{"op": "done", "value": {"{": [[{"(": [[]]}, 1]]}}',
        '{"op": "failed", "report": {"where": [5]}}',
        '{"op": "failed", "report": 5}',
        '{"op": ["done"]}',
        "[]",
    ],
)
def test_a_forged_frame_is_the_answers_failure(session, raw):
    host = session.trusted(FORGER.format(raw=raw))
    with pytest.raises(AnswerFailed):
        host.call("f", Proxy(lambda x: x + 1), timeout_s=10)


def test_what_a_function_refuses_is_told_to_the_answer(session):
    """Odd arguments to a given function are the answer's mistake, whatever they make the function raise."""
    host = session.trusted("def f(g):\n    try:\n        g({})\n    except RuntimeError as e:\n        return str(e)\n")
    assert "-7" in host.call("f", Proxy(lambda d: d["-7"]))


def test_a_function_called_without_its_argument_is_the_answers_mistake(session):
    host = session.trusted("def f(g):\n    try:\n        g()\n    except RuntimeError as e:\n        return str(e)\n")
    assert "missing 1 required positional argument" in host.call("f", Proxy(lambda i: i))

    def broken():
        raise ValueError("a mistake of the judge's")

    with pytest.raises(ValueError, match="of the judge's"):
        host.call("f", Proxy(broken))


def test_a_secret_case_is_not_quoted(session):
    host = session.trusted("def f(x):\n    raise ValueError(x)\n")
    with pytest.raises(AnswerFailed, match="the-secret"):
        host.call("f", "the-secret")
    host.quotes = False
    with pytest.raises(AnswerFailed, match="raised ValueError on a case that is kept secret") as error:
        host.call("f", "the-secret")
    assert "the-secret" not in error.value.en + error.value.zh


def test_a_thread_left_running_is_found(session):
    """It would slow the reference, which runs on the same core."""
    fast = "def f(): return sum(range(20_000))\n"
    spinning = fast + "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n"
    reference = session.trusted(fast)

    def compared(cell):
        session.cells, session.entry_points = [cell], ("f",)
        host = session.answer()
        return session.paired_ratio(lambda: reference.timed_call("f")[1], lambda: host.timed_call("f")[1], 0.8, max_s=10)

    compared(fast)
    with pytest.raises(AnswerFailed, match="kept running"):
        compared(spinning)


def test_a_process_left_running_is_found(session):
    """Even one that has left its parent."""
    cell = """
import os
if os.fork() == 0:
    if os.fork() == 0:
        while True: pass
    os._exit(0)
os.wait()
def f(): return 1
"""
    session.cells, session.entry_points = [cell], ("f",)
    host = session.answer()
    before_s = host.cpu_s()
    time.sleep(0.5)
    assert host.cpu_s() - before_s > 0.2


def test_inconclusive_is_tried_once_more_when_quiet(monkeypatch):
    calls = []
    module = judge.exercise("async-on-cpu")

    def undecided(session):
        calls.append(session.seed)
        made = Parts("async-on-cpu", 10)
        made.add("a", 10, None if len(calls) == 1 else True, "x", "y")
        return made.verdict()

    monkeypatch.setattr(module, "judge", undecided)
    verdict = judging.judge_answer("async-on-cpu", ["measure = is_asynchronous = survey = print\n"], seed=5, quiet_wait_s=0.1)
    assert calls == [5, 6]
    assert verdict.status == "pass" and "first_try" in verdict.evidence


def test_the_evidence_says_where_the_time_went(monkeypatch):
    def one_question(session):
        session.answer()
        time.sleep(0.2)
        made = Parts("async-on-cpu", 10)
        made.add("a", 10, True, "x", "y")
        return made.verdict()

    monkeypatch.setattr(judge.exercise("async-on-cpu"), "judge", one_question)
    spent = judging.judge_answer("async-on-cpu", ["1 / 0\n"]).evidence
    assert spent["seconds"] == spent["probe_s"] > 0
    assert spent["waited_s"] == spent["hosts_s"] == spent["measured_s"] == 0

    holds, enough = threading.Event(), threading.Event()

    def other_measurement():
        with judge.measurement_lease():
            holds.set()
            enough.wait(30)

    other = threading.Thread(target=other_measurement)
    other.start()
    assert holds.wait(120)
    threading.Timer(4, enough.set).start()
    began = time.monotonic()
    spent = judging.judge_answer("async-on-cpu", ["measure = is_asynchronous = survey = print\n"]).evidence
    whole_s = time.monotonic() - began
    other.join()
    assert spent["seconds"] == pytest.approx(spent["probe_s"] + spent["hosts_s"] + spent["measured_s"], abs=0.003)
    assert spent["seconds"] + spent["waited_s"] <= whole_s + 0.003
    assert spent["measured_s"] >= 0.2 and spent["probe_s"] > 0 and spent["hosts_s"] > 0
    assert spent["waited_s"] + spent["probe_s"] > 1.5  # the other one held the lease for 4 s


def test_hosts_that_start_at_once_count_once(session):
    session._spans[:] = [(10.0, 12.0), (11.0, 13.0), (11.5, 12.5), (20.0, 21.0)]
    assert session.hosts_s == pytest.approx(4.0)


def test_the_seed_decides_the_inputs():
    a, b, c = (np.random.default_rng(s).random(4) for s in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert judging.secrets.randbits(63) != judging.secrets.randbits(63)


def test_the_version_changes_with_the_source_and_the_hidden_cases(tmp_path):
    plain = judge.exercise_version("async-on-cpu")
    (tmp_path / "case.json").write_text("1")
    with_case = judge.exercise_version("async-on-cpu", tmp_path)
    assert plain != with_case and plain == judge.exercise_version("async-on-cpu")


def test_two_judgements_never_measure_at_once(tmp_path):
    program = "import time\nfrom perflab.judge import measurement_lease\nwith measurement_lease():\n    a = time.monotonic(); time.sleep(0.4); print(a, time.monotonic())\n"
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    spans = sorted(tuple(map(float, p.communicate()[0].split())) for p in running)
    assert all(spans[i][1] <= spans[i + 1][0] for i in range(2))


def test_two_judgements_with_ranks_at_once_do_not_meet_and_leave_nothing(nothing_left_in_shared_memory):
    """Of an untimed exercise, so that they really overlap: no port, no name and no file is shared."""
    answer = ANSWERS / "data-parallel" / "right-reference.py"
    command = [sys.executable, "-m", "grader", "judge", "--json", "data-parallel", str(answer)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [json.loads(p.communicate(timeout=120)[0])["status"] for p in running] == ["pass"] * 2


def test_a_trial_counts_verdicts_and_messages(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong-a.py").write_text("# Expect: too slow\n")
    (tmp_path / "wrong-b.py").write_text("# [correctness] Expect: not a number\n")
    (tmp_path / "right-c.py").write_text("pass\n")

    def verdict(slug, cells, unsafe):
        status = "pass" if cells[0] == "pass\n" else "fail"
        return judge.Verdict(slug=slug, status=status, points=0.0, max_points=10.0, message="✗ too slow\n\n✗ 太慢", evidence={"seconds": 1.0})

    monkeypatch.setattr(judging, "judge_answer", verdict)
    assert trial.main_trial(["async-on-cpu", "--answers", str(tmp_path), "--repeat", "5"]) == 0
    head, right, first, second, instead, shares = capsys.readouterr().out.splitlines()
    assert right.split()[:6] == ["right-c", "none", "5", "5", "0", "0"]
    assert first.split()[2:4] == ["5", "0"] and first.split()[-1] == "0"
    assert second.split()[2:4] == ["3", "0"] and second.split()[-1] == "3"
    assert "too slow" in instead
    assert shares == "undecided, noise none: 0.0% of right answers (0 of 5), 0.0% of all answers (0 of 13); at most 2%"
    (tmp_path / "right-c.py").write_text("fail\n")
    assert trial.main_trial(["async-on-cpu", "--answers", str(tmp_path), "--repeat", "1"]) == 1


def made_rows(noise, n, right, wrong):
    """Two answers' rows of a trial, judged `n` times each, of which so many were undecided."""
    return [{"noise": noise, "n": n, "expected": e, "inconclusive": i} for e, i in (("pass", right), ("fail", wrong))]


@pytest.mark.parametrize(
    ("noise", "n", "right", "wrong", "too_many"),
    [
        ("none", 100, 2, 2, False), ("none", 100, 3, 0, True), ("none", 100, 0, 5, True),
        ("cpu", 100, 20, 20, False), ("cpu", 100, 21, 0, True), ("bursts", 100, 0, 41, True),
    ],
)  # fmt: skip
def test_a_trial_knows_how_many_may_be_undecided(noise, n, right, wrong, too_many):
    said, found = trial.undecided(made_rows(noise, n, right, wrong))
    assert found is too_many and ("too many" in said) is too_many
    assert f"({right} of {n})" in said and f"({right + wrong} of {2 * n})" in said


def test_a_trial_fails_where_too_many_are_undecided(tmp_path, monkeypatch, capsys):
    (tmp_path / "right-a.py").write_text("pass\n")
    verdict = judge.Verdict("async-on-cpu", "inconclusive", 0.0, 10.0, {"seconds": 1.0}, "? too noisy\n\n? 太吵")
    monkeypatch.setattr(judging, "judge_answer", lambda slug, cells, unsafe: verdict)
    assert trial.main_trial(["async-on-cpu", "--answers", str(tmp_path), "--repeat", "2"]) == 1
    assert "100.0% of right answers (2 of 2)" in capsys.readouterr().out


def test_a_trial_says_why_it_can_not_be(tmp_path, monkeypatch, capsys):
    (tmp_path / "right-a.py").write_text("pass\n")

    def no_sandbox(slug, cells, unsafe):
        raise SandboxError("answers can't be isolated here")

    monkeypatch.setattr(judging, "judge_answer", no_sandbox)
    assert trial.main_trial(["async-on-cpu", "--answers", str(tmp_path)]) == 2
    assert "can't be isolated" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        trial.main_trial(["async-on-cpu", "--answers", str(tmp_path), "--repeat", "0"])
    assert ended.value.code == 2 and "--repeat" in capsys.readouterr().err


def test_noise_that_ends_by_itself_is_an_error(monkeypatch):
    others = set(multiprocessing.active_children())

    def noisy():
        return set(multiprocessing.active_children()) - others

    with pytest.raises(RuntimeError, match="ended by itself"), trial.noise("cpu"):
        for child in noisy():
            child.kill()
            child.join()
    assert not noisy()
    monkeypatch.setattr(trial, "_cpu", abs)  # of a number: it returns at once
    with pytest.raises(RuntimeError, match="ended by itself"), trial.noise("cpu"):
        while noisy():  # a busy machine may start it late
            time.sleep(0.05)


def test_noise_is_bounded_and_ends(monkeypatch):
    import psutil

    def noisy():
        # other tests keep a browser and a judge's parent process
        children = [c for c in psutil.Process().children(recursive=True) if c.status() != psutil.STATUS_ZOMBIE]
        return [c for c in children if "spawn_main" in " ".join(c.cmdline())]

    for kind in trial.NOISES:
        with trial.noise(kind):
            assert bool(noisy()) is (kind != "none")
        assert not noisy()
    with pytest.raises(ValueError, match="there are"), trial.noise("loud"):
        pass


def test_page_timings_read_well():
    assert bench.seconds(3.2149e-6) == "3.21 µs"
    assert bench.seconds(2.5) == "2.5 s"
    timing = bench.time_calls(lambda: sum(range(100)), samples=11)
    assert "99 %, n = 11" in str(timing)
    assert timing.calls_per_sample > 1
