""":func:`check`: a student's own look at an answer, by the same judge that grades it."""

from __future__ import annotations

import ast
import os
import secrets
import sys
import textwrap
from pathlib import Path

AUTOGRADE = "PERFLAB_AUTOGRADE"  # set while a submission is graded: there only the judge's verdict counts


class NotPassed(Exception):
    """Raised by :func:`check` while nbgrader validates a notebook; its text is the verdict's message."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message alone, not the frames of check(), in lines that Validate doesn't cut off."""
        return [part for line in str(self).splitlines() for part in textwrap.wrap(line, 80) or [""]]


def check(slug: str, *answer, seed: int | None = None):
    """Judges your answer to an exercise on this machine, on public cases, and returns the Verdict (shown by a notebook).

    slug: the exercise's name, ``"async-on-cpu"`` for example; answer: the functions that the exercise asks for. They
    are run in a fresh process from the cells that define them, as when grading: an import or a helper that stands in
    another cell is missing there. seed: of the inputs; drawn anew when None. While a submission is graded, check()
    does nothing and returns None; under nbgrader's Validate, it returns None unless the answer fails.

    Raises KeyError for an unknown exercise, ValueError where a function's cell can't be found, NotPassed where Validate
    is to report that the answer fails.
    """
    if os.environ.get(AUTOGRADE) == "1":
        return None
    if sys.platform == "win32":
        raise OSError("perflab.check needs Linux or macOS (it forks processes); on Windows, use WSL.")
    from perflab import judge

    names = judge.exercise(slug).ENTRY_POINTS
    if len(answer) != len(names):
        raise ValueError(f"check({slug!r}, …) takes {', '.join(names)} after the name; {len(answer)} values were given")
    verdict = judge.judge(
        slug, cells_that_define(names), _launcher(), seed=secrets.randbits(63) if seed is None else seed, public=True, quiet_wait_s=5
    )
    if os.environ.get("NBGRADER_EXECUTION") == "validate":
        # Validate takes any value that is no number for full marks, and logs it whole. Only an error tells it otherwise.
        if verdict.status == "fail":
            raise NotPassed(verdict.message)
        return None
    return verdict


def cells_that_define(names) -> list[str]:
    """The sources of the executed cells that define `names` last, in the order they were run.

    Outside IPython: the text of the script that is running. Raises ValueError for a name that no cell defines.
    """
    history = _history()
    wanted: dict[int, str] = {}
    for name in names:
        index = next((i for i in range(len(history) - 1, -1, -1) if name in _defined(history[i])), None)
        if index is None:
            raise ValueError(f"no cell that was run defines `{name}`; run the cell with your answer first")
        wanted[index] = history[index]
    return [wanted[i] for i in sorted(wanted)]


def _history() -> list[str]:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        return list(shell.user_ns.get("In", []))
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise ValueError("check() finds your answer in a notebook or a script, not at a bare prompt")
    return [Path(path).read_text(encoding="utf-8")]


def _defined(cell: str) -> set[str]:
    """The names that a cell binds at its top level; none for a cell that is not Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        tree = ast.parse(TransformerManager().transform_cell(cell))
    except SyntaxError:
        return set()
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            found |= _bound(node)
    return found


def _bound(node: ast.AST) -> set[str]:
    """The names that a statement binds; those of a comprehension, a lambda or a nested function are their own."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)):
        return set()
    return set().union(*map(_bound, ast.iter_child_nodes(node)))


_started = None


def _launcher():
    """This kernel's launcher of plain processes (no sandbox: it is the student's own code on the student's own machine)."""
    global _started
    if _started is None:
        import atexit

        from perflab.launch import Launcher

        _started = Launcher(environ={AUTOGRADE: "1"})
        atexit.register(_started.close)
    return _started
