"""12.4 alignment: the right answers pass, the wrong ones and the cheats fail and are told why."""

import numpy as np
import pytest
from verdicts import answers, judged_as_promised

from grader.judging import judge_answer
from perflab import judge
from perflab.exercises import alignment

ANSWERS = answers("alignment")


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.stem)
def test_verdict(path):
    verdict = judged_as_promised("alignment", path)
    drawn = (verdict.figure or b"").startswith(b"\x89PNG")
    assert drawn is bool("here" in verdict.evidence or verdict.evidence.get("device", {}).get("unit_ns"))


def test_a_wrong_experiment_keeps_the_points_of_right_c():
    text = next(p for p in ANSWERS if p.stem == "wrong-offset-not-address").read_text()
    verdict = judge_answer("alignment", [text])
    assert verdict.evidence["parts"]["exact"] == "shown"
    assert verdict.evidence["parts"]["device"] == "wrong"
    assert 3 <= verdict.points < 10


def test_expected_results():
    data = np.arange(32, dtype=np.uint8)
    case = {"kind": 0, "offset": 1, "stride": 2, "count": 3, "value": 0, "data": data}
    words = [int.from_bytes(bytes(range(i, i + 8)), "little") for i in (1, 3, 5)]
    assert alignment.expected(case)[0] == sum(words) % 2**64
    total, after = alignment.expected(case | {"kind": 1, "stride": 8, "value": 2**64 - 1, "count": 2})
    assert total == 0
    assert after.tolist() == [0] + [255] * 16 + list(range(17, 32))


def test_cases_stay_inside_and_include_the_edges():
    for seed in range(50):
        cases = alignment.cases(np.random.default_rng(seed))
        assert {0, 1, 2} <= {case["count"] for case in cases}
        ends = []
        for case in cases:
            last = case["offset"] + (case["count"] - 1) * case["stride"] + 8 if case["count"] else case["offset"]
            assert last <= case["data"].size
            ends.append(last == case["data"].size)
            assert not case["kind"] or case["stride"] == 0 or case["stride"] >= 8
        assert sum(ends) >= 20


def test_places():
    page = alignment.PAGE_BYTES
    assert [alignment.place(a) for a in (0, 4, 56, 57, 63, 64, page - 8, page - 7, page - 1)] == [
        "aligned", "unaligned", "aligned", "line_split", "line_split", "aligned", "aligned", "page_split", "page_split",
    ]  # fmt: skip


def test_exercise_is_listed():
    assert "alignment" in judge.slugs()
