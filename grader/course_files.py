"""From solutions/*.md to the notebooks of the nbgrader course: source/ (jupytext) and release/ (nbgrader)."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GRADER = ROOT / "grader"
SOLUTIONS = ROOT / "solutions"
# The course's data; COURSE_DIR in the environment moves it elsewhere.
COURSE = Path(os.environ.get("COURSE_DIR", GRADER / "course")).resolve()

GRADE_ID = re.compile(r"(?P<slug>[a-z][a-z0-9-]*)-(?P<role>answer[a-z0-9-]*|check|discuss)")


def split_grade_id(grade_id: str) -> tuple[str, str]:
    """("async-on-cpu", "answer") of "async-on-cpu-answer"; the role is answer…, check or discuss.

    Raises ValueError where the id is none of ours.
    """
    match = GRADE_ID.fullmatch(grade_id)
    if match is None:
        raise ValueError(
            f"grade_id {grade_id!r}: expected <slug>-answer, <slug>-answer-<part>, <slug>-check or <slug>-discuss"
        )
    return match["slug"], match["role"]


def nbgrader_metadata(grade_id: str, cell_type: str, points: float | None) -> dict:
    """nbgrader's cell metadata (schema 3), which follows from the role that the grade_id names."""
    _, role = split_grade_id(grade_id)
    graded = role in ("check", "discuss")
    if graded != (points is not None):
        wanted = "needs points" if graded else "earns no points itself (its check does)"
        raise ValueError(f"the cell {grade_id!r} {wanted}")
    metadata = {
        "grade_id": grade_id,
        "schema_version": 3,
        "cell_type": cell_type,
        "grade": graded,
        "solution": role != "check",
        "locked": role == "check",
        "task": False,
    }
    return metadata | ({"points": points} if graded else {})


def source_notebook(markdown: Path):
    """The instructor's notebook (solution and rubric inside) that `markdown`, a MyST notebook, stands for."""
    import jupytext

    notebook = jupytext.read(markdown, fmt="md:myst")
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    # nbgrader looks for the language here, and a notebook server for what to start.
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python"},
    }
    wide = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"
    seen = set()
    for number, cell in enumerate(notebook.cells, start=1):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id is not None:
            if grade_id in seen:
                raise ValueError(f"{markdown.name}: grade_id {grade_id!r} occurs twice")
            seen.add(grade_id)
            try:
                cell.metadata["nbgrader"] = nbgrader_metadata(
                    grade_id, cell.cell_type, cell.metadata["nbgrader"].get("points")
                )
            except ValueError as error:
                raise ValueError(f"{markdown.name}: {error}") from None
        if cell.cell_type == "markdown":  # a line break between Chinese characters would be shown as a space
            cell.source = re.sub(f"(?<={wide})\n(?={wide})", "", cell.source)
        # Same ids at every conversion: by them a cell that has lost its metadata is still found.
        cell["id"] = grade_id or f"text-{number}"
    return notebook


def released_by_instructor(course: Path, assignment: str) -> Path:
    """The folder with the notebooks as students got them."""
    return course / "release" / assignment


def assignments() -> list[str]:
    return sorted(path.stem for path in SOLUTIONS.glob("*.md"))


def write_source(assignment: str, course: Path = COURSE) -> bool:
    """Write source/<assignment>/<assignment>.ipynb; False where it was up to date."""
    import nbformat

    markdown = SOLUTIONS / f"{assignment}.md"
    if not markdown.is_file():
        raise FileNotFoundError(
            f"there is no assignment {assignment!r}: solutions/ has {', '.join(assignments()) or 'none'}"
        )
    target = course / "source" / assignment / f"{assignment}.ipynb"
    digest = hashlib.sha256(markdown.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    if target.is_file() and nbformat.read(target, as_version=4).metadata.get("made_from") == digest:
        return False
    notebook = source_notebook(markdown)
    notebook.metadata["made_from"] = digest
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return True


def release(assignment: str, course: Path = COURSE) -> bool:
    """Make source/ and release/ of one assignment, and its rows in the gradebook; False where all was up to date."""
    changed = write_source(assignment, course)
    released = released_by_instructor(course, assignment) / f"{assignment}.ipynb"
    if not changed and released.is_file() and (course / "gradebook.db").is_file():
        return False
    from grader import nbgrader_app

    try:
        nbgrader_app.run("generate_assignment", [assignment, "--force"], course)
    except nbgrader_app.NbgraderFailed as error:
        if "there are submissions associated" not in str(error):
            raise
        raise ValueError(
            f"answer or check cells of {assignment} were added or removed, but it has been graded already, and nbgrader "
            f"keeps grades and cells together. To drop its grades: nbgrader db assignment remove {assignment} --force; "
            "then release it again"
        ) from None
    return True


def main_release(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader release", description=__doc__)
    parser.add_argument(
        "assignments", nargs="*", metavar="ASSIGNMENT", help="as solutions/ names them (default: all)"
    )
    parser.add_argument("--course-dir", type=Path, default=COURSE, help="default: grader/course")
    args = parser.parse_args(argv)
    for assignment in args.assignments or assignments():
        try:
            changed = release(assignment, args.course_dir.resolve())
        except (FileNotFoundError, ValueError) as error:
            print(f"release: {error}", file=sys.stderr)
            return 2
        path = released_by_instructor(args.course_dir, assignment) / f"{assignment}.ipynb"
        print(f"{os.path.relpath(path)}: {'made' if changed else 'up to date'}")
    return 0
