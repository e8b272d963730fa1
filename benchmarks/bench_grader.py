"""What grading costs beside the answer's own run and the measurement, and how that compares with nbgrader's Execute.

1. The pipeline's own cost for a submission of 12-2 (intake, rebuild, sanitize, gradebook, feedback into the notebook),
   with a judge that decides at once. Required: at most 1 s, with what a timed judgement costs beside its measurement.
2. One class, one exercise judged on correctness alone, graded by nbgrader with its own Execute and by this course's
   pipeline with judge and sandbox. Required: at least three times as fast.
3. Where the time of a timed exercise goes. Required: at most 0.3 s a judgement beside the measurement; the picture is part
   of what is written, and counted with 1.
4. `import perflab`, which imports no torch, in a fresh process. Required: at most 0.3 s.

Everything happens in temporary courses. `--json` prints the raw values. Exit status 1 where a limit is missed: for 3 and 4,
whose limits are of the size of a busy machine's noise, by more than half of it in the best of the repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from grader import course_files, judging, nbgrader_app
from grader.course_files import nbgrader_metadata
from grader.rebuild import answer_cells
from grader.sandbox import RunResult
from perflab import judge, machine
from perflab.judge import Verdict

OWN_S, TIMES_AS_FAST, BESIDE_S, IMPORT_S = 1.0, 3.0, 0.3, 0.3
CLEARLY = 1.5  # times a limit of 0.3 s

ANSWER = """import torch


def total(xs):
    return float(torch.tensor(xs).sum())
"""
CHECK = "assert all(total([float(i)] * n) == float(i) * n for i in range(3) for n in (1, 10, 100))"


def judge_total(session):
    """The same nine questions as CHECK asks, put to the answer in its own process."""
    from perflab.judge import Parts

    parts = Parts("bench-total", 10)
    host = session.answer()
    for i in range(3):
        for n in (1, 10, 100):
            if host.call("total", [float(i)] * n, timeout_s=10) != float(i) * n:
                parts.add("sum", 10, False, "a sum is wrong", "求和有误")
                return parts.verdict()
    parts.add("sum", 10, True, "all sums are right", "求和全部正确")
    return parts.verdict()


def untimed_exercise() -> None:
    """Make `bench-total` an exercise, for this process."""
    module = types.ModuleType("perflab.exercises.bench_total")
    module.SLUG, module.ENTRY_POINTS, module.MAX_POINTS, module.TIMED = "bench-total", ("total",), 10, False
    module.TITLE, module.judge = ("Benchmark", "基准测试"), judge_total
    known = judge.exercise
    judge.exercise = lambda slug: module if slug == module.SLUG else known(slug)


def class_of(course: Path, notebook, students: int) -> None:
    """`students` submissions of `notebook`, all different, so that no verdict serves two."""
    name = notebook.metadata.pop("assignment")
    for number in range(students):
        theirs = copy.deepcopy(notebook)
        for cell in theirs.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id", "").endswith("-answer"):
                cell.source += f"\n# student {number}"
        folder = course / "submitted" / f"student-{number:03}" / name
        folder.mkdir(parents=True)
        nbformat.write(theirs, folder / f"{name}.ipynb")


def own_cost(folder: Path, students: int) -> float:
    """Seconds a submission that the pipeline adds, judge and run being instant."""
    course = folder / "own"
    course_files.release("12-2", course)
    solution = nbformat.read(course / "source" / "12-2" / "12-2.ipynb", as_version=4)
    solution.metadata["assignment"] = "12-2"
    class_of(course, solution, students)
    real = judging.judge_answer, judging.run_cells
    judging.judge_answer = lambda slug, cells, **_: Verdict(slug, "pass", 10, 10, {}, "Passed.\n\n通过。")
    judging.run_cells = lambda sources, **_: RunResult([[] for _ in sources])
    try:
        start = time.perf_counter()
        nbgrader_app.run("autograde", ["12-2"], course)
        return (time.perf_counter() - start) / students
    finally:
        judging.judge_answer, judging.run_cells = real


def untimed_course(course: Path, students: int) -> None:
    cells = [
        new_code_cell(ANSWER, metadata={"nbgrader": nbgrader_metadata("bench-total-answer", "code", None)}),
        new_code_cell(CHECK, metadata={"nbgrader": nbgrader_metadata("bench-total-check", "code", 10)}),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    (course / "source" / "bench").mkdir(parents=True)
    nbformat.write(notebook, course / "source" / "bench" / "bench.ipynb")
    nbgrader_app.run("generate_assignment", ["bench"], course)
    notebook.metadata["assignment"] = "bench"
    class_of(course, notebook, students)


def by_nbgrader(course: Path) -> float:
    """Seconds of `nbgrader autograde` with nbgrader's own settings."""
    from nbgrader.converters.autograde import Autograde
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    settings = Config()
    settings.CourseDirectory.root, settings.CourseDirectory.assignment_id = str(course), "bench"
    converter = Autograde(coursedir=CourseDirectory(config=settings), config=settings)
    converter.log.setLevel(logging.CRITICAL)
    start = time.perf_counter()
    with silent_stderr():
        converter.start()
    return time.perf_counter() - start


