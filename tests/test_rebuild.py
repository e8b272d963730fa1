"""The student's answers, and nothing else, get into a clean copy of the released notebook."""

import json

import nbformat
import pytest
from broken_notebooks import ANSWER, CASES, CHECK, DISCUSS, find

from grader.autograde import take_in
from grader.course_files import nbgrader_metadata, split_grade_id
from grader.intake import MAX_FILE_BYTES, read_submission, safe_student_id, shown
from grader.rebuild import (
    answer_cells,
    grade_id_of,
    harmless_markdown,
    missing_answers,
    read_notebook,
    rebuild,
    released_cells,
    submission_from,
)


def master_path(course):
    return course.folder / "release" / "12-2" / "12-2.ipynb"


def rebuilt(course, folder):
    """As nbgrader does it: through the intake's file."""
    intake = nbformat.reads(nbformat.writes(take_in(folder, master_path(course))), as_version=4)
    notebook = rebuild(submission_from(intake), read_notebook(master_path(course)))
    nbformat.validate(nbformat.reads(nbformat.writes(notebook), as_version=4))
    return notebook


def sentences(notebook):
    marks = notebook.metadata["perflab"]
    return [*([marks["reason"]] if marks["reason"] else []), *marks["notes"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_broken_notebook(case, released_course, tmp_path):
    solution = released_course.solution()
    wanted = find(solution, ANSWER)["source"]
    case.make(tmp_path, released_course.solution())
    notebook = rebuilt(released_course, tmp_path)

    answers = answer_cells(notebook)["async-on-cpu"]
    if case.outcome == "full":
        assert answers[-1] == wanted
        assert missing_answers(notebook) == {}
    else:
        assert answers == []
        assert set(missing_answers(notebook)) == {"async-on-cpu"}
    said = [*sentences(notebook), *missing_answers(notebook).values()]
    assert not case.says or any(case.says in en for en, _ in said), said
    for en, zh in said:
        assert en and any("\u4e00" <= character <= "\u9fff" for character in zh)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_locked_cells_and_marks_are_the_masters(case, released_course, tmp_path):
    case.make(tmp_path, released_course.solution())
    notebook, master = rebuilt(released_course, tmp_path), read_notebook(master_path(released_course))
    marked = [cell for cell in notebook.cells if grade_id_of(cell)]
    original = [cell for cell in master.cells if grade_id_of(cell)]
    assert [cell.metadata.nbgrader for cell in marked] == [cell.metadata.nbgrader for cell in original]
    assert [cell.cell_type for cell in marked] == [cell.cell_type for cell in original]
    [check], [wanted] = ([c for c in cells if grade_id_of(c) == CHECK] for cells in (marked, original))
    assert check.source == wanted.source and check.outputs == []
    assert notebook.metadata.kernelspec == master.metadata.kernelspec
    unmarked = [
        cell.source
        for cell in notebook.cells
        if not grade_id_of(cell) and "copy_of" not in cell.metadata.get("perflab", {})
    ]
    assert unmarked == [cell.source for cell in master.cells if not grade_id_of(cell)]


def test_every_case_has_a_distinct_breakage():
    assert len({case.name for case in CASES}) == len(CASES) >= 30


def test_differing_copies_run_in_document_order(released_course, tmp_path):
    notebook = released_course.solution()
    for number in (1, 2):
        copied = json.loads(json.dumps(find(notebook, ANSWER)))
        copied["source"] = f"version = {number}"
        notebook["cells"].append(copied)
    notebook["cells"].append(json.loads(json.dumps(find(released_course.notebook("release"), ANSWER))))
    (tmp_path / "12-2.ipynb").write_text(json.dumps(notebook))
    result = rebuilt(released_course, tmp_path)
    first, *others = answer_cells(result)["async-on-cpu"]
    assert first.startswith("import statistics")
    assert others == ["version = 1", "version = 2"]  # and the untouched copy at the end is no answer
    assert len({cell.id for cell in result.cells}) == len(result.cells)


def test_untouched_notebook_has_no_answer(released_course, tmp_path):
    (tmp_path / "12-2.ipynb").write_text(json.dumps(released_course.notebook("release")))
    [(en, _)] = missing_answers(rebuilt(released_course, tmp_path)).values()
    assert "as it was released" in en


def test_an_answer_that_is_too_long_is_said_to_be(released_course, tmp_path):
    notebook = released_course.solution(lambda source: source + "#" * 2_000_000)
    (tmp_path / "12-2.ipynb").write_text(json.dumps(notebook))
    result = rebuilt(released_course, tmp_path)
    assert answer_cells(result)["async-on-cpu"] == []
    assert any("longer than 1,000,000 characters" in en for en, _ in sentences(result))


def test_written_answers_keep_pictures_and_lose_markup(released_course, tmp_path):
    notebook = released_course.solution()
    cell = find(notebook, DISCUSS)
    cell["source"] = "a<b <script>alert(1)</script> ![p](attachment:p.png)"
    cell["attachments"] = {
        "p.png": {"image/png": "AAAA"},
        "x.svg": {"image/svg+xml": "<svg onload=alert(1)>"},
    }
    (tmp_path / "12-2.ipynb").write_text(json.dumps(notebook))
    [answer] = [cell for cell in rebuilt(released_course, tmp_path).cells if grade_id_of(cell) == DISCUSS]
    assert "<script" not in answer.source and "</script" not in answer.source
    assert answer.attachments == {"p.png": {"image/png": "AAAA"}}
    assert harmless_markdown("1 < 2 and x <= y") == "1 < 2 and x <= y"


def test_student_ids_stay_apart_and_printable():
    assert safe_student_id("Zoë 张三 o'Brien") == "Zoë 张三 o'Brien"
    strange = ["a\nb", "a\tb", "a\udcffb"]
    cleaned = {safe_student_id(name) for name in strange}
    assert len(cleaned) == 3 and all(name.isprintable() and name.encode() for name in cleaned)
    assert shown("a`b<c>\n" + "x" * 200).isprintable() and len(shown("x" * 200)) == 80


def test_linked_folder_is_refused(released_course, tmp_path):
    secret = tmp_path / "classmate"
    secret.mkdir()
    (secret / "12-2.ipynb").write_text(json.dumps(released_course.solution()))
    (tmp_path / "thief").symlink_to(secret)
    submission = read_submission(
        tmp_path / "thief", "12-2", released_cells(read_notebook(master_path(released_course)))
    )
    assert submission.cells == [] and "symbolic link" in submission.reason[0]


def test_limit_is_nbgraders_own():
    from nbgrader.coursedir import CourseDirectory

    assert CourseDirectory().max_file_size * 1000 == MAX_FILE_BYTES


def test_grade_ids():
    assert split_grade_id("cache-size-answer-c") == ("cache-size", "answer-c")
    assert split_grade_id("overlap-discuss") == ("overlap", "discuss")
    with pytest.raises(ValueError, match="expected <slug>-answer"):
        split_grade_id("overlap-solution")
    with pytest.raises(ValueError, match="needs points"):
        nbgrader_metadata("overlap-check", "code", None)
    with pytest.raises(ValueError, match="earns no points"):
        nbgrader_metadata("overlap-answer", "code", 3)
