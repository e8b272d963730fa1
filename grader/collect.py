"""Sort a folder of returned files — as a learning platform hands them out — into submitted/.

Whose a file is follows from its place or its name: a folder for each student (`zoe/12-2.ipynb`, Moodle's
`Zoë Li_12345_assignsubmission_file_/…`), or a name that ends in the assignment's (`li_12345_12-2 (1).ipynb`). Where that
can be read in several ways (`week3/ann_12-2.ipynb`, `ann/week3/12-2.ipynb`), the one that tells most students apart is taken.
Zip files are looked into, and zip files in them. Files are copied as they are; what is wrong inside them is the grader's
business. Nothing is dropped silently: every file found gets a row.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grader.course_files import COURSE
from grader.intake import MAX_FILE_BYTES, Unreadable, read_limited, shown
from grader.store import write_whole

MAX_ARCHIVE_BYTES = 2_000_000_000  # unpacked, all members together
IGNORED = re.compile(r"(^|/)(\.(?!\.?/)|__MACOSX/)")  # hidden files, and the Mac's shadows of files


@dataclass
class Found:
    """One returned file: where it lay, when it was changed (seconds, for choosing the latest), and its bytes or why not."""

    path: str
    changed: float
    content: bytes | None
    problem: str = ""


def find_files(folder: Path) -> Iterator[Found]:
    """Every file under `folder`, and in the zip files there; links and members that point outside are refused."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if IGNORED.search(name) or (path.is_dir() and not path.is_symlink()):
            continue
        changed = path.lstat().st_mtime
        try:
            content = read_limited(
                path, MAX_ARCHIVE_BYTES if path.suffix.lower() == ".zip" else MAX_FILE_BYTES
            )
        except Unreadable as problem:
            yield Found(name, changed, None, problem.sentence[0])
            continue
        if path.suffix.lower() == ".zip":
            yield from _unpack(name, content)
        else:
            yield Found(name, changed, content)


_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, OSError, ValueError, RuntimeError)


def _unpack(name: str, content: bytes, budget: list[int] | None = None) -> Iterator[Found]:
    """The files in a zip file, and in the zip files right in it. budget: [bytes that may still be unpacked]."""
    nested = budget is not None
    inside = name if nested else name[: -len(".zip")]  # class.zip or zoe.zip may say whose it is, hw.zip in it does not
    budget = budget or [MAX_ARCHIVE_BYTES]
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except _DAMAGED as error:
        yield Found(name, 0.0, None, f"it is not a zip file that can be read ({error})")
        return
    with archive:
        for member in archive.infolist():
            path = member.filename.replace("\\", "/")
            if member.is_dir() or path.endswith("/") or IGNORED.search(path):
                continue
            where = f"{inside}/{path}"
            changed = _seconds(member.date_time)
            parts = PurePosixPath(path)
            if parts.is_absolute() or ".." in parts.parts:
                yield Found(where, changed, None, "its name points outside the zip file")
            elif stat.S_ISLNK(member.external_attr >> 16):
                yield Found(where, changed, None, "it is a symbolic link")
            elif member.flag_bits & 1:
                yield Found(where, changed, None, "it is encrypted")
            elif budget[0] <= 0:
                yield Found(where, changed, None, "the zip file is too large when unpacked")
            else:
                try:
                    with archive.open(member) as file:
                        data = file.read(MAX_FILE_BYTES + 1)  # never trust the size that the archive states
                except _DAMAGED as error:
                    yield Found(where, changed, None, f"it is damaged inside the zip file ({error})")
                    continue
                budget[0] -= len(data)
                if len(data) > MAX_FILE_BYTES:
                    yield Found(where, changed, None, "it is too large when unpacked")
                elif path.lower().endswith(".zip") and not nested:
                    yield from _unpack(where, data, budget)
                else:
                    yield Found(where, changed, data)


