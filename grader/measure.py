"""Judge the rebuilt notebook and write score and feedback into its check cells.

`MeasureOnHardware` stands in nbgrader's list of `Autograde.autograde_preprocessors` where `Execute` stood. No cell of the
student's runs beside nbgrader: the notebook runs in the sandbox, for its outputs alone, and each exercise is put to
its judge. Only the judge's verdict reaches a check cell, so nbgrader's own SaveAutoGrades stores exactly its points.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.converters import NbGraderException
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Integer, default

from grader import judging
from grader.course_files import split_grade_id
from grader.rebuild import answer_cells, grade_id_of, missing_answers
from grader.store import HardwareClasses, Store, hardware_class, key_of

SHOWN_MIMES = ("text/plain", "image/png", "image/jpeg")


@dataclass(frozen=True)
class Task:
    """One piece of work on a student's code, done in the sandbox: `kind` "judge" (one exercise) or "run" (the notebook)."""

    kind: str
    slug: str
    cells: tuple[str, ...]

    def key(self, hardware: str, unsafe: bool) -> str:
        return key_of(self.kind, self.slug, list(self.cells), hardware, unsafe)


def runnable(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that a run executes: all but the check cells, which belong to the judge."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if not (grade_id_of(cell) or "").endswith("-check")]


def tasks_of(notebook: NotebookNode) -> list[Task]:
    """What has to be computed for a rebuilt notebook; nothing where the student's code is absent."""
    answers = {slug: sources for slug, sources in answer_cells(notebook).items() if sources}
    if not answers:
        return []
    run = Task("run", "", tuple(cell.source for cell in runnable(notebook)))
    return [run, *(Task("judge", slug, tuple(sources)) for slug, sources in answers.items())]


def perform(task: Task, unsafe: bool = False, run_timeout_s: int = 20) -> dict:
    """Do one task and return its record, plain JSON. Raises only what makes grading impossible (no sandbox)."""
    start = time.perf_counter()
    if task.kind == "run":
        result = judging.run_cells(list(task.cells), timeout_s=run_timeout_s, unsafe=unsafe)
        record = {"outputs": [clean_outputs(outputs) for outputs in result.outputs], "note": result.note}
    else:
        verdict = judging.judge_answer(task.slug, list(task.cells), unsafe=unsafe)
        figure = base64.b64encode(verdict.figure).decode() if verdict.figure else None
        record = verdict.as_json() | {"reason": verdict.reason, "figure": figure}
    # The judge's own figure, where there is one: it leaves out the wait for other measurements.
    seconds = record.get("evidence", {}).get("seconds", round(time.perf_counter() - start, 3))
    return record | {"seconds": seconds, "made_at": time.time()}


def no_answer_record(slug: str, reason: tuple[str, str]) -> dict:
    """The verdict on an exercise without an answer: nothing ran, and the reason says why."""
    return {
        "slug": slug,
        "status": "fail",
        "points": 0,
        "max_points": None,  # the check cell knows
        "evidence": {},
        "message": f"Not passed: 0 points.\n✗ {reason[0]}\n\n未通过：0 分。\n✗ {reason[1]}",
        "reason": reason[0],
        "figure": None,
        "seconds": 0.0,
        "made_at": None,
    }


def clean_outputs(outputs: list[dict]) -> list[dict]:
    """The harmless part of a cell's outputs: text and pictures in valid notebook form.

    What a student's process says it displayed is data from a stranger: no HTML, SVG, JavaScript or widget is kept.
    """
    kept = []
    for output in outputs:
        kind = output.get("output_type")
        if kind == "stream":
            name = "stderr" if output.get("name") == "stderr" else "stdout"
            kept.append({"output_type": "stream", "name": name, "text": _text(output.get("text"))})
        elif kind == "error":
            traceback = output.get("traceback")
            traceback = [_text(line) for line in traceback] if isinstance(traceback, list) else []
            kept.append(
                {
                    "output_type": "error",
                    "ename": _text(output.get("ename")),
                    "evalue": _text(output.get("evalue")),
                    "traceback": traceback,
                }
            )
        elif kind in ("display_data", "execute_result"):
            data = output.get("data") if isinstance(output.get("data"), dict) else {}
            shown = {mime: _text(data[mime]) for mime in SHOWN_MIMES if mime in data}
            shown = {
                mime: text
                for mime, text in shown.items()
                if not mime.startswith("image/") or _is_base64(text)
            }
            if shown:
                # Never execute_result: nbgrader would take its number for a score if it stood in a graded cell.
                kept.append({"output_type": "display_data", "data": shown, "metadata": {}})
    return kept


def _text(value) -> str:
    value = "".join(part for part in value if isinstance(part, str)) if isinstance(value, list) else value
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError):
        return False


def as_html(text: str) -> str:
    """Plain text as HTML with the few tags that nbconvert's sanitizer lets pass; `code` becomes code."""
    escaped = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text.strip(), quote=False))
    return "".join(f"<div>{line.rstrip() or '&nbsp;'}</div>" for line in escaped.split("\n"))


