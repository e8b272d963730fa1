"""Verdicts by content: the same answer, exercise and kind of machine are judged once.

One small JSON file a record, written whole or not at all, so that a grader killed at any moment has lost nothing it
had finished. A record is what `grader.farm` computed: a verdict, or the outputs of a notebook's run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from pathlib import Path

from grader import judging
from perflab import machine


@functools.cache
def hardware_class() -> str:
    """The kind of machine this is, e.g. "x86_64 AMD EPYC, 2 cores": figures of two classes are never mixed."""
    known = machine.describe()
    cpu = known["cpu"]
    gpus = "".join(f", {gpu['name']}" for gpu in known["gpus"])
    return f"{cpu['architecture']} {cpu['name'] or 'unknown processor'}, {cpu['usable']} cores{gpus}"


@functools.cache
def _version(slug: str) -> str:
    return judging.version(slug)


def key_of(kind: str, slug: str, cells: list[str], hardware: str, unsafe: bool) -> str:
    """The content key of one piece of work; `kind` is "judge" or "run"."""
    content = [kind, slug, cells, _version(slug), hardware, unsafe]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all, whatever happens meanwhile; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hidden: in a student's folder it is never taken for a submission.
    part = path.with_name(f".{os.getpid()}-{threading.get_ident()}.part")
    part.write_bytes(content)
    os.replace(part, path)


class Store:
    """Records under `folder`, one file each."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> dict | None:
        """The record, or None where there is none that can be read: it is then made again."""
        try:
            record = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def put(self, key: str, record: dict) -> None:
        write_whole(self.path(key), json.dumps(record).encode())


class HardwareClasses:
    """Which kind of machine an assignment is judged on, kept in a file: one assignment, one kind."""

    def __init__(self, course: Path):
        self.path = course / "verdicts" / "hardware.json"

    def _known(self) -> dict[str, str]:
        if not self.path.is_file():
            return {}
        try:
            return dict(json.loads(self.path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise ValueError(
                f"{self.path} is damaged; delete it, and the next grading writes down its own kind of machine"
            ) from None

    def get(self, assignment: str) -> str | None:
        """The kind of machine, or None where nothing was judged yet. Raises ValueError where the file is damaged."""
        return self._known().get(assignment)

    def keep(self, assignment: str, kind: str) -> None:
        """Writes the kind down where none is yet."""
        known = self._known()
        if assignment in known:
            return
        write_whole(self.path, json.dumps(known | {assignment: kind}, indent=1).encode())
