"""perflab.recorded: a measurement runs, is recorded, and is recalled with its label where it can't run."""

import ast
import json
from pathlib import Path

import pytest

from perflab import recorded

ROOT = Path(__file__).parents[1]
NEEDS = ("quantum computer", "量子计算机")


def forty_two():
    return {"answer": 42, "pair": (1, 2)}


def forty_three():
    return {"answer": 43}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """An empty page's folder with a place for recordings, as the book's build has it."""
    (tmp_path / "assets/recorded").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERFLAB_RECORD", raising=False)
    return tmp_path


def test_measures_where_possible_and_returns_what_a_recording_would(page, capsys):
    result = recorded.measure_or_recall("x", forty_two, possible=True, needs=NEEDS)
    assert result == {"answer": 42, "pair": [1, 2]}
    assert not list((page / "assets/recorded").iterdir())
    assert capsys.readouterr().out == ""


def test_says_that_nothing_was_recorded(page, capsys):
    assert recorded.measure_or_recall("x", forty_two, possible=False, needs=NEEDS) is None
    printed = capsys.readouterr().out
    assert "no quantum computer" in printed and "Not recorded" in printed and "尚无录制结果" in printed


def test_recalls_a_recording_with_its_machine_and_date(page, capsys, monkeypatch):
    monkeypatch.setenv("PERFLAB_RECORD", "1")
    recorded.measure_or_recall("x", forty_two, possible=True, needs=NEEDS)
    run = json.loads((page / "assets/recorded/x.json").read_text())
    capsys.readouterr()
    assert recorded.measure_or_recall("x", forty_two, possible=False, needs=NEEDS)["answer"] == 42
    printed = capsys.readouterr().out
    assert "not from this machine" in printed and run["machine"] in printed and run["code"] in printed
    assert run["date"][:10] in printed and "changed" not in printed


def test_tells_when_the_code_is_not_that_of_the_recording(page, capsys, monkeypatch):
    monkeypatch.setenv("PERFLAB_RECORD", "1")
    recorded.measure_or_recall("x", forty_two, possible=True, needs=NEEDS)
    assert recorded.measure_or_recall("x", forty_three, possible=False, needs=NEEDS)["answer"] == 42
    assert "The code has changed" in capsys.readouterr().out


def recordings():
    return sorted((ROOT / "book/assets/recorded").glob("12-[13]-*.json"))


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_the_book_s_recordings_are_of_the_code_that_the_page_shows(path):
    run = json.loads(path.read_text(encoding="utf-8"))
    (page,) = (ROOT / "book").glob(f"{run['name'][:4]}-*.md")
    functions = {}
    for cell in page.read_text(encoding="utf-8").split("```{code-cell}")[1:]:
        source = cell.split("\n", 1)[1].split("\n```")[0]
        code = "\n".join(line for line in source.splitlines() if not line.startswith(":tags:"))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef):
                functions[node.name] = recorded.fingerprint(ast.get_source_segment(code, node))
    assert run["code"] in functions.values(), f"record {run['name']} again: its code on the page has changed"


def test_there_are_recordings_for_a_reader_without_a_compiler():
    names = {path.stem for path in recordings()}
    page = (ROOT / "book/12-1-compilers-and-interpreters.md").read_text(encoding="utf-8")
    assert {name for name in names if f'"{name}"' in page} == {
        "12-1-block", "12-1-compare", "12-1-cpp", "12-1-fusion", "12-1-fusion-by-size",
    }  # fmt: skip
