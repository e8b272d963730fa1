"""What every exercise's suite does with tests/answers/SLUG: judge each answer and look at what it is told."""

import re
from pathlib import Path

from grader import trial
from grader.judging import judge_answer

ANSWERS = Path(__file__).parent / "answers"


def answers(slug: str) -> list[Path]:
    """The answer files of an exercise: right-…, wrong-…, cheat-…"""
    found = sorted((ANSWERS / slug).glob("*.py"))
    assert found, f"no answers in {ANSWERS / slug}"
    return found


def judged_as_promised(slug: str, path: Path):
    """Judges an answer, asserts what its name promises and that its message says what its first line expects."""
    text = path.read_text()
    verdict = judge_answer(slug, [text])
    for _ in range(2):  # noise may leave a verdict open now and then, and the suite runs on whatever machine there is
        if verdict.status == "inconclusive":
            verdict = judge_answer(slug, [text])
    english, chinese = verdict.message.split("\n\n")
    assert verdict.status == trial.expectation(path), verdict.message
    assert (verdict.points == verdict.max_points) is (verdict.status == "pass")
    assert chinese.startswith(("通过", "未通过"))
    expected = re.search(r"Expect: (.+)", text.split("\n", 1)[0])
    if expected:
        assert expected[1].strip() in english, verdict.message
    return verdict
