"""Grade a whole class: many workers compute verdicts, one writer puts them into nbgrader's gradebook.

The farm looks at every submission, computes what the store of verdicts lacks — on an embedded Dask cluster, or on any
other — and then lets nbgrader's own autograde run, which finds every verdict in the store. A run that was cut off goes
on where it stopped, and a second run changes nothing.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy.exc import OperationalError

from grader import nbgrader_app
from grader.autograde import submissions, take_in
from grader.course_files import COURSE, released_by_instructor
from grader.intake import shown
from grader.measure import Task, perform, tasks_of
from grader.rebuild import grade_id_of, read_notebook, rebuild, submission_from
from grader.store import HardwareClasses, Store, hardware_class
from perflab.launch import SandboxError


@dataclass
class Row:
    """One student's result. Points count what is judged by machine; `manual_points` wait for a person."""

    student: str
    score: float
    max_score: float
    status: str  # pass, fail, inconclusive, or error (the grader's own; the submission is to be graded again)
    reason: str
    seconds: float
    manual_points: float = 0.0


class GradingFailed(Exception):
    """Nothing can be graded; the text says why and what to do."""


def needed_tasks(course: Path, assignment: str, student: str = "*") -> dict[Task, list[str]]:
    """Every piece of work for the submissions of an assignment, with the students who handed it in."""
    needed: dict[Task, list[str]] = {}
    masters = sorted(released_by_instructor(course, assignment).glob("*.ipynb"))
    for name, folder in submissions(course, assignment):
        if not fnmatch.fnmatchcase(name, student):
            continue
        for path in masters:
            rebuilt = rebuild(submission_from(take_in(folder, path)), read_notebook(path))
            for task in tasks_of(rebuilt):
                needed.setdefault(task, []).append(name)
    return needed


def compute(
    tasks: list[Task], scheduler: str | None, workers: int, unsafe: bool, wanted_class: str | None
) -> Iterator[tuple[Task, dict | str, str]]:
    """(task, record, hardware class) as they are finished; for a record, a sentence where there could be none.

    scheduler: the address of a Dask scheduler whose workers have this project installed; None: a cluster of
    `workers` processes on this machine. Of several kinds of machine only one is used: `wanted_class`, or the most numerous.
    """
    import dask
    from distributed import Client, KilledWorker, LocalCluster, as_completed
    from distributed.comm.addressing import get_address_host

    if scheduler is None:
        # A worker may start processes, and an answer over which one died is tried once more, not three times.
        # Answers are limited by their sandbox; Dask's own memory limit would kill the judge instead.
        with dask.config.set(
            {"distributed.worker.daemon": False, "distributed.scheduler.allowed-failures": 1}
        ):
            cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0"
            )
    else:
        cluster = None
    try:
        with Client(cluster if cluster is not None else scheduler, timeout=30) as client:
            kinds: dict[str, list[str]] = {}
            for address, kind in client.run(hardware_class).items():
                # By host, not by address: a worker that died comes back with another port.
                kinds.setdefault(kind, []).append(get_address_host(address))
            if not kinds:
                raise GradingFailed(f"the scheduler {scheduler} has no workers; start some and grade again")
            kind = wanted_class or max(kinds, key=lambda name: len(kinds[name]))
            if kind not in kinds:
                raise GradingFailed(
                    f"this assignment is judged on {kind!r}; the cluster has {', '.join(map(repr, kinds))}. "
                    "Add such a worker, or delete verdicts/hardware.json to judge all answers anew elsewhere."
                )

            def results(some: list[Task]) -> Iterator[tuple[Task, dict | str | None]]:
                """As `compute`; None for a task over which, or beside which, a worker died."""
                futures = {
                    client.submit(perform, task, unsafe, pure=False, workers=sorted(set(kinds[kind]))): task
                    for task in some
                }
                for future in as_completed(futures):
                    error = future.exception() if future.status == "error" else None
                    if isinstance(error, SandboxError):
                        raise GradingFailed(str(error))
                    if isinstance(error, KilledWorker):
                        yield futures[future], None
                    elif error is not None:
                        yield futures[future], f"the judge failed: {type(error).__name__}: {error}"
                    else:
                        yield futures[future], future.result()

            # Whatever waited at a worker that died is under suspicion too: each of them gets a worker to itself.
            suspects = []
            for task, record in results(tasks):
                if record is None:
                    suspects.append(task)
                else:
                    yield task, record, kind
            for suspect in suspects:
                for task, record in results([suspect]):
                    yield task, "a worker died over this answer" if record is None else record, kind
    finally:
        if cluster is not None:
            cluster.close()


