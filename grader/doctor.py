"""``python -m grader doctor``: what this machine can judge, what it can't and why, and how noisy it is now."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys

from grader import sandbox
from perflab import bench, judge, machine
from perflab.host import has_seccomp


def findings() -> list[tuple[str, bool | None, str]]:
    """(what, fine?, in words); None where it is neither good nor bad."""
    found: list[tuple[str, bool | None, str]] = []
    reason = sandbox.why_no_box()
    found.append(("sandbox", reason is None, reason or f"bubblewrap at {sandbox.bubblewrap()} makes one"))
    found.append((
        "system call filter", has_seccomp(),
        "libseccomp is here: a second layer inside the sandbox" if has_seccomp()
        else "libseccomp is missing; install `libseccomp2` and the Python package `pyseccomp`. Namespaces alone hold the answer",
    ))  # fmt: skip
    limited = sandbox.limited_for_a_whole_box()
    found.append((
        "memory limit", "memory" in limited or None,
        "a cgroup bounds a whole sandbox, the kernel's memory for its files (inodes) included" if "memory" in limited
        else "no cgroup can limit memory here: the limit holds for each process alone (rlimit), so an answer with many processes may use that many"
        " times as much. Nothing bounds the number of files (inodes) but the kernel's default, and nothing shared memory that no process maps",
    ))  # fmt: skip
    found.append((
        "process limit", "processes" in limited or None,
        "a cgroup counts the processes of each sandbox" if "processes" in limited
        else "no cgroup can count processes here: the limit (an rlimit) may be on those of all sandboxes together",
    ))  # fmt: skip
    root = os.geteuid() == 0
    found.append(("user", None, "root: answers run as nobody (65534)" if root else "not root: answers run as you, in a user namespace with no right"))
    cores = machine.usable_cores()
    found.append(("cores", cores > 1 or None, f"{cores}" if cores > 1 else "1: claims of parallel speed stay undecided"))
    for tool, use in (("gcc", "C answers"), ("clang", "C answers, a second compiler"), ("g++", "torch.compile, C++ programs")):
        path = shutil.which(tool)
        found.append((tool, bool(path) or (None if tool == "clang" else False), path or f"missing; needed for {use}"))
    if shutil.which("gcc"):
        said = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout.strip()
        here = os.path.isabs(said)
        found.append(("sanitizers", here, "gcc's address sanitizer is here" if here else "gcc has no libasan; C answers can't be checked for writes outside their buffers"))
    gpus = machine.gpus()
    found.append(("GPUs", None, ", ".join(g["name"] for g in gpus) or "none: GPU paths are skipped"))
    for item in machine.hidden():
        found.append(("hidden here", None, item["en"]))
    idle = judge.idle_fraction()
    found.append(("idle now", idle > 0.8, f"{idle:.0%} of the cores' time"))
    control = bench.compare(_work, _work, threshold=0.5, max_s=4, looks=(44,))
    off = bench.control_is_off(control.control_low, control.control_high)
    found.append((
        "noise now", not off,
        f"the same work against itself: {control.ratio:.3f}× ({control.low:.3f}–{control.high:.3f}, 99 %, n = {control.pairs})",
    ))  # fmt: skip
    for slug in judge.slugs():
        unmet = getattr(judge.exercise(slug), "unmet", lambda: None)()
        found.append((slug, unmet is None, unmet or "can be judged"))
    return found


def _work() -> None:
    sum(range(20_000))


def main_doctor(arguments: list[str]) -> int:
    """Exit status 1 where answers can't be graded at all (no sandbox), else 0."""
    parser = argparse.ArgumentParser(prog="python -m grader doctor", description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = findings()
    if options.json:
        print(json.dumps([{"what": w, "fine": ok, "says": text} for w, ok, text in found], ensure_ascii=False))
    else:
        print(machine.line())
        width = max(len(w) for w, _, _ in found)
        for what, ok, text in found:
            print(f"{ {True: '✓', False: '✗', None: '·'}[ok] } {what:{width}}  {text}")
    isolated = next(ok for what, ok, _ in found if what == "sandbox")
    if not isolated:
        print("No sandbox: nothing can be graded here unless --unsafe-no-sandbox is given.", file=sys.stderr)
    return 0 if isolated else 1
