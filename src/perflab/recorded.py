"""Measurements that need what a reader may not have (a GPU, a C++ compiler): run, or recall a recorded run.

A page writes such a measurement as a function without arguments that returns plain values (numbers, strings,
lists, dicts), and asks

    result = recorded.measure_or_recall("12-3-streams", streams, possible=torch.cuda.is_available(),
                                        needs=("CUDA GPU", "CUDA GPU"))

Where it is possible the function runs. Elsewhere the last recorded run is shown, with its machine and date
and the fingerprint of the code that made it; where there is none, the page says so and `result` is None. A
run is recorded by executing the page with PERFLAB_RECORD=1: into book/assets/recorded/<name>.json.
"""

import datetime
import hashlib
import inspect
import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

from perflab import machine


def measure_or_recall(
    name: str, measure: Callable[[], dict], *, possible: bool, needs: tuple[str, str]
) -> dict | None:
    """The result of `measure()`, or a recorded one, or None; what wasn't measured here is labelled in print.

    `name`: that of the recording. `possible`: whether this machine can run the measurement. `needs`: what it
    takes, in English and Chinese, for the line that is printed where this machine lacks it.
    """
    code = fingerprint(measure)
    if possible:
        result = json.loads(json.dumps(measure()))  # as from a recording: lists, not tuples; keys are strings
        if os.environ.get("PERFLAB_RECORD") == "1":
            _write(name, code, result)
        return result
    space = " " if needs[1][0].isascii() else ""  # between Chinese and Latin letters
    print(f"This machine has no {needs[0]}. · 本机没有{space}{needs[1]}。")
    path = folder() / f"{name}.json"
    if not path.is_file():
        print("Not recorded: run this page where there is one.")
        print("尚无录制结果：请在具备条件的机器上运行本页。")
        return None
    run = json.loads(path.read_text(encoding="utf-8"))
    print("Recorded run, not from this machine · 录制结果，并非本机所测:")
    print(f"{run['machine']}; code {run['code']}")
    if run["code"] != code:
        print("The code has changed since this recording. · 录制之后，代码已有改动。")
    return run["result"]


def fingerprint(measure: Callable | str) -> str:
    """Twelve hexadecimal digits that change when the function's source (or the source given) changes."""
    source = measure if isinstance(measure, str) else inspect.getsource(measure)
    return hashlib.sha256(textwrap.dedent(source).strip().encode()).hexdigest()[:12]


def folder() -> Path:
    """Where recordings lie: beside the page that is executed, else in the course's own checkout."""
    beside = Path("assets/recorded")
    return beside if beside.is_dir() else Path(__file__).parents[2] / "book/assets/recorded"


def _write(name: str, code: str, result: dict) -> None:
    run = {
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.line(),
        "versions": machine.describe()["versions"],
        "code": code,
        "result": result,
    }
    path = folder() / f"{name}.json"
    path.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
