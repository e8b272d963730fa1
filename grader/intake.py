"""Read what a student handed in, whatever it is, before nbgrader sees it.

A submission is a folder of unknown content. `read_submission` takes from it the one notebook that counts, as a list of
plain cells, or the reason why there is none. It never follows a link, never reads without a limit and never raises for
anything that a student can put there. Sentences are pairs (English, Chinese): students and instructors read them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

MAX_FILE_BYTES = 100_000_000  # nbgrader's own limit for a submission (CourseDirectory.max_file_size)
MAX_ENTRIES = 1000  # files and folders looked at in one submission
MAX_CELLS = 5000
MAX_PARTS = 2_000_000  # lists and objects in the JSON: Python needs a hundred bytes and more for each
NOTEBOOK_ENDINGS = (".ipynb", ".ipynb.txt", ".ipynb.json", ".json")  # the likelier first

Sentence = tuple[str, str]


class Unreadable(Exception):
    """A file that cannot be read as a notebook; `sentence` says why, in both languages."""

    def __init__(self, en: str, zh: str):
        super().__init__(en)
        self.sentence = (en, zh)


@dataclass
class Cell:
    cell_type: str  # as the file says: anything
    source: str
    grade_id: str | None
    cell_id: str | None
    attachments: dict = field(default_factory=dict)


@dataclass
class Submission:
    """What is left of a submission: `cells` of its notebook, or `reason` why there are none; `notes` on what was odd.

    handed_in: when, as nbgrader writes it, or None where that is not known.
    """

    cells: list[Cell]
    reason: Sentence | None
    notes: list[Sentence]
    handed_in: str | None = None


def shown(name: str) -> str:
    """A file's or a student's name, safe to show: one line, no control characters, no markup, not endless."""
    name = name.encode("utf-8", "replace").decode("utf-8")
    name = "".join(c if c.isprintable() and c not in "`<>" else "?" for c in name)
    return name if len(name) <= 80 else name[:77] + "..."


def safe_student_id(folder_name: str) -> str:
    """The student id for a folder's name: the name itself wherever nbgrader, the file system and SQLite can bear it."""
    clean = folder_name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    clean = "".join(c if c.isprintable() else "_" for c in clean)
    if clean == folder_name:
        return clean
    return f"{clean}-{hashlib.sha256(os.fsencode(folder_name)).hexdigest()[:6]}"  # two names never become one


