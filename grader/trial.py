"""``python -m grader trial``: judges every answer of a folder many times while the machine is disturbed on purpose.

It shows whether noise can move a verdict. The disturbers are this process's own children, bounded in number, in
memory and disk, and they end with it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from statistics import median

NOISES = ("none", "cpu", "memory", "io", "bursts")
# An answer whose first line contains this fails whatever the clock says; three repeats tell as much as twenty.
UNTIMED_MARK = "[correctness]"
UNTIMED_REPEATS = 3
# The share of verdicts that may be undecided while the machine is left alone, and while it is disturbed.
UNDECIDED_QUIET, UNDECIDED_DISTURBED = 0.02, 0.20


def _alive(parent: int) -> bool:
    return os.getppid() == parent


def _cpu(parent: int) -> None:
    while _alive(parent):
        sum(range(200_000))


def _memory(parent: int) -> None:
    import numpy as np

    a, b, c = (np.ones(8 << 20) for _ in range(3))  # 64 MiB each: beyond any cache
    while _alive(parent):
        np.multiply(b, 3.0, out=a)
        np.add(a, c, out=a)


def _io(parent: int) -> None:
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile() as file:
        while _alive(parent):
            file.seek(0)
            for _ in range(64):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())


def _bursts(parent: int) -> None:
    rng = random.Random(os.getpid())
    while _alive(parent):
        until = time.monotonic() + rng.uniform(0.1, 1.5)
        while time.monotonic() < until:
            sum(range(100_000))
        time.sleep(rng.uniform(0.1, 1.5))


@contextmanager
def noise(kind: str):
    """Disturbs the machine while the context lasts: all cores but one are kept busy (bursts: all of them, on and off)."""
    if kind not in NOISES:
        raise ValueError(f"no noise {kind!r}; there are {', '.join(NOISES)}")
    cores = os.cpu_count() or 1
    work = {"cpu": _cpu, "memory": _memory, "io": _io, "bursts": _bursts}.get(kind)
    count = 0 if work is None else cores if kind == "bursts" else max(1, cores - 1)
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=work, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for child in children:
        child.start()
    if children:
        time.sleep(1)

    def check() -> None:
        if not all(child.is_alive() for child in children):
            raise RuntimeError(f"a child that makes the noise {kind!r} ended by itself; the trial would show quiet verdicts")

    try:
        check()
        yield
        check()
    finally:
        for child in children:
            child.kill()
            child.join()


def expectation(path: Path) -> str:
    """What an answer's file name promises: ``pass`` for right-…, ``fail`` for wrong-… and cheat-…"""
    return "pass" if path.name.startswith("right") else "fail"


def untimed(text: str) -> bool:
    """Whether an answer's first line says that it fails on correctness alone."""
    return UNTIMED_MARK in text.split("\n", 1)[0]


def expected_words(text: str) -> str | None:
    """The words that the message on an answer must contain, from its first line ("Expect: …"); None where it names none."""
    first = text.split("\n", 1)[0]
    return first.partition("Expect: ")[2].strip() or None


def trial(slug: str, answers: list[Path], repeat: int, kind: str, *, unsafe: bool = False, report=None) -> list[dict]:
    """Judges each answer `repeat` times under one noise. A row an answer: name, counts of statuses, median seconds.

    ``unsaid`` holds the messages of decided verdicts that do not contain the words the answer's first line expects,
    ``others`` those of verdicts other than the promised one.
    """
    from grader.judging import judge_answer

    rows = []
    with noise(kind):
        for path in answers:
            text = path.read_text(encoding="utf-8")
            times = min(repeat, UNTIMED_REPEATS) if untimed(text) else repeat
            words = expected_words(text)
            counts, seconds, points, unsaid, others = Counter(), [], [], [], []
            for _ in range(times):
                verdict = judge_answer(slug, [text], unsafe=unsafe)
                counts[verdict.status] += 1
                points.append(verdict.points)
                seconds.append(verdict.evidence["seconds"])
                if verdict.status != expectation(path):
                    others.append(verdict.message)
                if words and verdict.status != "inconclusive" and words not in verdict.message.split("\n\n")[0]:
                    unsaid.append(verdict.message)
            rows.append({
                "answer": path.stem, "noise": kind, "expected": expectation(path), "n": times,
                **{s: counts[s] for s in ("pass", "fail", "inconclusive")},
                "points": (min(points), max(points)), "seconds": median(seconds), "unsaid": unsaid, "others": others,
            })  # fmt: skip
            if report:
                report(rows[-1])
    return rows


