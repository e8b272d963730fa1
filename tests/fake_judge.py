"""A judge that decides by a mark in the answer, for tests of the pipeline: `# verdict: fail 3`.

Its verdicts are of every kind within milliseconds. As a Dask preload it also works in the farm's workers.
"""

from __future__ import annotations

import os
import re
import time

from grader import judging
from grader.sandbox import RunResult
from perflab.judge import Verdict

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63600000000200"
    "0148afa4710000000049454e44ae426082"
)


def judge_answer(slug, cells, *, seed=None, unsafe=False, quiet_wait_s=0.0):
    text = "\n".join(cells)
    marks = re.findall(r"# verdict: (\w+) ?([\d.]*)", text) or [("pass", "10")]
    status, points = marks[-1]
    time.sleep(0.02)
    if status == "die":
        os._exit(3)
    if status == "raise":
        raise RuntimeError("the judge itself failed")
    if not text.strip():
        raise AssertionError("an empty answer is never judged")
    points = float(points or 0)
    message = f"Measured {points:g}, expected 10 <b>or more</b>.\n\n测得 {points:g}，应为 10 <b>以上</b>。"
    return Verdict(slug, status, points, 10.0, {"ratio": 1.05, "interval": [0.9, 1.2]}, message, PICTURE)


def run_cells(sources, *, timeout_s=60, unsafe=False):
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": "a warning\n"},
        {
            "output_type": "execute_result",
            "execution_count": 1,
            "metadata": {},
            "data": {"text/plain": "1000.0"},
        },
        {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<script>alert(1)</script>"}},
        {"output_type": "error", "ename": "E", "evalue": "e", "traceback": ["<script>alert(2)</script>"]},
    ]
    return RunResult([list(outputs) for _ in sources], None)


def install() -> None:
    judging.judge_answer, judging.run_cells = judge_answer, run_cells


def dask_setup(worker) -> None:
    install()
