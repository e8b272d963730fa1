"""What every exercise's suite does with tests/answers/SLUG: judge each answer and look at what it is told."""

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
    """Judges an answer, asserts what its name promises and that its message says what its first line expects.

    The suite runs on whatever machine there is, so noise may leave a verdict open now and then, or have the message name
    another of several things that are wrong: then the judge is asked again, twice at most, or once where an answer fails
    on correctness alone (ranks that race do not always lose in the same way). A verdict on the wrong side fails at once.
    """
    text = path.read_text()
    words = trial.expected_words(text)
    for _ in range(2 if trial.untimed(text) else 3):
        verdict = judge_answer(slug, [text])
        english, chinese = verdict.message.split("\n\n")
        assert verdict.status in (trial.expectation(path), "inconclusive"), verdict.message
        if verdict.status != "inconclusive" and (words is None or words in english):
            break
    assert verdict.status == trial.expectation(path), verdict.message
    assert words is None or words in english, verdict.message
    assert (verdict.points == verdict.max_points) is (verdict.status == "pass")
    assert chinese.startswith(("通过", "未通过"))
    return verdict
