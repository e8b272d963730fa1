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
from nbformat.notebooknode import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde, NbGraderException
from traitlets import Set, Unicode

from grader.course_files import released_by_instructor
from grader.exchange import TIMESTAMP, written_time
from grader.intake import Submission, Unreadable, read_submission, safe_student_id
from grader.measure import MeasureOnHardware, stamp
from grader.rebuild import intake_notebook, read_notebook, rebuild, released_cells, submission_from
from grader.store import HardwareClasses, Store, hardware_class

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


def take_in(folder: Path, released: Path, handed_in: str | None = None) -> NotebookNode:
    """The intake notebook of one submission, for the released notebook at path `released`; whatever was handed in."""
    master = read_notebook(released)
    try:
        submission = read_submission(folder, released.stem, released_cells(master))
        submission.handed_in = handed_in
        notebook = intake_notebook(submission)
        nbformat.writes(notebook).encode()  # what can't be written can't be graded
    except Exception as error:  # nobody foresaw this file; it must cost its own row only
        what = f"{type(error).__name__}: {error}"[:200].encode("utf-8", "replace").decode()
        reason = (
            f"The grader could not read this submission ({what}). Instructor: please report it with the file.",
            f"评分程序无法读取这份提交（{what}）。教师请连同文件一起报告此问题。",
        )
        notebook = intake_notebook(Submission([], reason, [], handed_in))
    return notebook


class CourseAutograde(Autograde):
    """Autograde from intake/: every submission ends in a row, none stops another."""

    hardware = Unicode(
        None, allow_none=True, help="The kind of machine the verdicts belong to; default: this one."
    ).tag(config=True)
    excluded = Set(help="Students whose submissions are left alone.").tag(config=True)

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
        self._settings, self._store = settings, Store(self.course / "verdicts")
        classes, assignment = HardwareClasses(self.course), self.coursedir.assignment_id
        # One writer at a time, whoever started it: the command, the button, or the farm.
        with open(self.course / ".grading.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                known = classes.get(assignment)
            except ValueError as error:
                self.log.error("Nothing was graded: %s", error)
                raise NbGraderException(str(error)) from None
            self._hardware = self.hardware or known or hardware_class()
            super().start()

    def init_notebooks(self) -> None:
        assignment = self.coursedir.assignment_id
        released = sorted(released_by_instructor(self.course, assignment).glob("*.ipynb"))
        for earlier in (self.course / INTAKE).glob(f"*/{assignment}"):  # it may have been withdrawn since
            if fnmatch.fnmatchcase(earlier.parent.name, self.coursedir.student_id):
                shutil.rmtree(earlier)
        for student, folder in submissions(self.course, assignment):
            if not fnmatch.fnmatchcase(student, self.coursedir.student_id):
                continue
            target = self.course / INTAKE / student / assignment
            target.mkdir(parents=True)
            handed_in = None
            with contextlib.suppress(Unreadable, ValueError):  # no timestamp, or none that could be believed
                handed_in = f"{written_time(folder):%Y-%m-%d %H:%M:%S.%f} UTC"
                (target / TIMESTAMP).write_text(handed_in)
            for master in released:
                notebook = take_in(folder, master, handed_in)
                for en, _ in [
                    notebook.metadata.perflab.reason or (None, None),
                    *notebook.metadata.perflab.notes,
                ]:
                    if en:
                        self.log.info("%s: %s", student, en)
                nbformat.write(notebook, target / master.name)
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            try:
                self._in_gradebook = {s.student.id for s in gradebook.find_assignment(assignment).submissions}
            except MissingEntry:
                self._in_gradebook = set()
        super().init_notebooks()

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """nbgrader's, and a time of handing in that is gone is taken out of the gradebook, too."""
        super().init_assignment(assignment_id, student_id)
        if not (Path(self._format_source(assignment_id, student_id)) / TIMESTAMP).is_file():
            with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
                gradebook.update_or_create_submission(assignment_id, student_id, timestamp=None)

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
        if student_id in {*self.excluded, *self.coursedir.student_id_exclude.split(",")}:
            return False
        if not super().init_destination(assignment_id, student_id):
            destination = Path(self._format_dest(assignment_id, student_id))
            if student_id in self._in_gradebook and self._is_graded(assignment_id, destination):
                return False
            shutil.rmtree(destination)
        # nbgrader makes feedback anew only where the time stamp is newer.
        shutil.rmtree(self.course / self.coursedir.feedback_directory / student_id / assignment_id, ignore_errors=True)
        return True

    def _is_graded(self, assignment: str, destination: Path) -> bool:
        """Whether `destination` holds every notebook, graded by the verdicts that hold now."""
        for notebook in map(Path, self.notebooks):
            released = released_by_instructor(self.course, assignment) / notebook.name
            if not released.is_file():
                continue
            rebuilt = rebuild(submission_from(read_notebook(notebook)), read_notebook(released))
            mark = stamp(rebuilt, self._store, self._hardware, self._settings.unsafe)
            try:
                graded = read_notebook(destination / notebook.name)
            except Exception:  # whatever a grader that was killed has left there
                return False
            if graded.metadata.get("perflab", {}).get("stamp") != mark:
                return False
        return True


def install() -> None:
    """Let nbgrader's command and formgrader's button use CourseAutograde."""
    nbgrader.apps.autogradeapp.Autograde = CourseAutograde
    nbgrader.apps.api.Autograde = CourseAutograde
