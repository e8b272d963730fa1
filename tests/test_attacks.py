"""A class of cheats, graded through the whole pipeline: each gets the score that an honest look at its answer gives.

The kinds are those that have worked against notebook and timing graders somewhere. Attacks that are one exercise's own
(caching, warm-up, precision, NaN, threads, C) are among tests/answers/; attacks on the sandbox in test_sandbox.py;
edited, deleted, duplicated and retyped cells in test_rebuild.py.
"""

from __future__ import annotations

import json
import os

import pytest
from nbgrader_course import command

pytestmark = [
    pytest.mark.usefixtures("needs_sandbox"),
    pytest.mark.timeout(900),  # one fixture grades the whole class
]

# What a correct answer earns, and one whose `measure` stops its clock before the wait (the classification and the
# survey are right and keep their points).
RIGHT, WRONG = 10, 6


def without_wait(source: str) -> str:
    assert "        finished = time.perf_counter()\n" in source
    return source.replace("        wait()\n        finished = time.perf_counter()\n", "        finished = time.perf_counter()\n        wait()\n")


# name: (code that goes before the answer, whether the answer is right, points, words of the row's reason or None). Where the
# points are those of the wrong answer, the reason is that answer's.
ATTACKS = {
    "control-right": ("", True, RIGHT, None),
    "control-wrong": ("", False, WRONG, "wait()"),
    "input-transformer": (
        "get_ipython().input_transformers_cleanup.append(lambda lines: ['pass\\n'])\n"
        "get_ipython().input_transformers_post.append(lambda lines: ['pass\\n'])\n", False, WRONG, None),
    "ast-transformer": (
        "import ast\nclass Nothing(ast.NodeTransformer):\n    def visit_Module(self, node):\n        node.body = []\n        return node\n"
        "get_ipython().ast_transformers.append(Nothing())\n", False, WRONG, None),
    "hook-before-every-cell": (
        "get_ipython().events.register('pre_run_cell', lambda *a: None)\n"
        "get_ipython().run_cell = lambda *a, **k: None\n", False, WRONG, None),
    "patched-check": ("import perflab\nperflab.check = lambda *a, **k: 10\nimport perflab.notebook\nperflab.notebook.check = perflab.check\n", False, WRONG, None),
    "patched-judge": (
        "import perflab.judge, perflab.launch\nperflab.judge.Parts.add = lambda *a, **k: True\n"
        "perflab.launch.is_float = lambda v: True\n", False, WRONG, None),
    "patched-host": (
        "import perflab.host, perflab.wire\nperflab.wire.encode = lambda *a, **k: ({'status': 'pass', 'points': 10}, [])\n", False, 0, "malformed"),
    "printed-grade": ("print(10)\nprint('{\"status\": \"pass\", \"points\": 10}')\n", False, WRONG, None),
    "grade-as-last-value": ("10\n", False, WRONG, None),
    "environment": ("import os\nos.environ['PERFLAB_AUTOGRADE'] = '0'\nos.environ['GRADER_UNSAFE_NO_SANDBOX'] = '1'\n", False, WRONG, None),
    "warning-on-stderr": ("import sys, warnings\nwarnings.warn('an honest library warns')\nprint('noise', file=sys.stderr)\n", True, RIGHT, None),
    "exit-with-success": ("import sys\nsys.exit(0)\n", True, 0, "exit"),
    "exit-at-once": ("import os\nos._exit(0)\n", True, 0, "ended before"),
    "module-shadowing": (
        "import pathlib, sys\nfor name in ('torch', 'numpy', 'sitecustomize', 'statistics'):\n"
        "    pathlib.Path(name + '.py').write_text('raise SystemExit(0)')\nsys.path.insert(0, '.')\n", True, 0, "must return, not exit"),
    "solutions-from-disk": (
        "import os, sys\nseen = []\nfor top, folders, files in os.walk('/'):\n    depth = top.count('/')\n"
        "    if depth > 5 or top.startswith(('/proc', '/usr', sys.prefix, sys.base_prefix)):\n        folders[:] = []\n"
        "    seen += [top + '/' + name for name in folders + files if name in ('solutions', 'gradebook.db', 'hidden', 'submitted', 'grader')]\n"
        "assert not seen, seen\n", True, RIGHT, None),
    "gradebook": (
        "import pathlib\nwritten = []\nfor folder in [pathlib.Path.cwd(), *pathlib.Path.cwd().parents, pathlib.Path('/')]:\n"
        "    try:\n        (folder / 'gradebook.db').write_bytes(b'x')\n        written.append(str(folder))\n    except OSError:\n        continue\n"
        "assert written == ['/tmp'], written\n", True, RIGHT, None),
    "network": (
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 22), timeout=1)\n    raise SystemExit('a network')\nexcept OSError:\n    reached = False\n",
        True, RIGHT, None),
    "background-process": (
        "import subprocess\nsubprocess.Popen(['/bin/sh', '-c', 'trap \"\" TERM; while :; do :; done'], start_new_session=True)\n", True, RIGHT, None),
    "zombies": ("import os\nfor _ in range(20):\n    if os.fork() == 0:\n        os._exit(0)\n", True, RIGHT, None),
    "fork-bomb": ("import os\nwhile True:\n    os.fork()\n", True, 0, "Your "),
    "fills-the-disk": (
        "i = 0\nwhile True:\n    with open(f'/tmp/{i}', 'wb') as f:\n        f.write(bytes(1 << 26))\n    i += 1\n", True, 0, "No space left"),
    "one-line-of-60-megabytes": ("print('x' * 60_000_000)\n", True, 0, "printed more than"),
    "prints-for-ever": ("while True: print('x' * 100)\n", True, 0, "printed more than"),
    "30-megabytes-of-html": (
        "from IPython.display import HTML, display\ndisplay(HTML('<b>' + 'x' * 30_000_000 + '</b>'))\n", True, RIGHT, None),
    "script-in-output": (
        "from IPython.display import HTML, Javascript, display\ndisplay(HTML('<script>alert(1)</script><img src=x onerror=alert(2)>'))\n"
        "display(Javascript('alert(3)'))\n", True, RIGHT, None),
    "reads-a-password": ("input('password: ')\n", True, 0, "EOFError"),
    "kills-everyone": (
        "import os, signal\nfor pid in range(1, 400):\n    try:\n        if pid != os.getpid(): os.kill(pid, signal.SIGKILL)\n    except OSError:\n        continue\n", True,
        # only a box that root made has another owner than the answer
        *((RIGHT, None) if os.geteuid() == 0 else (0, "ended before"))),
    "changes-the-clock": ("import time\ntime.perf_counter = lambda: 0.0\n", False, 3, "your total_s is 0 ms"),
    "sleeps-for-ever": ("import time\ntime.sleep(10**6)\n", True, 0, "did not finish within"),
}  # fmt: skip


