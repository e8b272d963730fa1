"""Verdicts by content: the same answer, exercise and kind of machine are judged once.

One small JSON file a record, written whole or not at all, so that a grader killed at any moment has lost nothing it
had finished. A record is what `grader.farm` computed: a verdict, or the outputs of a notebook's run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path

from grader.course_files import GRADER, ROOT

PERFLAB = ROOT / "src" / "perflab"
NOT_JUDGING = {"plot.py", "widgets.py"}  # pictures on pages: a new colour must not cost a class its verdicts
VERSIONS_THAT_COUNT = ("torch", "numpy")


@functools.cache
def hardware_class() -> str:
    """The kind of machine this is, e.g. "x86_64 AMD EPYC 9R14, 2 cores": figures of two classes are never mixed."""
    model = platform.processor() or "unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux, or an architecture that names no model: what `platform` says has to do
    gpus = sorted(path.name for path in Path("/proc/driver/nvidia/gpus").glob("*"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()} {model}, {cores} cores" + (f", {len(gpus)} NVIDIA GPUs" if gpus else "")


@functools.cache
def exercise_version(slug: str) -> str:
    """Hash of all that can change a verdict on one exercise: its judge, hidden cases, sandbox, library versions."""
    module = slug.replace("-", "_")
    files = [path for path in sorted(PERFLAB.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    files = [path for path in files if path.name not in NOT_JUDGING]
    files = [path for path in files if path.parent.name != "exercises" or path.stem in (module, "__init__")]
    files += [GRADER / "judging.py", GRADER / "sandbox.py"]
    files += [path for path in sorted((GRADER / "hidden" / slug).rglob("*")) if path.is_file()]
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr([metadata.version(name) for name in VERSIONS_THAT_COUNT]).encode())
    return digest.hexdigest()


def key_of(kind: str, slug: str, cells: list[str], hardware: str, unsafe: bool) -> str:
    """The content key of one piece of work; `kind` is "judge" or "run"."""
    content = [kind, slug, cells, exercise_version(slug), hardware, unsafe]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Store:
    """Records under `folder`, one file each."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> dict | None:
        try:
            return json.loads(self.path(key).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def put(self, key: str, record: dict) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(record), encoding="utf-8")
        os.replace(part, path)
