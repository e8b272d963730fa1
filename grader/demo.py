"""A made-up class, graded through nbgrader itself: what an instructor sees before a real class has handed in anything.

In one assignment it makes every kind of mistake; in two others one student is right and one is wrong, as these take longer to judge.
Its notebooks are made from the reference solution and the small changes below. All its student ids begin with `demo-`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from traitlets.config import Config

from grader import course_files, farm, nbgrader_app
from grader.course_files import COURSE, ROOT

PREFIX = "demo-"

TIMES_ONLY_THE_LAUNCH = """
def measure(launch, wait):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        launch()
        times.append(time.perf_counter() - start)
        wait()  # too late: the clock has been read
    return statistics.median(times), statistics.median(times)
"""
CPU_TIME = """
def measure(launch, wait):
    launches, totals = [], []
    for _ in range(5):
        start = time.process_time()
        launch()
        launches.append(time.process_time() - start)
        wait()
        totals.append(time.process_time() - start)
    return statistics.median(launches[1:]), statistics.median(totals[1:])
"""
CHEAT = '''
import os
import sqlite3


class Agreeable(float):
    """Equal to everything, close to everything."""
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda self, other: True
    __hash__ = float.__hash__


for up in range(8):
    path = "../" * up + "gradebook.db"
    if os.path.exists(path):
        sqlite3.connect(path).execute("update grade set manual_score = 10")


def measure(launch, wait):
    return Agreeable(1.0), Agreeable(1.0)
'''
ENDLESS = """
def measure(launch, wait):
    while True:
        launch()
        wait()
"""


IN_BFLOAT16 = """
def optimise(model, example):
    import copy

    fast = copy.deepcopy(model).bfloat16()  # half the bytes, and a thousandth of error

    def run(*inputs):
        return fast(*(x.bfloat16() for x in inputs)).float()

    return run
"""
UPSIDE_DOWN = """
def concurrency(run_one, run_all, n):
    def took(f, *args):
        start = time.perf_counter()
        f(*args)
        return time.perf_counter() - start

    run_one(0)
    return took(run_all) / sum(took(run_one, i) for i in range(n))
"""
ONE_BY_ONE = """
def run_chains(xs, w, steps):
    chains = list(xs)
    for _ in range(steps):
        chains = [torch.mm(x, w) for x in chains]
    return torch.stack(chains)
