"""nbgrader's Autograde for submissions that may be anything.

nbgrader finds submissions by the names of their notebooks, copies whatever lies beside them (following links), and stops
or skips where a file is broken; its lists of preprocessors begin too late to help. `CourseAutograde` first
writes for every submission a clean notebook into intake/ and lets nbgrader work from there. `install` puts it in
nbgrader's place, for the command and for formgrader's button alike: nbgrader has no setting for that class.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import os
import shutil
from pathlib import Path

import nbformat
import nbgrader.apps.api
import nbgrader.apps.autogradeapp
from nbgrader.converters import Autograde, NbGraderException
from traitlets import Unicode

from grader.course_files import released_by_instructor
from grader.exchange import TIMESTAMP, written_time
from grader.intake import Unreadable, read_submission, safe_student_id
from grader.measure import MeasureOnHardware, stamp
from grader.rebuild import intake_notebook, read_notebook, rebuild, released_cells, submission_from
from grader.store import Store, hardware_class

INTAKE = "intake"


def submissions(course: Path, assignment: str) -> list[tuple[str, Path]]:
    """(student id, folder) of everything handed in for an assignment, sorted; empty where there is none."""
    submitted = course / "submitted"
    if not submitted.is_dir():
        return []
    found = []
    for entry in os.scandir(submitted):
        folder = Path(entry.path) / assignment
        # A link in place of a student's folder is a submission too, if one without content.
        if not entry.name.startswith(".") and (os.path.lexists(folder) or entry.is_symlink()):
            found.append((safe_student_id(entry.name), folder))
    return sorted(found)


def take_in(folder: Path, released: Path):
    """The intake notebook of one submission, for the released notebook at path `released`."""
    master = read_notebook(released)
    return intake_notebook(read_submission(folder, released.stem, released_cells(master)))


class CourseAutograde(Autograde):
    """Autograde from intake/: every submission ends in a row, none stops another."""

    hardware = Unicode(
        None, allow_none=True, help="The kind of machine the verdicts belong to; default: this one."
    ).tag(config=True)

    @property
    def course(self) -> Path:
        return Path(self.coursedir.root)

    @property
    def _input_directory(self) -> str:
        return INTAKE if self._sanitizing else self.coursedir.autograded_directory

    def start(self) -> None:
        from grader.sandbox import why_no_box

        settings = MeasureOnHardware(parent=self)
        reason = None if settings.unsafe else why_no_box()
        if reason:
            self.log.error("Nothing was graded: %s", reason)
            raise NbGraderException(reason)
        self._settings, self._hardware = settings, self.hardware or hardware_class()
        self._store = Store(self.course / "verdicts")
        # One writer at a time, whoever started it: the command, the button, or the farm.
        with open(self.course / ".grading.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().start()

    def init_notebooks(self) -> None:
        assignment = self.coursedir.assignment_id
        released = sorted(released_by_instructor(self.course, assignment).glob("*.ipynb"))
        for student, folder in submissions(self.course, assignment):
            if not fnmatch.fnmatchcase(student, self.coursedir.student_id):
                continue
            target = self.course / INTAKE / student / assignment
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for master in released:
                notebook = take_in(folder, master)
                for en, _ in [
                    notebook.metadata.perflab.reason or (None, None),
                    *notebook.metadata.perflab.notes,
                ]:
                    if en:
                        self.log.info("%s: %s", student, en)
                nbformat.write(notebook, target / master.name)
            with contextlib.suppress(Unreadable, ValueError):  # no timestamp, or none that could be believed
                (target / TIMESTAMP).write_text(f"{written_time(folder):%Y-%m-%d %H:%M:%S.%f} UTC")
        super().init_notebooks()

    def init_single_notebook_resources(self, notebook_filename: str) -> dict:
        resources = super().init_single_notebook_resources(notebook_filename)
        place = resources["nbgrader"]
        released = released_by_instructor(self.course, place["assignment"]) / f"{place['notebook']}.ipynb"
        place["released"], place["store"], place["hardware"] = (
            str(released),
            str(self._store.folder),
            self._hardware,
        )
        return resources

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Whether to grade: nbgrader compares time stamps, which can be missing, old or forged; the content can't."""
        if super().init_destination(assignment_id, student_id):
            return True
        if self.coursedir.student_id_exclude and student_id in self.coursedir.student_id_exclude.split(","):
            return False
        destination = Path(self._format_dest(assignment_id, student_id))
        for notebook in map(Path, self.notebooks):
            released = released_by_instructor(self.course, assignment_id) / notebook.name
            graded = destination / notebook.name
            if not (released.is_file() and graded.is_file()):
                continue
            rebuilt = rebuild(submission_from(read_notebook(notebook)), read_notebook(released))
            mark = stamp(rebuilt, self._store, self._hardware, self._settings.unsafe)
            if read_notebook(graded).metadata.get("perflab", {}).get("stamp") != mark:
                shutil.rmtree(destination)
                return True
        return False


def install() -> None:
    """Let nbgrader's command and formgrader's button use CourseAutograde."""
    nbgrader.apps.autogradeapp.Autograde = CourseAutograde
    nbgrader.apps.api.Autograde = CourseAutograde
