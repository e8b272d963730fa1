"""The box an answer runs in: bubblewrap's namespaces, then seccomp and resource limits, cgroups where writable.

A box is a bubblewrap process that only sleeps. It has no network, sees a read-only system, Python and perflab and
nothing else, and owns two small tmpfs. A host (perflab.host), forked from the warm parent with torch imported,
steps into its namespaces, so that a fresh sandbox costs milliseconds instead of a torch import. When the box's
first process ends, the kernel ends everything in its PID namespace: nothing survives.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import perflab
from perflab.host import has_seccomp
from perflab.launch import AnswerFailed, Launcher, SandboxError

TMP_BYTES = 512 << 20
# A cgroup is empty from when it is made until bubblewrap runs, 20 s at most; an empty one older than this is nobody's.
ABANDONED_S = 60
# The files that are missing where the kernel does not account swap.
_SWAP_LIMITS = ("memory.memsw.limit_in_bytes", "memory.swap.max")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/conda")
_ETC = (
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
)


def bubblewrap() -> str | None:
    """The path of bubblewrap, or None where there is none."""
    return shutil.which("bwrap")


def why_no_box() -> str | None:
    """None where a box can be made; otherwise the reason, in words for the instructor."""
    if sys.platform != "linux":
        return "the sandbox needs Linux (namespaces); on this system answers can't be isolated"
    if bubblewrap() is None:
        return "bubblewrap is missing; install the package `bubblewrap`"
    try:
        box = Box({"memory_bytes": 1 << 30, "processes": 16})
    except SandboxError as error:
        return str(error)
    box.kill()
    return None


def visible_paths() -> list[str]:
    """What the box shows, read-only: Python, its packages, perflab. Never the course, the solutions or the grader."""
    paths = {sys.base_prefix, sys.prefix, sysconfig.get_paths()["stdlib"], *site.getsitepackages()}
    paths.add(str(Path(perflab.__file__).resolve().parent))
    shown: list[str] = []
    for path in sorted(os.path.realpath(p) for p in paths if os.path.exists(p)):
        if not any(path == s or path.startswith(s + "/") for s in (*_SYSTEM, *shown)):
            shown.append(path)
    return shown


class Box:
    """One bubblewrap sandbox with nothing in it yet.

    Attributes: `pid` (of its first process, seen from here), `userns` (True when it has a user namespace of its own,
    that is unless the grader is root), `directory` (the writable place inside), `seccomp`, `counts_processes`.
    """

    directory = "/tmp"

    def __init__(self, limits: dict):
        self.userns = os.getuid() != 0
        self.seccomp = has_seccomp()
        program = bubblewrap()
        if program is None:
            raise SandboxError("bubblewrap is missing; install the package `bubblewrap`")
        self._cgroups = _Cgroups(limits["memory_bytes"] + TMP_BYTES, limits["processes"])
        info, info_in = os.pipe()
        command = [
            program,
            *self._arguments(),
            "--info-fd",
            str(info_in),
            "--",
            "/bin/sh",
            "-c",
            "echo ready; exec sleep infinity",
        ]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[info_in], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin"}, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(info_in)
        try:
            ready, _, _ = select.select([self._process.stdout], [], [], 20)
            if not ready or self._process.stdout.readline() != b"ready\n":
                self._process.kill()
                said = self._process.communicate()[1].decode("utf-8", "replace").strip()
                self._cgroups.remove()
                raise SandboxError(f"bubblewrap could not make a sandbox: {said or 'it said nothing'}")
            with open(info, closefd=False) as file:
                self.pid = json.load(file)["child-pid"]
        finally:
            os.close(info)
        try:
            self._cgroups.add(self.pid)
        except OSError as error:
            self.kill()
            raise SandboxError(f"the sandbox's cgroup was lost while it was made ({error}); try again") from error
        self.counts_processes = "processes" in self._cgroups.limited

    def _arguments(self) -> list[str]:
        arguments = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
                     "--hostname", "answer", "--die-with-parent"]  # fmt: skip
        arguments += ["--unshare-user"] if self.userns else ["--cap-drop", "ALL"]
        for path in _SYSTEM:
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                arguments += ["--ro-bind", path, path]
        # before what is shown: Python or the course may themselves lie under /tmp
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for path in ("/tmp", "/dev/shm"):
            arguments += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", path]
        shown = visible_paths()
        for folder in sorted(
            {str(parent) for path in (*shown, *_ETC) for parent in Path(path).parents} - {"/"}
        ):
            # bubblewrap would make these for its own user alone, and the answer runs as another
            arguments += ["--perms", "0755", "--dir", folder]
        for path in _ETC:
            arguments += ["--ro-bind-try", path, path]
        for path in shown:
            arguments += ["--ro-bind", path, path]
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]

    def adopt(self, pid: int) -> None:
        """Puts a process that entered the box under its cgroups."""
        self._cgroups.add(pid)

    def cpu_s(self) -> float | None:
        """CPU seconds of all that ever ran in the box; None where no control group counts them."""
        return self._cgroups.cpu_s()

    def kill(self) -> None:
        """Ends every process in the box. Returns when they are gone."""
        # The first process of the PID namespace, not bubblewrap's outer one: its death takes all others along.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()
        self._cgroups.remove()


class _Cgroups:
    """Memory and process limits for a whole box, where the kernel lets us: version 1 hierarchies or a version 2 tree.

    `limited` says which hold: "memory", "processes", both or none. Memory includes what the kernel itself needs for
    the box, such as the inodes of its files.
    """

    def __init__(self, memory_bytes: int, processes: int):
        roots = cgroup_roots()
        _remove_abandoned(roots)
        self._folders: list[Path] = []
        self._cpu_file: Path | None = None  # nanoseconds in version 1, a table in version 2
        self.limited: set[str] = set()
        version_1 = {
            "memory": {"memory.limit_in_bytes": memory_bytes, "memory.memsw.limit_in_bytes": memory_bytes},
            "pids": {"pids.max": processes},
            "cpuacct": {},
        }
        version_2 = {"memory.max": memory_bytes, "memory.swap.max": 0, "pids.max": processes}
        name = f"perflab-{uuid.uuid4().hex[:12]}"
        for root in roots:
            folder = root / name
            try:
                folder.mkdir()
                self._folders.append(folder)
                for file, value in version_1.get(root.name, version_2).items():
                    if file in _SWAP_LIMITS and not (folder / file).exists():
                        continue
                    (folder / file).write_text(str(value))
                    self.limited.add("processes" if file == "pids.max" else "memory")
            except OSError:
                self.remove()
                self._folders, self.limited = [], set()
                return
        files = (folder / name for folder in self._folders for name in ("cpuacct.usage", "cpu.stat"))
        self._cpu_file = next(filter(Path.exists, files), None)

    def cpu_s(self) -> float | None:
        """CPU seconds of all that ever ran in the box; None where the kernel does not count them here."""
        if self._cpu_file is None:
            return None
        with contextlib.suppress(OSError):  # gone with the box
            words = self._cpu_file.read_text().split()
            return int(words[0]) / 1e9 if len(words) == 1 else int(words[words.index("usage_usec") + 1]) / 1e6
        return None

    def add(self, pid: int) -> None:
        for folder in self._folders:
            with contextlib.suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for folder in self._folders:
            for _ in range(100):  # the last processes take a moment to leave
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)


def _remove_abandoned(roots: list[Path]) -> None:
    """Removes the cgroups of judges that were killed."""
    for root in roots:
        for folder in root.glob("perflab-*"):
            with contextlib.suppress(OSError):  # a box is in it, or another judge was faster
                if time.time() - folder.stat().st_mtime > ABANDONED_S:
                    folder.rmdir()


def cgroup_roots(base: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Folders in which a cgroup that limits memory or processes, or counts CPU time, can be made; empty where none is writable."""
    if (base / "cgroup.controllers").exists():
        return [base] if os.access(base, os.W_OK) and _delegates(base) else []
    return [
        base / kind
        for kind in ("memory", "pids", "cpuacct")
        if os.access(base / kind, os.W_OK) and (base / kind / "cgroup.procs").exists()
    ]


