"""Put a student's answers into a clean copy of the released notebook.

Whatever was deleted, added, reordered, retyped or edited around the answers can then do no harm: only the text of the
answer cells, found by their grade_id, is taken. `RebuildFromMaster` does it inside nbgrader, as the first of
`Autograde.sanitize_preprocessors`; `rebuild` is the rule itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from grader.course_files import SOLUTIONS, assignments, source_notebook, split_grade_id
from grader.intake import Cell, Sentence, Submission

MAX_ANSWER_CHARACTERS = 1_000_000
MAX_COPIES = 50


def read_notebook(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def grade_id_of(cell) -> str | None:
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def released_cells(master: NotebookNode) -> dict[str, str]:
    """grade_id → source of every marked cell of the released notebook."""
    return {grade_id_of(cell): cell.source for cell in master.cells if grade_id_of(cell)}


def answer_cells(notebook: NotebookNode) -> dict[str, list[str]]:
    """slug → sources of the answer cells with something in them, in the order in which they run."""
    found: dict[str, list[str]] = {}
    for cell in notebook.cells:
        grade_id = grade_id_of(cell) or cell.metadata.get("perflab", {}).get("copy_of")
        if grade_id is None or cell.cell_type != "code":
            continue
        slug, role = split_grade_id(grade_id)
        if role.startswith("answer"):
            given = cell.metadata.get("perflab", {}).get("state", "given") == "given"
            found.setdefault(slug, []).extend([cell.source] if given else [])
    return found


def reference_answers() -> dict[str, list[str]]:
    """slug → the answer cells of its solution."""
    found: dict[str, list[str]] = {}
    for assignment in assignments():
        found |= answer_cells(source_notebook(SOLUTIONS / f"{assignment}.md"))
    return found


def missing_answers(notebook: NotebookNode) -> dict[str, Sentence]:
    """slug → why there is nothing to judge, for every exercise whose answer cells are all missing or untouched."""
    reasons = {}
    whole = notebook.metadata.get("perflab", {}).get("reason")
    for slug, sources in answer_cells(notebook).items():
        if sources:
            continue
        states = {
            cell.metadata["perflab"]["state"]
            for cell in notebook.cells
            if (grade_id_of(cell) or "").startswith(f"{slug}-answer")
        }
        if whole:
            reasons[slug] = tuple(whole)
        elif states == {"missing"}:
            reasons[slug] = (
                f"The answer cell `{slug}-answer` is missing from the notebook. Download the released notebook "
                "again, copy your answer into that cell, and hand it in again.",
                f"notebook 中缺少作答单元格 `{slug}-answer`。请重新下载发布的 notebook，把答案复制到该单元格，再次提交。",
            )
        else:
            reasons[slug] = (
                "There is no answer: the answer cell is as it was released.",
                "没有作答：作答单元格与发布时相同。",
            )
    return reasons


def harmless_markdown(source: str) -> str:
    """Markdown text without HTML tags and links, pictures attached to the cell excepted.

    nbgrader's feedback page and formgrader show Markdown cells unfiltered, `javascript:` links and all.
    """
    source = re.sub(r"<(?=[A-Za-z/!?])", "< ", source)
    source = re.sub(r"\](?=\((?!attachment:)|\[)", "] ", source)  # [text](target), [text][reference]
    return re.sub(r"\](?=:)", "] ", source)  # [reference]: target


def rebuild(submission: Submission, master: NotebookNode) -> NotebookNode:
    """A copy of `master` with the answers of `submission` in it.

    Several copies of one answer cell: equal ones count once, untouched ones not at all; of differing ones all run in
    the order of the document, as they did for the student. `metadata.perflab` of the result holds `reason` (why
    the submission could not be read, or None) and `notes`; that of every answer cell its `state`: given, untouched, missing.
    """
    notebook = nbformat.from_dict(master)
    notes = list(submission.notes)
    submitted: dict[str, list[Cell]] = {}
    for cell in submission.cells:
        if cell.grade_id is not None:
            submitted.setdefault(cell.grade_id, []).append(cell)

    cells = []
    for cell in master.cells:
        cell = nbformat.from_dict(cell)
        cells.append(cell)
        grade_id = grade_id_of(cell)
        if grade_id is None:
            continue
        copies = submitted.pop(grade_id, [])
        if split_grade_id(grade_id)[1] == "check":
            if copies and any(copy.source.strip() != cell.source.strip() for copy in copies):
                notes.append(
                    (
                        f"The check cell `{grade_id}` was edited; the original was used.",
                        f"检查单元格 `{grade_id}` 被修改过，已改用原文。",
                    )
                )
            continue
        *earlier, last = _answers_in(copies, cell, notes)
        for copy in earlier:
            extra = nbformat.v4.new_code_cell(
                copy, metadata={"perflab": {"copy_of": grade_id}}, id=f"{cell.id[:50]}-copy{len(cells)}"
            )
            cells.insert(len(cells) - 1, extra)
        cell.metadata["perflab"] = {
            "state": "missing" if not copies else "untouched" if last is None else "given"
        }
        if last is not None:
            cell.source = last
            if cell.cell_type == "markdown":
                cell.source = harmless_markdown(last)
                drawn = {name: bundle for copy in copies for name, bundle in copy.attachments.items()}
                if drawn:
                    cell.attachments = nbformat.from_dict(drawn)

    ours = {""} | {cell.source.strip() for cell in master.cells}
    strays = [cell for cell in submission.cells if cell.grade_id is None and cell.source.strip() not in ours]
    stray = sum(cell.cell_type == "code" for cell in strays)
    if stray:
        notes.append(
            (
                f"{stray} code cell(s) outside the answer cells were not used: an answer must work by itself.",
                f"作答单元格以外的 {stray} 个代码单元格没有使用：答案必须能独立运行。",
            )
        )
    unanswered = [
        grade_id_of(cell)
        for cell in cells
        if cell.cell_type == "markdown" and cell.metadata.get("perflab", {}).get("state") in ("untouched", "missing")
    ]
    written = sum(cell.cell_type == "markdown" for cell in strays)
    if written and unanswered:
        notes.append(
            (
                f"`{unanswered[0]}` is empty, but {written} text cell(s) were added elsewhere and not used. "
                "Instructor: look at the file that was handed in.",
                f"`{unanswered[0]}` 为空，但别处添加了 {written} 个文本单元格，没有使用。教师请查看提交的原文件。",
            )
        )
    notebook.cells = cells
    notebook.metadata["perflab"] = {"reason": submission.reason, "notes": notes, "handed_in": submission.handed_in}
    return notebook


def _answers_in(copies: list[Cell], released, notes: list[Sentence]) -> list[str | None]:
    """The differing answers among the copies of one released cell, in document order; [None] where there is none."""
    grade_id = grade_id_of(released)
    written = [copy for copy in copies if copy.source.strip() not in ("", released.source.strip())]
    if any(len(copy.source) > MAX_ANSWER_CHARACTERS for copy in written):
        written = [copy for copy in written if len(copy.source) <= MAX_ANSWER_CHARACTERS]
        notes.append(
            (
                f"An answer in `{grade_id}` is longer than {MAX_ANSWER_CHARACTERS:,} characters and was not used.",
                f"`{grade_id}` 中有一个答案超过 {MAX_ANSWER_CHARACTERS:,} 个字符，没有使用。",
            )
        )
    if any(copy.cell_type != released.cell_type for copy in written):
        notes.append(
            (
                f"The type of cell `{grade_id}` was changed; it was read as {released.cell_type}.",
                f"单元格 `{grade_id}` 的类型被改动，已按 {released.cell_type} 类型读取。",
            )
        )
    # Of equal copies the last place counts: what was defined last is what the student saw work.
    sources = list(dict.fromkeys(copy.source for copy in reversed(written)))[::-1]
    if len(copies) > 1:
        how = "all run, in their order" if len(sources) > 1 else "they count once"
        zh_how = "按先后顺序全部运行" if len(sources) > 1 else "只计一次"
        notes.append(
            (
                f"Cell `{grade_id}` is there {len(copies)} times, {len(sources)} different; {how}.",
                f"单元格 `{grade_id}` 出现了 {len(copies)} 次，其中 {len(sources)} 个不同；{zh_how}。",
            )
        )
    if released.cell_type == "markdown" and len(sources) > 1:
        return ["\n\n---\n\n".join(sources)]
    return sources[-MAX_COPIES:] or [None]


class RebuildFromMaster(NbGraderPreprocessor):
    """nbgrader preprocessor: the intake's notebook → the released notebook with the student's answers in it."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        master = read_notebook(Path(resources["nbgrader"]["released"]))
        return rebuild(submission_from(nb), master), resources


