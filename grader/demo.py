"""A made-up class, graded through nbgrader itself: what an instructor sees before a real class has handed in anything.

Its notebooks are made from the reference solution and the small changes below. All its student ids begin with `demo-`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from traitlets.config import Config

from grader import course_files, farm, nbgrader_app
from grader.course_files import COURSE, ROOT

ASSIGNMENT = "12-2"
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


def _with_measure(function: str) -> Callable[[dict], bytes]:
    """The reference solution with another `measure`."""

    def make(notebook: dict) -> bytes:
        cell = _answer(notebook)
        before, rest = cell["source"].split("def measure", 1)
        cell["source"] = (
            f"{before}{function.strip()}\n\n\ndef is_asynchronous{rest.split('def is_asynchronous', 1)[1]}"
        )
        return _bytes(notebook)

    return make


def _answer(notebook: dict) -> dict:
    return next(cell for cell in notebook["cells"] if cell.get("id") == "async-on-cpu-answer")


def _bytes(notebook: dict) -> bytes:
    return json.dumps(notebook, ensure_ascii=False, indent=1).encode()


def _cut_off(notebook: dict) -> bytes:
    content = _bytes(notebook)
    return content[: len(content) * 2 // 3]


def _answer_deleted(notebook: dict) -> bytes:
    notebook["cells"].remove(_answer(notebook))
    return _bytes(notebook)


# student: (what they handed in, made from the solution; the status it must get)
CLASS: dict[str, tuple[Callable[[dict], bytes], str]] = {
    "ada": (_bytes, "pass"),
    "bruno": (_with_measure(TIMES_ONLY_THE_LAUNCH), "fail"),
    "chen": (_with_measure(CPU_TIME), "fail"),
    "dolores": (_with_measure(CHEAT), "fail"),
    "emil": (_with_measure(ENDLESS), "fail"),
    "fatima": (_cut_off, "fail"),
    "goro": (_answer_deleted, "fail"),
}


def solution(course: Path) -> dict:
    """The released notebook with the reference answers in it, as a student who knows would hand it in."""

    def read(step: str) -> dict:
        return json.loads((course / step / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text(encoding="utf-8"))

    released = read("release")
    for cell, original in zip(released["cells"], read("source")["cells"], strict=True):
        if cell["metadata"].get("nbgrader", {}).get("solution") and cell["cell_type"] == "code":
            lines = "".join(original["source"]).split("\n")
            cell["source"] = "\n".join(line for line in lines if " SOLUTION" not in line)
    return released


def hand_in(course: Path) -> None:
    """Write the class's notebooks into submitted/, where they aren't there already."""
    for name, (make, _) in CLASS.items():
        path = course / "submitted" / f"{PREFIX}{name}" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        content = make(solution(course))
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def give_feedback(course: Path) -> None:
    """nbgrader's feedback pages, where one is missing or older than its grades."""

    def page_is_old(graded: Path) -> bool:
        page = course / "feedback" / graded.relative_to(course / "autograded").with_suffix(".html")
        return not page.is_file() or page.stat().st_mtime < graded.stat().st_mtime

    if any(page_is_old(path) for path in (course / "autograded").glob(f"{PREFIX}*/{ASSIGNMENT}/*.ipynb")):
        settings = Config()
        settings.CourseDirectory.student_id = f"{PREFIX}*"
        nbgrader_app.run("generate_feedback", [ASSIGNMENT, "--force"], course, settings)


def main_demo(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader demo", description=__doc__)
    parser.add_argument("--course-dir", type=Path, default=COURSE, help="default: grader/course")
    parser.add_argument("--unsafe-no-sandbox", action="store_true", help="run the answers unprotected")
    args = parser.parse_args(argv)
    course = args.course_dir.resolve()
    course_files.release(ASSIGNMENT, course)
    hand_in(course)
    try:
        rows = farm.grade(ASSIGNMENT, course, student=f"{PREFIX}*", unsafe=args.unsafe_no_sandbox)
    except farm.GradingFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    give_feedback(course)
    print(farm.table(rows))
    print()
    for what, path in (
        ("site", ROOT / "_build" / "html" / "index.html"),
        ("feedback", course / "feedback" / f"{PREFIX}ada" / ASSIGNMENT / f"{ASSIGNMENT}.html"),
        ("gradebook", course / "gradebook.db"),
    ):
        print(f"{what:10} {os.path.relpath(path)}{'' if path.exists() else '  (not built yet)'}")
    # Noise may leave a verdict open, on any machine; a wrong one is a fault of the course.
    due = {f"{PREFIX}{name}": status for name, (_, status) in CLASS.items()}
    wrong = [row.student for row in rows if row.status not in (due[row.student], "inconclusive")]
    wrong += sorted(set(due) - {row.student for row in rows})
    if wrong:
        print(f"demo: not the result that was due: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0