def _delegates(base: Path) -> bool:
    """Whether the folders of a version 2 cgroup have limits of memory and processes, which this turns on if need be."""
    needed = {"memory", "pids"}
    control = base / "cgroup.subtree_control"
    try:
        if not needed <= set(control.read_text().split()):
            control.write_text("+memory +pids")
    except OSError:  # not delegated to us, or processes lie in `base` itself, as in most containers
        return False
    return True


def limited_for_a_whole_box() -> set[str]:
    """What cgroups limit here for a whole box, tried out: "memory", "processes", both or none."""
    cgroups = _Cgroups(1 << 30, 16)
    cgroups.remove()
    return cgroups.limited


# ---------------------------------------------------------------- a whole notebook


@dataclass
class RunResult:
    """Outputs of a notebook's code cells, one list a cell (nbformat dicts), and a note where the run was cut short."""

    outputs: list[list[dict]]
    note: str | None = None


def run_notebook(sources: list[str], *, timeout_s: float = 60, launcher: Launcher) -> RunResult:
    """Runs code cells one after the other as a kernel would and returns what they show.

    It never raises for what the cells do: a cell that never ends, ends the process or prints without end is
    followed by a note, and the remaining cells stay without output.
    """
    outputs: list[list[dict]] = [[] for _ in sources]
    with launcher.start(environ={"PERFLAB_AUTOGRADE": "1"}, cpu_s=int(timeout_s) + 5) as host:
        deadline = time.monotonic() + timeout_s  # what a warm parent needs to start is not the notebook's
        for i, source in enumerate(sources):
            if not source.strip():
                continue
            try:
                outputs[i] = host.run_cell(source, timeout_s=max(0.1, deadline - time.monotonic()))
            except AnswerFailed as error:
                note = f"{error.en}\n\n{error.zh}"
                outputs[i] = [{"output_type": "stream", "name": "stdout", "text": note + "\n"}]
                return RunResult(outputs, note)
    return RunResult(outputs)