def _seconds(date_time: tuple) -> float:
    from datetime import UTC, datetime

    try:
        return datetime(*date_time, tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def student_of(path: str, assignment: str, pattern: str | None = None, reading: str = "nearest folder") -> str | None:
    """The student id in a returned file's path relative to the folder, or None where there is none to be seen.

    pattern: a regular expression, searched in that path, with a group named `student`. reading: which of READINGS comes
    first where the path has both folders and a name.
    """
    if pattern is not None:
        match = re.search(pattern, path)
        return _safe(match["student"]) if match else None
    *folders, name = path.split("/")
    for folder in folders:
        if "_assignsubmission_" in folder:
            return _safe(re.sub(r"_assignsubmission_\w*$", "", folder))
    no_name = (assignment.casefold(), "submitted", "submissions")
    zips = [f[: -len(".zip")] for f in folders if f.lower().endswith(".zip")]
    if reading == "inner zip" and zips:
        return _safe(_student_in_name(zips[-1], assignment) or zips[-1])
    folders = [
        _student_in_name(f, assignment) or f for f in folders if f.casefold() not in no_name and not f.lower().endswith(".zip")
    ]
    by_name = _student_in_name(name, assignment)
    if folders and not (reading == "file name" and by_name):
        return _safe(folders[0] if reading == "outermost folder" else folders[-1])
    return _safe(by_name) if by_name else None


READINGS = ("nearest folder", "outermost folder", "inner zip", "file name")


def _student_in_name(name: str, assignment: str) -> str | None:
    """`li_12345` of `li_12345_12-2 (1).ipynb`."""
    stem = re.sub(r"\.ipynb(\.txt|\.json)?$", "", name, flags=re.IGNORECASE)
    stem = re.sub(
        r"[ _-]?(\(\d+\)|[Cc]opy ?\d*)$", "", stem
    )  # what browsers and Jupyter add to a second file
    match = re.fullmatch(
        rf"(?P<student>.*?)[ _.-]+{re.escape(assignment)}([ _-]\d+)?", stem, flags=re.IGNORECASE
    )
    return match["student"] if match else None


def _best_reading(paths: list[str], assignment: str) -> str:
    """The reading that tells most students apart; by names only where folders tell none and every notebook has one."""

    def students(reading: str) -> int:
        return len({student_of(path, assignment, reading=reading) for path in paths} - {None})

    best = max(READINGS[:-1], key=students)  # the first of equal ones
    named = all(_student_in_name(path.split("/")[-1], assignment) for path in paths)
    return "file name" if named and students(best) <= 1 else best


def _safe(student: str) -> str | None:
    """A student id that is one name of a folder, or None."""
    student = " ".join(student.split()).strip(" _-")
    if not student or student.startswith(".") or not student.isprintable() or re.search(FORBIDDEN, student):
        return None
    return student[:120]


FORBIDDEN = r"[/\\*?\[\]+]"  # patterns and separators of nbgrader's


@dataclass
class Row:
    file: str
    student: str | None
    result: str


def collect(
    folder: Path, assignment: str, course: Path = COURSE, *, pattern: str | None = None, update: bool = False
) -> list[Row]:
    """Copy every student's latest file into submitted/; one row for every file found.

    update: replace what was collected before by something different.
    """
    rows: list[Row] = []
    theirs: dict[str, list[Found]] = {}
    every = list(find_files(folder))
    notebooks = [found.path for found in every if _is_notebook(found.path)]
    reading = _best_reading(notebooks, assignment)
    for found in every:
        student = student_of(found.path, assignment, pattern, reading)
        if found.content is None:
            rows.append(Row(found.path, student, f"refused: {found.problem}"))
        elif student is None:
            rows.append(
                Row(
                    found.path,
                    None,
                    f"no student's name in it: expected <student>/… or <student>_{assignment}.ipynb, and none of / \\ * ? [ ] + "
                    "in the name; or say how to find it with --pattern",
                )
            )
        else:
            theirs.setdefault(student, []).append(found)
    for student, files in sorted(theirs.items()):
        notebooks = [found for found in files if _is_notebook(found.path)] or files
        chosen = max(notebooks, key=lambda found: (_copy_number(found.path), found.changed, found.path))
        for found in files:
            if found is not chosen:
                why = "a later version was taken" if found in notebooks else "not a notebook"
                if found in notebooks and PurePosixPath(found.path).parent != PurePosixPath(chosen.path).parent:
                    why = f"{shown(chosen.path)} was taken; if that is somebody else's, use --pattern"
                rows.append(Row(found.path, student, f"left out: {why}"))
        try:
            result = _put(chosen, student, assignment, course, update)
        except OSError as error:
            result = f"refused: it could not be written ({error.strerror})"
        rows.append(Row(chosen.path, student, result))
    return rows


def _copy_number(path: str) -> int:
    """2 of "x (2).ipynb": the later of two uploads of one name."""
    match = re.search(r"\((\d+)\)\.\w+$", path)
    return int(match[1]) if match else 0


def _is_notebook(path: str) -> bool:
    return ".ipynb" in path.split("/")[-1].lower()


def _put(found: Found, student: str, assignment: str, course: Path, update: bool) -> str:
    # Anything else keeps its name, so that the student is told about a file that they know.
    looks_like_one = _is_notebook(found.path) or found.content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    name = f"{assignment}.ipynb" if looks_like_one else found.path.split("/")[-1][-60:]
    target = course / "submitted" / student / assignment / name
    if target.parent.is_dir() and any(not path.name.startswith(".") for path in target.parent.iterdir()):
        if target.is_file() and target.read_bytes() == found.content:
            return "already there"
        if not update:
            return "kept what was collected before; --update replaces it"
        for old in target.parent.iterdir():  # its time of handing in among them: it is not this file's
            if old.is_file() or old.is_symlink():
                old.unlink()
    write_whole(target, found.content)
    return "collected"


def main_collect(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader collect", description=__doc__)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="the returned files, unpacked or in zip files"
    )
    parser.add_argument("assignment", metavar="ASSIGNMENT")
    parser.add_argument(
        "--pattern", metavar="REGEX", help="finds the student in a file's path: (?P<student>…)"
    )
    parser.add_argument("--update", action="store_true", help="replace what was collected before")
    parser.add_argument("--course-dir", type=Path, default=COURSE, help="default: grader/course")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        print(
            f"collect: {args.folder} is not a folder; give the folder with the returned files",
            file=sys.stderr,
        )
        return 2
    try:
        if args.pattern is not None and "student" not in re.compile(args.pattern).groupindex:
            raise re.error("it has no group (?P<student>…)")
    except re.error as error:
        print(f"collect: --pattern {args.pattern!r}: {error}", file=sys.stderr)
        return 2
    rows = collect(
        args.folder, args.assignment, args.course_dir.resolve(), pattern=args.pattern, update=args.update
    )
    width = max((len(row.student or "?") for row in rows), default=0)
    for row in rows:
        print(f"{(row.student or '?').ljust(width)}  {row.result}  ({shown(row.file)})")
    taken = sum(row.result in ("collected", "already there") for row in rows)
    print(f"{taken} submissions of {args.assignment}, {len(rows) - taken} other files")
    return 0