def intake_notebook(submission: Submission) -> NotebookNode:
    """A submission as a plain notebook file that nbgrader can carry: cells without outputs, the rest in the metadata."""
    cells = []
    for number, cell in enumerate(submission.cells):
        metadata = {"nbgrader": {"grade_id": cell.grade_id}} if cell.grade_id else {}
        metadata["perflab"] = {"cell_type": cell.cell_type, "attachments": cell.attachments}
        cells.append(nbformat.v4.new_raw_cell(cell.source, metadata=metadata, id=f"cell-{number}"))
    perflab = {"reason": submission.reason, "notes": submission.notes, "handed_in": submission.handed_in}
    return nbformat.v4.new_notebook(cells=cells, metadata={"perflab": perflab})


def submission_from(notebook: NotebookNode) -> Submission:
    """The inverse of `intake_notebook`."""
    cells = []
    for cell in notebook.cells:
        kept = cell.metadata.get("perflab", {})
        cells.append(
            Cell(
                kept.get("cell_type", cell.cell_type),
                cell.source,
                grade_id_of(cell),
                None,
                kept.get("attachments", {}),
            )
        )
    perflab = notebook.metadata.get("perflab", {})
    reason = perflab.get("reason")
    return Submission(
        cells,
        tuple(reason) if reason else None,
        [tuple(note) for note in perflab.get("notes", [])],
        perflab.get("handed_in"),
    )
