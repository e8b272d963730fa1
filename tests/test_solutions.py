"""The reference answers that solutions/ gives instructors pass: each is one of the right answers that the suite judges, or is judged here."""

import ast

import pytest
from verdicts import answers, judged_as_promised

from grader import course_files
from perflab import judge


def reference_answers() -> dict[str, str]:
    """exercise → the code of its answer cells with the reference solution in them, without the markers around it."""
    found: dict[str, str] = {}
    for assignment in course_files.assignments():
        for cell in course_files.source_notebook(course_files.SOLUTIONS / f"{assignment}.md").cells:
            slug, role = course_files.split_grade_id(
                cell.metadata.get("nbgrader", {}).get("grade_id", "text-discuss")
            )
            if role.startswith("answer"):
                lines = [line for line in cell.source.split("\n") if " SOLUTION" not in line]
                found[slug] = found.get(slug, "") + "\n".join(lines) + "\n"
    return found


REFERENCES = reference_answers()


def program(code: str) -> str:
    """What the code does: without layout, comments and docstrings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def test_every_exercise_has_a_reference_answer():
    assert sorted(REFERENCES) == sorted(judge.slugs())


@pytest.mark.parametrize("slug", REFERENCES)
def test_reference_answer_passes(slug, tmp_path):
    right = [path.read_text() for path in answers(slug) if path.stem.startswith("right-")]
    if program(REFERENCES[slug]) not in map(program, right):
        path = tmp_path / "right-solution.py"
        path.write_text(REFERENCES[slug])
        judged_as_promised(slug, path)
