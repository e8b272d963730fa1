"""Courses for tests: made once by nbgrader itself, then copied."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from grader import course_files

ROOT = Path(__file__).resolve().parent.parent
ASSIGNMENT = "12-2"


class Course:
    """A course directory with assignment 12-2 released, and what a test does to it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def notebook(self, step: str = "source") -> dict:
        return json.loads((self.folder / step / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text())

    def solution(self, edit=None) -> dict:
        """A student's right solution: the released notebook with the reference answer; `edit` changes its source."""
        released, source = self.notebook("release"), self.notebook("source")
        for cell, original in zip(released["cells"], source["cells"], strict=True):
            if cell["metadata"].get("nbgrader", {}).get("solution"):
                cell["source"] = "".join(original["source"])
                if edit is not None and cell["cell_type"] == "code":
                    cell["source"] = edit(cell["source"])
        return copy.deepcopy(released)

    def place(self, student: str) -> Path:
        folder = self.folder / "submitted" / student / ASSIGNMENT
        folder.mkdir(parents=True)
        return folder

    def submit(self, student: str, notebook: dict | None = None) -> Path:
        path = self.place(student) / f"{ASSIGNMENT}.ipynb"
        path.write_text(json.dumps(notebook or self.solution()))
        return path

    def graded(self, student: str) -> dict:
        path = self.folder / "autograded" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        return json.loads(path.read_text())

    def grades(self) -> dict[str, dict]:
        """student → the gradebook's entry of the check cell (auto_score, needs_manual_grade) and the total score."""
        from nbgrader.api import Gradebook

        found = {}
        with Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}", "computational-performance") as gradebook:
            for submission in gradebook.find_assignment(ASSIGNMENT).submissions:
                [notebook] = submission.notebooks
                [check] = [grade for grade in notebook.grades if grade.name.endswith("-check")]
                found[submission.student.id] = {
                    "auto": check.auto_score,
                    "manual": check.needs_manual_grade,
                    "score": submission.score,
                    "late": submission.total_seconds_late,
                }
        return found


def make(folder: Path) -> Course:
    course_files.release(ASSIGNMENT, folder)
    return Course(folder)


def duplicate(original: Course, folder: Path) -> Course:
    shutil.copytree(original.folder, folder)
    return Course(folder)


def command(*arguments: str, **more) -> subprocess.CompletedProcess:
    """A command of the environment (nbgrader …, or python -m grader …) as an instructor runs it, in grader/, or in `cwd`."""
    program = [sys.executable, "-m", *arguments]
    environment = dict(os.environ) | more.pop("environment", {})
    return subprocess.run(
        program,
        cwd=more.pop("cwd", ROOT / "grader"),
        capture_output=True,
        text=True,
        timeout=more.pop("timeout_s", 240),
        env=environment,
        check=False,
        **more,
    )
