"""The reference answers that solutions/ gives instructors pass: each is one of the right answers that the suite judges, or is judged here."""

import ast

import pytest
from verdicts import answers, judged_as_promised

from grader.rebuild import reference_answers
from perflab import judge

REFERENCES = {slug: "\n".join(cells) for slug, cells in reference_answers().items()}


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