def flipped(row: dict) -> bool:
    """True where a right answer failed or a wrong one passed."""
    return bool(row["fail"] if row["expected"] == "pass" else row["pass"])


def undecided(rows: list[dict]) -> tuple[str, bool]:
    """What share of one noise's verdicts is undecided, in words, and whether that is too much."""
    limit = UNDECIDED_QUIET if rows[0]["noise"] == "none" else UNDECIDED_DISTURBED
    shares = {}
    for of, chosen in (("right answers", [row for row in rows if row["expected"] == "pass"]), ("all answers", rows)):
        if chosen:
            shares[of] = sum(row["inconclusive"] for row in chosen), sum(row["n"] for row in chosen)
    too_many = any(count > limit * n for count, n in shares.values())
    said = ", ".join(f"{count / n:.1%} of {of} ({count} of {n})" for of, (count, n) in shares.items())
    return f"undecided, noise {rows[0]['noise']}: {said}; at most {limit:.0%}" + ("  <-- too many" if too_many else ""), too_many


def main_trial(arguments: list[str]) -> int:
    """Prints the table. Exit status 1: a verdict on the wrong side, or too many undecided; 2: misuse, or no sandbox."""
    from perflab import judge
    from perflab.launch import SandboxError

    parser = argparse.ArgumentParser(prog="python -m grader trial", description=__doc__)
    parser.add_argument("slug")
    parser.add_argument("--answers", type=Path, metavar="DIR", help="default: tests/answers/SLUG; names begin with right-, wrong- or cheat-")
    parser.add_argument("--only", default="*", metavar="GLOB", help="only answers whose name matches")
    parser.add_argument("--repeat", type=int, default=20, metavar="N")
    parser.add_argument("--noise", choices=[*NOISES, "all"], default="none")
    options = parser.parse_args(arguments)
    if options.slug not in judge.slugs():
        parser.error(f"there is no exercise {options.slug!r}; there are: {', '.join(judge.slugs())}")
    if options.repeat < 1:
        parser.error("--repeat needs a number from 1 up")
    folder = options.answers or Path(__file__).parent.parent / "tests" / "answers" / options.slug
    answers = sorted(folder.glob(f"{options.only}.py"))
    if not answers:
        parser.error(f"no answer {options.only}.py in {folder}")
    print(f"{'answer':44} {'noise':7} {'n':>3} {'pass':>5} {'fail':>5} {'undecided':>9} {'points':>9} {'seconds':>8} {'unsaid':>6}")

    def report(row):
        low, high = row["points"]
        wrong = "  <-- wrong side" if flipped(row) else ""
        print(f"{row['answer']:44} {row['noise']:7} {row['n']:3} {row['pass']:5} {row['fail']:5} {row['inconclusive']:9}"
              f" {low:4g}–{high:<4g} {row['seconds']:8.2f} {len(row['unsaid']):6}{wrong}", flush=True)  # fmt: skip
        for message in (row["unsaid"] or row["others"])[:1]:
            print("    said: " + message.split("\n\n")[0].replace("\n", "\n    "), flush=True)

    noises = NOISES if options.noise == "all" else [options.noise]
    try:
        tables = [trial(options.slug, answers, options.repeat, kind, report=report) for kind in noises]
    except SandboxError as error:
        print(f"python -m grader trial: {error}", file=sys.stderr)
        return 2
    shares = [undecided(rows) for rows in tables]
    for said, _ in shares:
        print(said)
    bad = sum(flipped(row) for rows in tables for row in rows)
    if bad:
        print(f"{bad} of {sum(map(len, tables))} rows on the wrong side", file=sys.stderr)
    return int(bool(bad) or any(too_many for _, too_many in shares))