def grade(
    assignment: str,
    course: Path = COURSE,
    *,
    student: str = "*",
    scheduler: str | None = None,
    workers: int | None = None,
    unsafe: bool = False,
    retry: bool = False,
    progress: bool = True,
) -> list[Row]:
    """Grade every submission (of students whose id matches the pattern `student`) and return one row for each.

    retry: judge again what was inconclusive. Raises GradingFailed.
    """
    from traitlets.config import Config

    if not released_by_instructor(course, assignment).is_dir():
        raise GradingFailed(
            f"no assignment {assignment!r} in {course}; make it: python -m grader release {assignment}"
        )
    names = [name for name, _ in submissions(course, assignment)]
    if not names:
        return []
    if not fnmatch.filter(names, student):
        raise GradingFailed(f"no student who handed in {assignment} matches {student!r}; there are {len(names)} others")
    if not unsafe:
        from grader.sandbox import why_no_box

        reason = why_no_box()
        if reason:
            raise GradingFailed(
                f"{reason}. (--unsafe-no-sandbox grades without it: only for answers you wrote yourself.)"
            )
    store, classes = Store(course / "verdicts"), HardwareClasses(course)
    needed = needed_tasks(course, assignment, student)
    try:
        kind = classes.get(assignment) or (hardware_class() if scheduler is None else None)
    except ValueError as error:
        raise GradingFailed(str(error)) from None

    def is_open(task: Task) -> bool:
        record = store.get(task.key(kind, unsafe)) if kind else None
        return record is None or (retry and record.get("status") == "inconclusive")

    open_tasks = [task for task in needed if is_open(task)]
    trouble: dict[str, str] = {}  # student → why the grader itself failed
    if open_tasks:
        from tqdm import tqdm

        workers = workers or max(1, len(os.sched_getaffinity(0)) - 1)
        bar = tqdm(
            total=len(open_tasks),
            desc=f"grading {assignment}",
            unit="task",
            disable=not progress,
            file=sys.stderr,
        )
        with bar:
            for task, record, found in compute(open_tasks, scheduler, workers, unsafe, kind):
                kind = found
                if task.kind == "judge" and not isinstance(record, str):
                    classes.keep(assignment, kind)
                if isinstance(record, str):
                    trouble |= dict.fromkeys(needed[task], record)
                else:
                    store.put(task.key(kind, unsafe), record)
                bar.update()

    settings = Config()
    settings.MeasureOnHardware.unsafe = unsafe
    settings.MeasureOnHardware.retry_inconclusive = False
    settings.CourseAutograde.hardware = kind
    settings.CourseDirectory.student_id = student
    settings.CourseAutograde.excluded = set(trouble)
    try:
        nbgrader_app.run("autograde", [assignment], course, settings)
    except nbgrader_app.NbgraderFailed as error:
        if "OperationalError" in str(error):
            raise GradingFailed(_LOCKED) from None
        if not error.students():
            raise GradingFailed(f"nbgrader autograde failed: {error}") from None
        trouble |= error.students()
    except OperationalError:
        raise GradingFailed(_LOCKED) from None
    try:
        return rows(course, assignment, student, trouble)
    except OperationalError:
        raise GradingFailed(_LOCKED) from None


_LOCKED = (
    "the gradebook can't be read or written; another program may hold it. All verdicts are kept: grade again when it is free."
)