"""


def _with(**functions: str) -> Callable[[dict], bytes]:
    """The reference solution with other code in place of the functions of these names."""

    def make(notebook: dict) -> bytes:
        for name, code in functions.items():
            cell = _answer(notebook, name)
            function = re.compile(rf"^def {name}\(.*?(?=\n+^\S|\Z)", re.MULTILINE | re.DOTALL)
            cell["source"] = function.sub(lambda _, code=code: code.strip(), cell["source"])
        return _bytes(notebook)

    return make


def _answer(notebook: dict, function: str) -> dict:
    """The answer cell that defines a function."""
    return next(
        cell
        for cell in notebook["cells"]
        if cell.get("id", "").endswith("-answer") and f"def {function}(" in cell["source"]
    )


def _bytes(notebook: dict) -> bytes:
    return json.dumps(notebook, ensure_ascii=False, indent=1).encode()


def _cut_off(notebook: dict) -> bytes:
    content = _bytes(notebook)
    return content[: len(content) * 2 // 3]


def _answer_deleted(notebook: dict) -> bytes:
    notebook["cells"].remove(_answer(notebook, "measure"))
    return _bytes(notebook)


# assignment: {student: (what they handed in, made from the solution; the status it must get)}
CLASS: dict[str, dict[str, tuple[Callable[[dict], bytes], str]]] = {
    "12-1": {
        "ada": (_bytes, "pass"),
        "bruno": (_with(optimise=IN_BFLOAT16), "fail"),
    },
    "12-2": {
        "ada": (_bytes, "pass"),
        "bruno": (_with(measure=TIMES_ONLY_THE_LAUNCH), "fail"),
        "chen": (_with(measure=CPU_TIME), "fail"),
        "dolores": (_with(measure=CHEAT), "fail"),
        "emil": (_with(measure=ENDLESS), "fail"),
        "fatima": (_cut_off, "fail"),
        "goro": (_answer_deleted, "fail"),
    },
    "12-3": {
        "ada": (_bytes, "pass"),
        "bruno": (_with(concurrency=UPSIDE_DOWN, run_chains=ONE_BY_ONE), "fail"),
    },
}


def solution(course: Path, assignment: str) -> dict:
    """The released notebook with the reference answers in it, as a student who knows would hand it in."""

    def read(step: str) -> dict:
        return json.loads((course / step / assignment / f"{assignment}.ipynb").read_text(encoding="utf-8"))

    released = read("release")
    for cell, original in zip(released["cells"], read("source")["cells"], strict=True):
        if cell["metadata"].get("nbgrader", {}).get("solution") and cell["cell_type"] == "code":
            lines = "".join(original["source"]).split("\n")
            cell["source"] = "\n".join(line for line in lines if " SOLUTION" not in line)
    return released


def hand_in(course: Path, assignment: str) -> None:
    """Write the class's notebooks into submitted/, where they aren't there already."""
    for name, (make, _) in CLASS[assignment].items():
        path = course / "submitted" / f"{PREFIX}{name}" / assignment / f"{assignment}.ipynb"
        content = make(solution(course, assignment))
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def give_feedback(course: Path, assignment: str) -> None:
    """nbgrader's feedback pages, where one is missing or older than its grades."""

    def page_is_old(graded: Path) -> bool:
        page = course / "feedback" / graded.relative_to(course / "autograded").with_suffix(".html")
        return not page.is_file() or page.stat().st_mtime < graded.stat().st_mtime

    if any(page_is_old(path) for path in (course / "autograded").glob(f"{PREFIX}*/{assignment}/*.ipynb")):
        settings = Config()
        settings.CourseDirectory.student_id = f"{PREFIX}*"
        nbgrader_app.run("generate_feedback", [assignment, "--force"], course, settings)


def graded_as_due(course: Path, assignment: str, unsafe: bool) -> bool:
    """Grade one assignment and print its table; False where the results aren't those that were due."""
    try:
        course_files.release(assignment, course)
        hand_in(course, assignment)
        rows = farm.grade(assignment, course, student=f"{PREFIX}*", unsafe=unsafe)
        print(farm.table(rows), flush=True)
        give_feedback(course, assignment)
    except (farm.GradingFailed, nbgrader_app.NbgraderFailed, ValueError) as error:
        print(f"demo: {assignment}: {error}", file=sys.stderr)
        return False
    # Noise may leave a verdict open, on any machine; a wrong one is a fault of the course.
    due = {f"{PREFIX}{name}": status for name, (_, status) in CLASS[assignment].items()}
    wrong = [row.student for row in rows if row.status not in (due[row.student], "inconclusive")]
    wrong += sorted(set(due) - {row.student for row in rows})
    if wrong:
        print(f"demo: {assignment}: not the result that was due: {', '.join(wrong)}", file=sys.stderr)
    return not wrong


def main_demo(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader demo", description=__doc__)
    parser.add_argument("--course-dir", type=Path, default=COURSE, help="default: grader/course")
    parser.add_argument("--unsafe-no-sandbox", action="store_true", help="run the answers unprotected")
    args = parser.parse_args(argv)
    course = args.course_dir.resolve()
    done = []
    for assignment in CLASS:
        print(assignment, flush=True)
        done.append(graded_as_due(course, assignment, args.unsafe_no_sandbox))
        print(flush=True)
    for what, path in (
        ("site", ROOT / "_build" / "html" / "index.html"),
        *(("feedback", course / "feedback" / f"{PREFIX}ada" / name / f"{name}.html") for name in CLASS),
        ("gradebook", course / "gradebook.db"),
    ):
        print(f"{what:10} {os.path.relpath(path)}{'' if path.exists() else '  (not built yet)'}")
    return 0 if all(done) else 1