def check_outputs(record: dict, cell_points: float) -> list[NotebookNode]:
    """The outputs of a check cell: the message in both languages, the picture, and last the score.

    The score is an execute_result with a number, which is how nbgrader gives partial credit; there is no error and no
    stderr output, for which it would give zero.
    """
    outputs = [
        new_output(
            "display_data", data={"text/html": as_html(record["message"]), "text/plain": record["message"]}
        )
    ]
    if record["figure"]:
        alt = "What your code measured beside what the judge measured. 你的代码与评测程序各自测得的结果。"
        outputs.append(
            new_output(
                "display_data",
                data={"image/png": record["figure"], "text/plain": alt},
                metadata={"image/png": {"alt": alt}},
            )
        )
    if record["status"] == "inconclusive":
        evidence = json.dumps(record["evidence"], indent=1, ensure_ascii=False)
        outputs.append(
            new_output(
                "display_data",
                data={
                    "text/html": f"<div>Evidence 证据</div><pre>{html.escape(evidence)}</pre>",
                    "text/plain": f"Evidence 证据\n{evidence}",
                },
            )
        )
    score = repr(scaled_points(record, cell_points))
    outputs.append(new_output("execute_result", data={"text/plain": score}, execution_count=None))
    return outputs


def scaled_points(record: dict, cell_points: float) -> float:
    """The verdict's points on the check cell's scale; nothing while the verdict is inconclusive."""
    if record["status"] == "inconclusive" or not record["points"]:
        return 0.0
    return float(cell_points) * record["points"] / record["max_points"]


def fill(notebook: NotebookNode, records: dict[Task, dict]) -> None:
    """Write outputs and verdicts of `records` into the rebuilt `notebook`, and its notes above it."""
    verdicts = {slug: no_answer_record(slug, reason) for slug, reason in missing_answers(notebook).items()}
    for task, record in records.items():
        if task.kind == "judge":
            verdicts[task.slug] = record
            continue
        for cell, outputs in zip(runnable(notebook), record["outputs"], strict=False):
            cell.outputs = [NotebookNode(output) for output in outputs]
        if record["note"]:
            notebook.metadata["perflab"].setdefault("notes", []).append(record["note"].split("\n\n"))
    for cell in notebook.cells:
        grade_id = grade_id_of(cell)
        if grade_id is None:
            continue
        slug, role = split_grade_id(grade_id)
        if role == "check":
            record = verdicts[slug]
            points = cell.metadata.nbgrader["points"]
            cell.outputs = check_outputs(record, points)
            cell.metadata["perflab"] = {
                "status": record["status"],
                "points": scaled_points(record, points),
                "reason": record["reason"],
                "evidence": record["evidence"],
                "seconds": record["seconds"],
            }
    marks = notebook.metadata["perflab"]
    sentences = [marks["reason"]] if marks.get("reason") else []
    sentences += marks.get("notes", [])
    if sentences:
        lines = [f"- {line}" for sentence in sentences for line in dict.fromkeys(sentence)]
        notes = "**About the file you handed in 关于你提交的文件**\n\n" + "\n".join(lines)
        notebook.cells.insert(0, new_markdown_cell(notes, id="about-the-file"))


def stamp(notebook: NotebookNode, store: Store, hardware: str, unsafe: bool) -> str:
    """Says which answers and which verdicts a graded notebook holds: a different one has to be graded (again)."""
    keys = [task.key(hardware, unsafe) for task in tasks_of(notebook)]
    made = [(store.get(key) or {}).get("made_at") for key in keys]
    cells = [[cell.cell_type, cell.source, cell.get("attachments")] for cell in notebook.cells]
    content = [cells, notebook.metadata["perflab"], keys, made]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class MeasureOnHardware(NbGraderPreprocessor):
    """nbgrader preprocessor: verdicts from the store, or judged now, into the notebook."""

    unsafe = Bool(help="Run answers without a sandbox. Never for answers of people you don't trust.").tag(
        config=True
    )

    @default("unsafe")
    def _unsafe_default(self) -> bool:
        return judging.unsafe_from_environment()

    run_timeout_s = Integer(20, help="Seconds that the student's own cells may run, all together.").tag(
        config=True
    )
    retry_inconclusive = Bool(
        True, help="Judge again what was inconclusive before: grading by force asks for that."
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        store, hardware = Store(Path(resources["nbgrader"]["store"])), hardware_class()
        hardware = resources["nbgrader"].get("hardware", hardware)
        records = {}
        for task in tasks_of(nb):
            key = task.key(hardware, self.unsafe)
            record, elsewhere = store.get(key), task.kind == "judge" and hardware != hardware_class()
            if record is None or (self.retry_inconclusive and record.get("status") == "inconclusive" and not elsewhere):
                if elsewhere:
                    raise NbGraderException(
                        f"this assignment is judged on {hardware!r}, and this machine is {hardware_class()!r}. Grade there, or "
                        "with: python -m grader grade ASSIGNMENT --scheduler ADDRESS; or delete verdicts/hardware.json to "
                        "judge all answers anew here."
                    )
                record = perform(task, self.unsafe, self.run_timeout_s)
                store.put(key, record)
                if task.kind == "judge":
                    HardwareClasses(store.folder.parent).keep(resources["nbgrader"]["assignment"], hardware)
            records[task] = record
        mark = stamp(nb, store, hardware, self.unsafe)
        fill(nb, records)
        nb.metadata["perflab"]["stamp"] = mark
        return nb, resources


class LeaveToInstructor(NbGraderPreprocessor):
    """nbgrader preprocessor, after SaveAutoGrades: an inconclusive verdict becomes "needs manual grade", without a score."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        place = resources["nbgrader"]
        open_questions = [
            grade_id_of(cell)
            for cell in nb.cells
            if cell.metadata.get("perflab", {}).get("status") == "inconclusive"
        ]
        if open_questions:
            with Gradebook(place["db_url"]) as gradebook:
                for grade_id in open_questions:
                    grade = gradebook.find_grade(
                        grade_id, place["notebook"], place["assignment"], place["student"]
                    )
                    grade.auto_score, grade.needs_manual_grade = None, True
                gradebook.db.commit()
        return nb, resources