def rows(course: Path, assignment: str, student: str, trouble: dict[str, str]) -> list[Row]:
    """One row for every submission, from the graded notebooks; scores as the gradebook has them."""
    from nbgrader.api import MissingEntry

    result = []
    masters = sorted(released_by_instructor(course, assignment).glob("*.ipynb"))
    with nbgrader_app.gradebook(course) as gradebook:
        for name, _ in submissions(course, assignment):
            if not fnmatch.fnmatchcase(name, student):
                continue
            checks = []
            for master in masters:
                graded = course / "autograded" / name / assignment / master.name
                if graded.is_file() and name not in trouble:
                    checks += [
                        cell.metadata["perflab"]
                        for cell in read_notebook(graded).cells
                        if (grade_id_of(cell) or "").endswith("-check")
                    ]
            try:
                submission = gradebook.find_submission(assignment, name)
                score, max_score = submission.score, submission.max_score
                manual = sum(
                    grade.max_score
                    for book in submission.notebooks
                    for grade in book.grades
                    if grade.needs_manual_grade
                )
            except MissingEntry:
                score = max_score = manual = 0.0
            if not checks:
                reason = f"not graded: {trouble.get(name, 'no result')}. Grade again."
                result.append(Row(name, score, max_score, "error", reason, 0.0, manual))
                continue
            order = ["inconclusive", "fail", "pass"]
            worst = min(checks, key=lambda check: order.index(check["status"]))
            seconds = sum(check["seconds"] for check in checks)
            result.append(
                Row(name, score, max_score, worst["status"], worst["reason"], round(seconds, 2), manual)
            )
    return result


def table(result: list[Row], width: int = 100) -> str:
    """The rows as text, for people."""
    lines = [["student", "score", "status", "seconds", "reason"]]
    for row in result:
        score = f"{row.score:g}/{row.max_score:g}" + (
            f" (+{row.manual_points:g} by hand)" if row.manual_points else ""
        )
        reason = row.reason if len(row.reason) <= width else row.reason[: width - 1] + "…"
        lines.append([row.student, score, row.status, f"{row.seconds:.1f}", reason])
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join([*(text.ljust(w) for text, w in zip(line, widths, strict=False)), line[4]])
        for line in lines
    )


def main_grade(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader grade", description=__doc__)
    parser.add_argument("assignment", metavar="ASSIGNMENT")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://…; default: a cluster on this machine"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="workers on this machine (default: its cores but one)"
    )
    parser.add_argument("--student", default="*", metavar="PATTERN", help="only students whose id matches")
    parser.add_argument("--retry", action="store_true", help="judge again what was inconclusive")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, a line a student")
    parser.add_argument("--course-dir", type=Path, default=COURSE, help="default: grader/course")
    parser.add_argument(
        "--unsafe-no-sandbox", action="store_true", help="run answers unprotected; never for a real class"
    )
    args = parser.parse_args(argv)
    start = time.perf_counter()
    try:
        result = grade(
            args.assignment,
            args.course_dir.resolve(),
            student=args.student,
            scheduler=args.scheduler,
            workers=args.workers,
            unsafe=args.unsafe_no_sandbox,
            retry=args.retry,
        )
    except GradingFailed as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    course = args.course_dir.resolve()
    known = {path.name for step in ("source", "release") for path in (course / step).glob("*")}
    strays = sorted(
        [path.name for path in (course / "submitted").glob("*") if path.is_file()]
        + [f"{path.parent.name}/{path.name}" for path in (course / "submitted").glob("*/*") if path.name not in known]
    )
    strays = [name for name in strays if not name.split("/")[-1].startswith(".")]
    if strays:
        print(
            f"grade: not graded, as it lies in no folder submitted/<student>/<assignment>: {', '.join(map(shown, strays[:5]))}"
            f"{f' and {len(strays) - 5} more' if len(strays) > 5 else ''}. "
            "Sort returned files with: python -m grader collect FOLDER ASSIGNMENT",
            file=sys.stderr,
        )
    if args.json:
        for row in result:
            print(json.dumps(asdict(row), ensure_ascii=False))
    elif result:
        print(table(result))
    counts = {
        status: sum(row.status == status for row in result)
        for status in ("pass", "fail", "inconclusive", "error")
    }
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    summary = (
        f"{len(result)} submissions of {args.assignment} graded in {time.perf_counter() - start:.1f} s"
        + (f": {parts}" if parts else "")
    )
    print(summary, file=sys.stderr if args.json else sys.stdout)
    return 0
