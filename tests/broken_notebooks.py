"""Thirty-odd ways in which a notebook comes back broken, and what has to become of each.

Every case starts from a right solution. `full`: the answer can still be read, so it keeps full credit. `zero`: it
can't, and `says` occurs in the reason. Where `full` has a `says`, the oddity is noted.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ANSWER, CHECK, DISCUSS = "async-on-cpu-answer", "async-on-cpu-check", "async-on-cpu-discuss"
NAME = "12-2.ipynb"


@dataclass
class Case:
    name: str
    make: Callable[[Path, dict], None]
    outcome: str  # "full" or "zero"
    says: str


CASES: list[Case] = []


def case(outcome: str, says: str = ""):
    def register(make):
        CASES.append(Case(make.__name__, make, outcome, says))
        return make

    return register


def find(notebook: dict, grade_id: str) -> dict:
    return next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def write(folder: Path, notebook: dict, name: str = NAME) -> None:
    (folder / name).write_text(json.dumps(notebook), encoding="utf-8")


# ------------------------------------------------------------ cells


@case("zero", "answer cell `async-on-cpu-answer` is missing")
def deleted_answer(folder, nb):
    nb["cells"].remove(find(nb, ANSWER))
    write(folder, nb)


@case("full")
def deleted_check(folder, nb):
    nb["cells"].remove(find(nb, CHECK))
    write(folder, nb)


@case("full")
def everything_else_deleted(folder, nb):
    nb["cells"] = [find(nb, ANSWER)]
    write(folder, nb)


@case("full", "is there 2 times, 1 different; they count once")
def duplicated_answer(folder, nb):
    nb["cells"].append(copy.deepcopy(find(nb, ANSWER)))
    write(folder, nb)


@case("full", "is there 2 times, 2 different; all run")
def duplicated_and_improved_answer(folder, nb):
    first = copy.deepcopy(find(nb, ANSWER))
    first["source"] = "def measure(launch, wait):\n    return 0.0, 0.0\n"
    nb["cells"].insert(1, first)
    write(folder, nb)


@case("full", "is there 2 times")
def duplicated_check(folder, nb):
    nb["cells"].append(copy.deepcopy(find(nb, CHECK)) | {"id": "again"})
    nb["cells"].append(copy.deepcopy(find(nb, ANSWER)) | {"id": "again-too"})
    write(folder, nb)


@case("full")
def reordered(folder, nb):
    nb["cells"].reverse()
    write(folder, nb)


@case("full", "The type of cell")
def retyped_answer(folder, nb):
    cell = find(nb, ANSWER)
    cell["cell_type"] = "markdown"
    del cell["outputs"], cell["execution_count"]
    write(folder, nb)


@case("full", "check cell `async-on-cpu-check` was edited")
def edited_check(folder, nb):
    find(nb, CHECK)["source"] = "10.0"
    write(folder, nb)


@case("full")
def edited_points(folder, nb):
    find(nb, CHECK)["metadata"]["nbgrader"]["points"] = 1000
    find(nb, ANSWER)["metadata"]["nbgrader"] |= {"grade": True, "points": 1000}
    write(folder, nb)


@case("full", "outside the answer cells were not used")
def extra_cells(folder, nb):
    nb["cells"].insert(0, {"cell_type": "code", "id": "x", "metadata": {}, "source": "x = 1", "outputs": []})
    write(folder, nb)


@case("full", "had lost their nbgrader mark")
def lost_metadata(folder, nb):
    for cell in nb["cells"]:
        cell["metadata"] = {}
    write(folder, nb)


@case("zero", "has none of the marked cells")
def lost_metadata_and_ids(folder, nb):
    for cell in nb["cells"]:
        cell["metadata"] = {}
        cell.pop("id", None)
    nb["nbformat_minor"] = 4
    write(folder, nb)


@case("zero", "has none of the marked cells")
def another_notebook(folder, nb):
    nb["cells"] = [{"cell_type": "code", "id": "x", "metadata": {}, "source": "print('hi')", "outputs": []}]
    write(folder, nb)


@case("full")
def nbgrader_schema_of_old(folder, nb):
    for cell in nb["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"] = {
                "grade_id": cell["metadata"]["nbgrader"]["grade_id"],
                "schema_version": 1,
            }
    write(folder, nb)


@case("full")
def nbgrader_schema_of_the_future(folder, nb):
    for cell in nb["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["schema_version"] = 99
    write(folder, nb)


@case("full")
def cells_of_wrong_shape(folder, nb):
    nb["cells"] += [
        None,
        7,
        {"cell_type": 3},
        {"metadata": [], "source": {"a": 1}},
        {"metadata": {"nbgrader": "x"}},
    ]
    write(folder, nb)


@case("full")
def null_byte_in_another_cell(folder, nb):
    nb["cells"].insert(
        0, {"cell_type": "code", "id": "n", "metadata": {}, "source": "x = '\0'", "outputs": []}
    )
    write(folder, nb)


@case("full")
def lone_surrogate_in_the_discussion(folder, nb):
    find(nb, DISCUSS)["source"] = "half a pair: \ud83d"
    write(folder, nb)


# ------------------------------------------------------------ the notebook around them


@case("full")
def unknown_kernel(folder, nb):
    nb["metadata"]["kernelspec"] = {"name": "my-env-37", "display_name": "My env", "language": "julia"}
    nb["metadata"]["language_info"] = {"name": "julia"}
    write(folder, nb)


@case("full")
def no_metadata(folder, nb):
    nb["metadata"] = None
    write(folder, nb)


@case("full")
def huge_outputs(folder, nb):
    find(nb, ANSWER)["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * 20_000_000}]
    write(folder, nb)


@case("full", "old notebook format")
def format_3(folder, nb):
    cells = []
    for cell in nb["cells"]:
        old = {"cell_type": cell["cell_type"], "metadata": cell["metadata"]}
        old |= (
            {"input": cell["source"], "outputs": []}
            if cell["cell_type"] == "code"
            else {"source": cell["source"]}
        )
        cells.append(old)
    write(
        folder,
        {"metadata": {"name": "x"}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": cells}]},
    )


@case("full", "byte-order mark")
def byte_order_mark(folder, nb):
    (folder / NAME).write_bytes(b"\xef\xbb\xbf" + json.dumps(nb).encode())


@case("zero", "UTF-16")
def utf_16(folder, nb):
    (folder / NAME).write_bytes(json.dumps(nb).encode("utf-16"))


@case("zero", "damaged notebook")
def cut_off(folder, nb):
    content = json.dumps(nb).encode()
    (folder / NAME).write_bytes(content[: len(content) // 2])


@case("zero", "damaged notebook")
def merge_conflict(folder, nb):
    text = json.dumps(nb, indent=1)
    middle = text.index('"cells"')
    (folder / NAME).write_text(text[:middle] + "\n<<<<<<< HEAD\n" + text[middle:])


@case("zero", "is empty")
def empty_file(folder, nb):
    (folder / NAME).write_bytes(b"")


@case("zero", "is not a notebook")
def binary_file(folder, nb):
    (folder / NAME).write_bytes(random.Random(0).randbytes(5000))


@case("zero", "is not a notebook")
def a_web_page(folder, nb):
    (folder / NAME).write_text("<!DOCTYPE html><html><script>alert(1)</script></html>")


@case("zero", "is not a notebook")
def json_but_no_notebook(folder, nb):
    (folder / NAME).write_text('[{"cells": 1}]')


@case("zero", "is not a notebook")
def nested_without_end(folder, nb):
    (folder / NAME).write_text("[" * 200_000)


@case("zero", "larger than 100 MB")
def gigantic_file(folder, nb):
    with open(folder / NAME, "wb") as file:
        file.truncate(2_000_000_000)  # a hole: no disk is used


# ------------------------------------------------------------ the folder


@case("full", "was named")
def renamed(folder, nb):
    write(folder, nb, "12-2 (1).ipynb")


@case("full", "was named")
def renamed_to_anything(folder, nb):
    write(folder, nb, "我的作业 final FINAL.ipynb")


@case("full", "Not graded, since one notebook counts")
def a_second_notebook(folder, nb):
    write(folder, nb)
    write(folder, {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, "scratch.ipynb")


@case("full", "was named")
def answer_in_the_copy(folder, nb):
    write(folder, nb, "12-2-Copy1.ipynb")
    untouched = copy.deepcopy(nb)
    find(untouched, ANSWER)["source"] = find(untouched, DISCUSS)["source"] = ""
    write(folder, untouched)


@case("full", "damaged notebook")
def right_name_damaged_copy_whole(folder, nb):
    write(folder, nb, "12-2-Copy1.ipynb")
    (folder / NAME).write_text("{")


@case("full", "was named")
def in_a_sub_folder_with_another_name(folder, nb):
    (folder / "12-2 homework").mkdir()
    write(folder / "12-2 homework", nb, "12-2.ipynb.txt")


@case("zero", "There is no notebook in the submission")
def no_notebook(folder, nb):
    (folder / "answer.docx").write_bytes(b"PK")


@case("zero", "found no file at all")
def nothing(folder, nb):
    pass


@case("zero", "symbolic link")
def link_to_a_secret(folder, nb):
    (folder / NAME).symlink_to("/etc/passwd")


@case("zero", "symbolic link")
def link_to_nowhere(folder, nb):
    (folder / NAME).symlink_to("/nowhere/at/all")


@case("zero", "is not a file")
def a_pipe(folder, nb):
    os.mkfifo(folder / NAME)


@case("zero", "There is no notebook")
def a_folder_of_that_name(folder, nb):
    (folder / NAME).mkdir()


@case("full")
def attachments_and_links_beside(folder, nb):
    write(folder, nb)
    (folder / "secret.txt").symlink_to("/etc/passwd")
    (folder / "perflab.py").write_text("raise SystemExit('shadowed')")
    (folder / "torch.py").write_text("raise SystemExit('shadowed')")
    (folder / "timestamp.txt").write_text("the day before yesterday")


@case("full")
def timestamp_is_a_link(folder, nb):
    write(folder, nb)
    (folder / "timestamp.txt").symlink_to("/etc/passwd")


@case("full")
def timestamp_that_the_parser_chokes_on(folder, nb):
    write(folder, nb)
    (folder / "timestamp.txt").write_text("2026-01-01 10:00:00 ../../etc/passwd")


@case("zero", "none of the marked cells")
def worksheets_that_are_none(folder, nb):
    write(folder, {"nbformat": 3, "worksheets": [{"cells": 7}, 5, {}]})


@case("full")
def half_a_character_as_a_mark(folder, nb):
    stray = {"cell_type": "\ud83d", "source": "x", "metadata": {"nbgrader": {"grade_id": "\ud83d"}}, "id": "\ud83d"}
    nb["cells"].append(stray)
    write(folder, nb)


@case("zero", "is not UTF-8 text (byte")
def saved_as_gbk(folder, nb):
    find(nb, DISCUSS)["source"] = "异步"
    (folder / NAME).write_bytes(json.dumps(nb, ensure_ascii=False).encode("gbk", "replace"))


@case("zero", "cells; more than 5,000 are not read")
def a_million_cells(folder, nb):
    nb["cells"] += [{}] * 100_000
    write(folder, nb)


@case("zero", "built of more than 2,000,000 parts")
def nothing_but_brackets(folder, nb):
    (folder / NAME).write_text('{"cells": [' + ",".join(["[]"] * 2_000_001) + "]}")


@case("full", "was named `mine.ipynb`")
def in_a_folder_beside_an_environment(folder, nb):
    for number in range(30):
        (folder / "venv" / "lib" / f"package-{number}").mkdir(parents=True)
        for file in range(40):
            (folder / "venv" / "lib" / f"package-{number}" / f"{file}.py").touch()
        (folder / f"r{number}.json").write_text("{}")
    (folder / "notebooks").mkdir()
    write(folder / "notebooks", nb, "mine.ipynb")


@case("full", "is there 2 times, 2 different; all run")
def an_old_copy_with_a_syntax_error_above(folder, nb):
    first = copy.deepcopy(find(nb, ANSWER))
    first["source"] = "def measure(launch, wait:\n"
    nb["cells"].insert(1, first)
    write(folder, nb)


@case("full", "is empty, but 1 text cell(s) were added elsewhere")
def discussed_in_a_cell_of_its_own(folder, nb):
    nb["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "It is asynchronous, because …", "id": "mine"})
    find(nb, DISCUSS)["source"] = ""
    write(folder, nb)