@contextlib.contextmanager
def silent_stderr():
    """Nothing on the terminal from the kernels that Execute starts: each writes a warning of its own."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def by_us(course: Path) -> float:
    """Seconds of `nbgrader autograde` with the course's settings, warm parent's start included."""
    judging.forget_launcher()
    start = time.perf_counter()
    nbgrader_app.run("autograde", ["bench"], course)
    return time.perf_counter() - start


def scores(course: Path) -> list[float]:
    with nbgrader_app.gradebook(course) as gradebook:
        return [submission.score for submission in gradebook.find_assignment("bench").submissions]


def timed_breakdown(repeats: int = 5) -> list[dict[str, float]]:
    """Seconds of each of some judgements of the reference answer to async-on-cpu, by what they went into."""
    slug = "async-on-cpu"
    cells = answer_cells(course_files.source_notebook(course_files.SOLUTIONS / "12-2.md"))[slug]
    module = judge.exercise(slug)
    draw, drawn = module._figure, []

    def timed_figure(*args):
        start = time.perf_counter()
        try:
            return draw(*args)
        finally:
            drawn.append(time.perf_counter() - start)

    judging.forget_launcher()
    start = time.perf_counter()
    judging.launcher().warm_up()
    warm_s = time.perf_counter() - start
    found = []
    module._figure = timed_figure
    try:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            judging.run_cells(cells)
            ran = time.perf_counter()
            drawn.clear()
            verdict = judging.judge_answer(slug, cells, quiet_wait_s=0)  # one try, whatever the noise
            whole_s = time.perf_counter() - ran
            spent = verdict.evidence
            found.append({
                "start of the warm parent, once a grader": warm_s,
                "run for the notebook's outputs": ran - start,
                "waiting for other measurements": spent["waited_s"],
                "probe: the cells run once": spent["probe_s"],
                "choice of a core, start and end of the processes": spent["hosts_s"],
                "measurement": spent["measured_s"] - sum(drawn),
                "rest of the judgement": whole_s - spent["seconds"] - spent["waited_s"],
                "picture": sum(drawn),
            })  # fmt: skip
    finally:
        module._figure = draw
    return found[1:]  # the first imports matplotlib


def beside(parts: dict[str, float]) -> float:
    """What a judgement cost beside the measurement, in seconds, its picture left out."""
    names = ("probe: the cells run once", "choice of a core, start and end of the processes", "rest of the judgement")
    return sum(parts[name] for name in names)


def import_times(repeats: int = 10) -> list[float]:
    """Seconds of `import perflab` in fresh processes, the interpreter's own start left out."""
    program = (
        "import sys, time; start = time.perf_counter(); import perflab; print(time.perf_counter() - start);"
        " sys.exit('it imports torch' if 'torch' in sys.modules else 0)"
    )
    run = [sys.executable, "-c", program]
    return [float(subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout) for _ in range(repeats)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        own = [own_cost(folder / str(i), args.students) for i in range(3)]
        untimed_exercise()
        theirs, ours = [], []
        for i in range(2):
            for take, grade in ((theirs, by_nbgrader), (ours, by_us)):
                course = folder / f"{grade.__name__}-{i}"
                untimed_course(course, args.students)
                take.append(grade(course) / args.students)
                assert scores(course) == [10.0] * args.students, scores(course)
        timed, imports = timed_breakdown(), import_times()
    own_s, theirs_s, ours_s = statistics.median(own), min(theirs), min(ours)
    besides = [beside(parts) for parts in timed]
    all_s = own_s + statistics.median(beside(parts) + parts["picture"] for parts in timed)
    missed = [
        what
        for what, is_missed in (
            (f"all but the answer's run and the measurement: more than {OWN_S:g} s", all_s > OWN_S),
            (f"without timing: less than {TIMES_AS_FAST:g} times as fast", theirs_s < TIMES_AS_FAST * ours_s),
            (f"beside the measurement: clearly more than {BESIDE_S:g} s", min(besides) > CLEARLY * BESIDE_S),
            (f"import perflab: clearly more than {IMPORT_S:g} s", min(imports) > CLEARLY * IMPORT_S),
        )
        if is_missed
    ]
    if args.json:
        print(json.dumps({"own_s": own, "nbgrader_s": theirs, "ours_s": ours, "timed_s": timed, "beside_s": besides,
                          "import_s": imports, "missed": missed}))  # fmt: skip
        return bool(missed)
    print(machine.line())
    print(
        f"the pipeline's own cost: {own_s:.2f} s a submission "
        f"(median of {len(own)} classes of {args.students}; {min(own):.2f}–{max(own):.2f})"
    )
    print(
        f"an exercise without timing: nbgrader's Execute {theirs_s:.2f} s a submission, judge and sandbox {ours_s:.2f} s "
        f"(best of 2 classes of {args.students}): {theirs_s / ours_s:.1f} times as fast; {TIMES_AS_FAST:g} times is asked"
    )
    print(f"a timed exercise (async-on-cpu), medians of {len(timed)} judgements:")
    for name in timed[0]:
        print(f"  {statistics.median(parts[name] for parts in timed):6.2f} s  {name}")
    print(f"  {own_s:6.2f} s  rebuild, gradebook, feedback (as above)")
    print(f"all but the answer's run and the measurement: {all_s:.2f} s a submission; at most {OWN_S:g} s is asked")
    for name, values, limit_s in (
        ("a judgement beside the measurement (probe, processes, rest)", besides, BESIDE_S),
        ("import perflab", imports, IMPORT_S),
    ):
        print(
            f"{name}: {statistics.median(values):.3f} s "
            f"(median of {len(values)}; {min(values):.3f}–{max(values):.3f}); at most {limit_s:g} s is asked"
        )
    for what in missed:
        print(f"MISSED: {what}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
