"""How long a judgement takes where the case is clear: the reference answer of every exercise, judged once.

The wait for other measurements is left out, and so is what `faster-model` compiles, to which the budget does not apply.
One that takes longer than it may, or that noise leaves undecided, is judged again, twice at most; the shortest counts.
Exit status 1 where that is over the limit.

    python benchmarks/bench_judging.py [--json] [SLUG …]
"""

import argparse
import json
import sys

from grader import judging
from grader.rebuild import reference_answers
from perflab import machine

LIMITS_S = {"async-on-cpu": 5.0} | dict.fromkeys(("alignment", "stride", "cache-size"), 25.0) \
    | dict.fromkeys(("data-parallel", "bidirectional-ring", "overlap", "fault-tolerance"), 30.0)  # fmt: skip
LIMIT_S = 20.0  # of all others


def judged(slug: str, cells: list[str]) -> dict:
    """One judgement: its status, and its seconds without the wait and the compiling."""
    verdict = judging.judge_answer(slug, cells, quiet_wait_s=0)
    models = verdict.evidence.get("models", {}).values()
    compiling_s = sum(model.get("optimise_s", 0.0) for model in models)
    times = {name: verdict.evidence[name] for name in ("probe_s", "hosts_s", "measured_s", "waited_s")}
    return {"status": verdict.status, "seconds": verdict.evidence["seconds"] - compiling_s, "compiling_s": compiling_s, **times}


def result(tries: list[dict], limit_s: float) -> tuple[str, float]:
    """(what came out, the seconds that count); only "kept" is as it should be."""
    passed = [t["seconds"] for t in tries if t["status"] == "pass"]
    if any(t["status"] == "fail" for t in tries):
        return "NOT PASSED", tries[-1]["seconds"]
    if not passed:
        return "UNDECIDED", tries[-1]["seconds"]
    return "kept" if min(passed) <= limit_s else "EXCEEDED", min(passed)


def main() -> int:
    answers = reference_answers()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("slugs", nargs="*", metavar="SLUG", default=sorted(answers), help="default: all exercises")
    parser.add_argument("--json", action="store_true", help="one JSON object an exercise")
    options = parser.parse_args()
    if unknown := set(options.slugs) - set(answers):
        parser.error(f"there is no exercise {', '.join(sorted(unknown))}; there are: {', '.join(sorted(answers))}")
    if not options.json:
        print(machine.line())
    failed = False
    judging.launcher().warm_up()
    for slug in options.slugs:
        limit_s, tries = LIMITS_S.get(slug, LIMIT_S), []
        for _ in range(3):
            tries.append(judged(slug, answers[slug]))
            said, seconds = result(tries, limit_s)
            if said in ("kept", "NOT PASSED"):
                break
        failed |= said != "kept"
        if options.json:
            print(json.dumps({"slug": slug, "limit_s": limit_s, "tries": tries, "result": said}), flush=True)
            continue
        compiling_s = tries[-1]["compiling_s"]
        notes = f"n = {len(tries)}" + (f", {compiling_s:.1f} s of compiling left out" if compiling_s else "")
        print(f"{slug:20} {seconds:6.1f} s of {limit_s:g} s  {said} ({notes})", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
