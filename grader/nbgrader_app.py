"""Run nbgrader's own commands in this process, with the course's settings."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

from traitlets.config import Config

from grader.course_files import GRADER

COMMANDS = {
    "generate_assignment": ("nbgrader.apps.generateassignmentapp", "GenerateAssignmentApp"),
    "autograde": ("nbgrader.apps.autogradeapp", "AutogradeApp"),
    "generate_feedback": ("nbgrader.apps.generatefeedbackapp", "GenerateFeedbackApp"),
}


class NbgraderFailed(Exception):
    """An nbgrader command ended with an error; `lines` are what it logged."""

    def __init__(self, lines: list[str]):
        super().__init__("\n".join(lines))
        self.lines = lines

    def students(self) -> dict[str, str]:
        """student → the error over which nbgrader gave up on the submission."""
        found = {}
        for line, after in zip(self.lines, self.lines[1:], strict=False):
            # "There was an error processing assignment: …/intake/<student>/<assignment>", and then the traceback
            if line.startswith("There was an error processing assignment: "):
                found[Path(line).parent.name] = after.strip().splitlines()[-1]
        return found


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__(level=logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(command: str, arguments: list[str], course: Path, settings: Config | None = None) -> list[str]:
    """`nbgrader COMMAND ARGUMENTS` on `course`; returns its warnings. Raises NbgraderFailed.

    `settings` go over those of nbgrader_config.py. nbgrader logs to stderr only what is an error.
    """
    import importlib

    module, name = COMMANDS[command]
    app = getattr(importlib.import_module(module), name)()
    heard, path = _Lines(), list(sys.path)
    with contextlib.chdir(GRADER):  # nbgrader reads its settings in the current folder
        try:
            app.initialize([*arguments, f"--course-dir={course}", "--log-level=CRITICAL"])
            app.update_config(settings or Config())
            app.log.addHandler(heard)
            app.log.setLevel(logging.WARNING)
            for handler in app.log.handlers:
                if handler is not heard:
                    handler.setLevel(logging.CRITICAL)
            app.start()
        except SystemExit as stop:
            if stop.code:
                raise NbgraderFailed(heard.lines or [f"nbgrader {command} ended with {stop.code}"]) from None
        finally:
            sys.path[:] = path  # nbgrader puts the current folder in front
            app.log.removeHandler(heard)
    return heard.lines


def gradebook(course: Path):
    """The course's gradebook (nbgrader.api.Gradebook), wherever the settings say it is; close it after use."""
    from nbgrader.api import Gradebook
    from nbgrader.apps.baseapp import NbGrader

    app = NbGrader()
    with contextlib.chdir(GRADER):
        path = list(sys.path)
        app.initialize([f"--course-dir={course}", "--log-level=CRITICAL"])
        sys.path[:] = path
    return Gradebook(app.coursedir.db_url, app.coursedir.course_id)