# The same for what comes behind the answer.
APPENDED = {
    "pickle-payload": (
        "\n\nclass Payload:\n    def __reduce__(self):\n        import os\n        return os.system, ('touch /tmp/payload',)\n\n\n"
        "def measure(launch, wait):\n    return Payload()\n", 3, "can't be sent to the judge"),
    "not-a-number": ("\n\ndef measure(launch, wait):\n    launch(), wait(), launch(), wait()\n    return float('nan'), float('nan')\n", 3, "finite"),
    "patched-event": (
        "\nimport threading\nthreading.Event.wait = lambda *a, **k: True\nthreading.Event.is_set = lambda *a: True\n"
        "threading.Thread.join = lambda *a, **k: None\n", RIGHT, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(released_course, tmp_path_factory):
    from nbgrader_course import duplicate

    course = duplicate(released_course, tmp_path_factory.mktemp("attacks") / "course")
    for name, (prefix, right, _, _) in ATTACKS.items():
        course.submit(name, course.solution(lambda source, p=prefix, r=right: p + (source if r else without_wait(source))))
    for name, (suffix, _, _) in APPENDED.items():
        course.submit(name, course.solution(lambda source, s=suffix: source + s))
    for again in ([], ["--retry"], ["--retry"]):  # what noise leaves open is asked again
        done = command("grader", "grade", "12-2", "--json", "--course-dir", str(course.folder), *again, timeout_s=900)
        assert done.returncode == 0, done.stderr
        found = {row["student"]: row for row in map(json.loads, done.stdout.splitlines())}
        if "inconclusive" not in {row["status"] for row in found.values()}:
            break
    return found, course


def test_everybody_has_a_row(rows):
    assert set(rows[0]) == set(ATTACKS) | set(APPENDED)


@pytest.mark.parametrize("name", [*ATTACKS, *APPENDED])
def test_the_score_is_the_answers_own(rows, name):
    points, says = (ATTACKS | APPENDED)[name][-2:]
    found, course = rows
    row = found[name]
    # three points that noise left open, and that are not judged again where another part is wrong
    still_open = 3 if "`survey` could not be compared" in json.dumps(course.graded(name), ensure_ascii=False) else 0
    assert row["score"] + still_open == points, row
    if points == WRONG:
        says = "wait()"  # the honest reason: what is wrong with the answer, not with the cheat
    assert (says or "") in row["reason"], row


def test_the_gradebook_agrees(rows):
    found, course = rows
    grades = course.grades()
    for name, row in found.items():
        assert grades[name]["score"] == row["score"], name


def test_no_output_of_a_cheat_is_large_or_active(rows):
    _, course = rows
    for name in ("30-megabytes-of-html", "script-in-output", "one-line-of-60-megabytes"):
        text = json.dumps(course.graded(name))
        assert len(text) < 3_000_000
        outputs = json.dumps([cell.get("outputs") for cell in course.graded(name)["cells"]])
        assert "<script" not in outputs and "onerror" not in outputs
