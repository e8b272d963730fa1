"""Judges answers in the sandbox, with the secret seed and the hidden cases: what grading calls."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import secrets
import sys
from functools import lru_cache
from pathlib import Path

from grader.sandbox import Box, RunResult, run_notebook, why_no_box
from perflab import judge
from perflab.launch import Launcher, SandboxError

HIDDEN = Path(__file__).parent / "hidden"
UNSAFE_NOTE = (
    "Graded without a sandbox (--unsafe-no-sandbox): the answer ran with the grader's own rights.",
    "评分时没有使用沙箱（--unsafe-no-sandbox）：答案以评分者的权限运行。",
)


def launcher(unsafe: bool = False) -> Launcher:
    """This process's launcher: one warm parent for all answers. Raises SandboxError where no sandbox can be made."""
    return _launcher(bool(unsafe))


def forget_launcher() -> None:
    """The next judgement starts a warm parent anew, as a fresh grader does."""
    _launcher.cache_clear()


@lru_cache
def _launcher(unsafe: bool) -> Launcher:
    if not unsafe:
        reason = why_no_box()
        if reason:
            raise SandboxError(
                f"answers can't be isolated here: {reason}. Nothing was graded."
                " To grade trusted answers all the same, pass --unsafe-no-sandbox."
            )
    made = Launcher(None if unsafe else Box, environ={"PERFLAB_AUTOGRADE": "1"})
    atexit.register(made.close)
    return made


def hidden_cases(slug: str) -> Path | None:
    """The folder of an exercise's secret cases, or None where it has none."""
    folder = HIDDEN / slug
    return folder if folder.is_dir() else None


def version(slug: str) -> str:
    """A fingerprint of all that a verdict depends on beside the answer itself."""
    return judge.exercise_version(slug, hidden_cases(slug))


def judge_answer(
    slug: str, cells: list[str], *, seed: int | None = None, unsafe: bool = False, quiet_wait_s: float = 20.0
) -> judge.Verdict:
    """Judges the code of an answer's cells. Whatever the answer does, this returns a verdict.

    seed: for the inputs; secret and new when None. Raises KeyError for an unknown exercise, SandboxError where
    answers can't be isolated and `unsafe` is not given.
    """
    verdict = judge.judge(
        slug, cells, launcher(unsafe), seed=secrets.randbits(63) if seed is None else seed, hidden=hidden_cases(slug),
        quiet_wait_s=quiet_wait_s,
    )  # fmt: skip
    if unsafe:
        en, zh = verdict.message.split("\n\n", 1)
        verdict.message = f"{en}\n{UNSAFE_NOTE[0]}\n\n{zh}\n{UNSAFE_NOTE[1]}"
        verdict.evidence["sandbox"] = False
    return verdict


def run_cells(sources: list[str], *, timeout_s: float = 60, unsafe: bool = False) -> RunResult:
    """Runs a notebook's code cells in the sandbox for their outputs."""
    return run_notebook(sources, timeout_s=timeout_s, launcher=launcher(unsafe))


def unsafe_from_environment() -> bool:
    """True where ``GRADER_UNSAFE_NO_SANDBOX=1`` is set: how the option reaches nbgrader's own commands."""
    return os.environ.get("GRADER_UNSAFE_NO_SANDBOX") == "1"


def main_judge(arguments: list[str]) -> int:
    """``python -m grader judge SLUG ANSWER.py``: exit status 0 whatever the verdict, 2 on misuse."""
    parser = argparse.ArgumentParser(prog="python -m grader judge", description="Judge one answer outside a notebook.")
    parser.add_argument("slug", help="the exercise, async-on-cpu for example")
    parser.add_argument("answer", type=Path, help="a Python file with the code of the answer cells")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, and nothing else")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="judge it N times, each with new inputs")
    parser.add_argument("--seed", type=int, help="seed of the inputs (the next repeat takes the next number)")
    parser.add_argument("--picture", type=Path, help="write the verdict's picture to this PNG file")
    parser.add_argument("--unsafe-no-sandbox", action="store_true", help="run the answer with your own rights")
    options = parser.parse_args(arguments)
    if options.slug not in judge.slugs():
        parser.error(f"there is no exercise {options.slug!r}; there are: {', '.join(judge.slugs())}")
    if options.repeat < 1:
        parser.error("--repeat needs a number from 1 up")
    try:
        cell = options.answer.read_bytes().decode("utf-8-sig")
    except OSError as error:
        parser.error(f"can't read the answer: {error}")
    except UnicodeDecodeError as error:
        parser.error(f"{options.answer} is not UTF-8 text ({error}); save it as UTF-8")
    for i in range(options.repeat):
        seed = None if options.seed is None else options.seed + i
        try:
            verdict = judge_answer(options.slug, [cell], seed=seed, unsafe=options.unsafe_no_sandbox)
        except SandboxError as error:
            print(f"python -m grader judge: {error}", file=sys.stderr)
            return 2
        print(json.dumps(verdict.as_json(), ensure_ascii=False) if options.json else verdict.message, flush=True)
        if options.picture and verdict.figure:
            options.picture.write_bytes(verdict.figure)
    return 0