def read_limited(path: Path, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit_bytes`. Raises Unreadable: links, pipes and devices are refused."""
    name = shown(path.name)
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Unreadable(
                f"`{name}` is a symbolic link, not a file. Hand in the notebook itself.",
                f"`{name}` 是符号链接，不是文件。请提交 notebook 文件本身。",
            ) from None
        raise Unreadable(
            f"`{name}` cannot be read ({error.strerror}). Hand it in again.",
            f"`{name}` 无法读取（{error.strerror}）。请重新提交。",
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(
                f"`{name}` is not a file. Hand in the notebook itself.",
                f"`{name}` 不是普通文件。请提交 notebook 文件本身。",
            )
        content = file.read(limit_bytes + 1) if status.st_size <= limit_bytes else b""
        if status.st_size > limit_bytes or len(content) > limit_bytes:
            raise Unreadable(
                f"`{name}` is larger than {limit_bytes // 1_000_000} MB. Clear all outputs, save, and hand it in again.",
                f"`{name}` 超过 {limit_bytes // 1_000_000} MB。请清除所有输出，保存后重新提交。",
            )
    return content


def _text(value) -> str:
    """A cell's source: notebooks store a string or a list of lines."""
    if isinstance(value, list):
        value = "".join(part for part in value if isinstance(part, str))
    if not isinstance(value, str):
        return ""
    # A lone surrogate can be written in JSON, but in no file.
    return value.encode("utf-8", "replace").decode("utf-8")


def _pictures(attachments) -> dict:
    """The PNG and JPEG attachments of a Markdown cell: drawn answers count, anything that could be active doesn't."""
    kept = {}
    for name, bundle in attachments.items() if isinstance(attachments, dict) else ():
        pictures = bundle.items() if isinstance(bundle, dict) else ()
        pictures = {
            mime: data
            for mime, data in pictures
            if mime in ("image/png", "image/jpeg") and isinstance(data, str)
        }
        if pictures and all(re.fullmatch(r"[A-Za-z0-9+/=\s]*", data) for data in pictures.values()):
            kept[shown(name)] = pictures
    return kept


def parse_notebook(content: bytes, name: str = "notebook") -> tuple[list[Cell], list[Sentence]]:
    """The cells of a notebook of any format since 2, and notes. Raises Unreadable."""
    name, notes = shown(name), []
    if not content.strip(b" \t\r\n\0"):
        raise Unreadable(
            f"`{name}` is empty. Save the notebook and hand it in again.",
            f"`{name}` 是空文件。请保存 notebook 后重新提交。",
        )
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content[:4]:
        raise Unreadable(
            f"`{name}` is written in UTF-16; notebooks are UTF-8. Open it in Jupyter, save it there, and hand it in again.",
            f"`{name}` 使用 UTF-16 编码，而 notebook 应为 UTF-8。请在 Jupyter 中打开并保存，然后重新提交。",
        )
    if content.startswith(b"\xef\xbb\xbf"):
        notes.append(
            (
                f"`{name}` begins with a byte-order mark; it was left out.",
                f"`{name}` 以字节顺序标记（BOM）开头，已忽略。",
            )
        )
    not_a_notebook = Unreadable(
        f"`{name}` is not a notebook. Open it in Jupyter, save it there, and hand that file in.",
        f"`{name}` 不是 notebook 文件。请在 Jupyter 中打开并保存，再提交该文件。",
    )
    if content.count(b"{") + content.count(b"[") > MAX_PARTS:
        raise Unreadable(
            f"`{name}` is built of more than {MAX_PARTS:,} parts. Clear all outputs, save, and hand it in again.",
            f"`{name}` 由超过 {MAX_PARTS:,} 个部分组成。请清除所有输出，保存后重新提交。",
        )
    try:
        text = content.decode("utf-8-sig")
        data = json.loads(text)
    except UnicodeDecodeError as error:
        if not content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            raise not_a_notebook from None
        raise Unreadable(
            f"`{name}` is not UTF-8 text (byte {error.start} of {len(content)}): it was saved in another encoding, or damaged "
            "on the way. Save it as UTF-8, or hand in the file that Jupyter saved.",
            f"`{name}` 不是 UTF-8 文本（第 {error.start} 个字节，共 {len(content)} 个）：可能以别的编码保存，或在传输中损坏。"
            "请以 UTF-8 保存，或提交 Jupyter 保存的原文件。",
        ) from None
    except RecursionError:
        raise not_a_notebook from None
    except ValueError as error:
        position = getattr(error, "pos", None)
        if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            where = (
                f" (it breaks off or is damaged at character {position} of {len(text)})"
                if position
                else ""
            )
            zh_where = (
                f"（在第 {position} 个字符处中断或损坏，共 {len(text)} 个字符）" if position else ""
            )
            raise Unreadable(
                f"`{name}` is a damaged notebook{where}. Save it again in Jupyter and hand it in again.",
                f"`{name}` 是损坏的 notebook{zh_where}。请在 Jupyter 中重新保存后再提交。",
            ) from None
        raise not_a_notebook from None
    if not isinstance(data, dict) or not any(
        isinstance(data.get(key), list) for key in ("cells", "worksheets")
    ):
        raise not_a_notebook
    if isinstance(data.get("cells"), list):
        raw_cells = data["cells"]
    else:
        notes.append(
            (
                f"`{name}` has an old notebook format; it was upgraded.",
                f"`{name}` 使用旧的 notebook 格式，已升级。",
            )
        )
        sheets = [sheet.get("cells") for sheet in data["worksheets"] if isinstance(sheet, dict)]
        raw_cells = [cell for cells in sheets if isinstance(cells, list) for cell in cells]
    if len(raw_cells) > MAX_CELLS:
        raise Unreadable(
            f"`{name}` has {len(raw_cells):,} cells; more than {MAX_CELLS:,} are not read. Start from the released notebook again.",
            f"`{name}` 有 {len(raw_cells):,} 个单元格，最多读取 {MAX_CELLS:,} 个。请从发布的 notebook 重新开始。",
        )
    cells = []
    for raw in raw_cells:
        if not isinstance(raw, dict):
            continue
        metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
        marks = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
        grade_id, cell_id = marks.get("grade_id"), raw.get("id")
        cells.append(
            Cell(
                cell_type=_text(raw.get("cell_type")),
                source=_text(raw.get("source", raw.get("input"))),  # format 3 calls it input
                grade_id=_text(grade_id) if isinstance(grade_id, str) else None,
                cell_id=_text(cell_id) if isinstance(cell_id, str) else None,
                attachments=_pictures(raw.get("attachments")),
            )
        )
    return cells, notes


def _files(folder: Path, notes: list[Sentence]) -> list[Path]:
    """The files of a submission, no links, not its hidden ones; the upper folders first. Raises OSError for `folder` itself."""
    found, folders, looked_at = [], [folder], 0
    for place in folders:  # grows on the way
        try:
            with os.scandir(place) as listing:
                entries = sorted(itertools.islice(listing, MAX_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            if place == folder:
                raise
            notes.append(
                (
                    f"The folder `{shown(place.name)}` cannot be read ({error.strerror}).",
                    f"无法读取文件夹 `{shown(place.name)}`（{error.strerror}）。",
                )
            )
        else:
            for entry in entries:
                looked_at += 1
                if looked_at > MAX_ENTRIES:
                    notes.append(
                        (
                            f"Only the first {MAX_ENTRIES} files were looked at.",
                            f"只查看了前 {MAX_ENTRIES} 个文件。",
                        )
                    )
                    return sorted(found)
                if entry.name.startswith("."):  # .ipynb_checkpoints, .DS_Store and their like
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    found.append(Path(entry.path))
    return sorted(found)


def read_submission(folder: Path, notebook: str, released: dict[str, str]) -> Submission:
    """The notebook `notebook` (its name without ending) out of `folder`.

    `released`: grade_id → source of the released notebook's marked cells, by which a notebook is known to be this one,
    whatever its name, and an answer to be an answer.
    """
    wanted = f"{notebook}.ipynb"
    notes: list[Sentence] = []
    if folder.is_symlink() or folder.parent.is_symlink():
        name = shown(folder.name)
        return Submission(
            [],
            (
                f"The folder `{name}` is a symbolic link. Hand in the notebook itself.",
                f"文件夹 `{name}` 是符号链接。请提交 notebook 文件本身。",
            ),
            notes,
        )
    try:
        files = _files(folder, notes)
    except OSError as error:
        return Submission(
            [],
            (
                f"The submission cannot be read ({error.strerror}).",
                f"无法读取提交的内容（{error.strerror}）。",
            ),
            notes,
        )
    candidates = [path for path in files if path.name.lower().endswith(NOTEBOOK_ENDINGS)]
    # The right name first; of the others the latest, for a student's last version is the one meant.
    candidates.sort(
        key=lambda path: (
            path.name != wanted,
            not path.name.lower().endswith(NOTEBOOK_ENDINGS[:-1]),
            len(path.parts),
            -os.lstat(path).st_mtime,
            path.name,
        )
    )
    if not candidates:
        there = ", ".join(f"`{shown(path.name)}`" for path in files[:5]) or "no file at all"
        zh_there = "、".join(f"`{shown(path.name)}`" for path in files[:5]) or "没有任何文件"
        return Submission(
            [],
            (
                f"There is no notebook in the submission: expected `{wanted}`, found {there}.",
                f"提交的内容里没有 notebook：应为 `{wanted}`，实际为{zh_there}。",
            ),
            notes,
        )
    readable, problems, budget_bytes = [], [], 2 * MAX_FILE_BYTES
    for path in candidates[:20]:
        try:
            content = read_limited(path, min(MAX_FILE_BYTES, budget_bytes))
            budget_bytes -= len(content)
            cells, remarks = parse_notebook(content, path.name)
        except Unreadable as problem:
            problems.append((path, problem.sentence))
            continue
        lost = _recover_grade_ids(cells, set(released))
        if lost:
            remarks.append(
                (
                    f"{lost} cell(s) of `{shown(path.name)}` had lost their nbgrader mark; they were known by their cell id.",
                    f"`{shown(path.name)}` 中有 {lost} 个单元格丢失了 nbgrader 标记，已按单元格 id 识别。",
                )
            )
        marked = [cell for cell in cells if cell.grade_id in released]
        if marked:
            answered = any(
                cell.source.strip() not in ("", released[cell.grade_id].strip()) for cell in marked
            )
            readable.append((answered, path, cells, remarks))
        else:
            problems.append(
                (
                    path,
                    (
                        f"`{shown(path.name)}` has none of the marked cells of {notebook}. Start from the released notebook "
                        "again, copy your answers into its answer cells, and hand that file in.",
                        f"`{shown(path.name)}` 中没有 {notebook} 的任何带标记的单元格。请从发布的 notebook 重新开始，"
                        "把答案复制到作答单元格里，再提交该文件。",
                    ),
                )
            )
    if not readable:
        return Submission([], problems[0][1], notes + [sentence for _, sentence in problems[1:5]])
    # The first in the order above, but an untouched copy of the released notebook only where there is nothing else.
    _, chosen, cells, remarks = max(readable, key=lambda item: item[0])
    if chosen.name != wanted:
        notes.append(
            (
                f"The notebook was named `{shown(chosen.name)}` instead of `{wanted}`; it was accepted.",
                f"notebook 的文件名是 `{shown(chosen.name)}`，而不是 `{wanted}`；已接受。",
            )
        )
        notes += [sentence for path, sentence in problems if path.name == wanted]
    others = [path for path in candidates if path != chosen]
    if others:
        names = ", ".join(f"`{shown(path.name)}`" for path in others[:5])
        notes.append(
            (
                f"Not graded, since one notebook counts: {names}.",
                f"只评一个 notebook，以下文件没有评分：{names}。",
            )
        )
    return Submission(cells, None, notes + remarks)


def _recover_grade_ids(cells: list[Cell], grade_ids: set[str]) -> int:
    """Give cells that lost their nbgrader metadata the grade_id that their cell id names; returns how many."""
    marked = {cell.grade_id for cell in cells}
    recovered = [cell for cell in cells if cell.grade_id is None and cell.cell_id in grade_ids - marked]
    for cell in recovered:
        cell.grade_id = cell.cell_id
    return len(recovered)
