"""The process an answer lives in.

``python -I -m perflab.host FD`` is the *warm parent*: it imports torch, NumPy and IPython once and then forks a
host for every request that arrives on the Unix socket FD. A host steps into the box it is told (the namespaces of
a bubblewrap process), gives up every privilege, runs the answer's cells as ``__main__`` and serves calls.

Nothing here is trusted once an answer has run: it shares the process. The judge (perflab.judge) therefore believes
only its own clock, its own data and what it sees from outside. The warm parent itself never runs an answer's code
and holds no secret, since every host inherits its memory.
"""

from __future__ import annotations

import ast
import asyncio
import ctypes
import errno
import gc
import inspect
import io
import json
import linecache
import os
import resource
import signal
import socket
import sys
import threading
import traceback
import types
from contextlib import nullcontext
from ctypes.util import find_library
from importlib.util import find_spec

from perflab import wire

ANSWER_FILE = "answer.py"
NOBODY = 65534
_descriptors: dict[str, int] = {}


def descriptor(name: str) -> int:
    """The number of a file descriptor that the judge handed to this process (``"wire"``, say). KeyError if none."""
    return _descriptors[name]


# ---------------------------------------------------------------- the warm parent


def warm_parent(control_fd: int) -> None:
    """Serves requests for hosts until the control socket closes."""
    control = socket.socket(fileno=control_fd)
    shell = _make_shell()
    import torch

    if has_seccomp():
        import pyseccomp  # noqa: F401  it searches for its library with programs that a host can't see
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count()))  # whatever the judge that started us is pinned to
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the judge, which closes the socket
    gc.collect()
    gc.freeze()  # a host's first collection would otherwise copy every page of the parent
    control.send(b"ready")
    while True:
        raw, fds, _, _ = socket.recv_fds(control, 1 << 16, 32)
        if not raw:
            return
        if os.fork() == 0:
            control.close()
            try:
                _keeper(json.loads(raw), fds, shell)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def _keeper(request: dict, fds: list[int], shell) -> None:
    """Enters the box, starts the host in it, and tells the judge its process number and its end."""
    channel, output, status, *extra = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _die_with_parent()
    try:
        if request["box_pid"]:
            _enter(request["box_pid"], request["userns"])
        pid = os.fork()  # a PID namespace is entered by the next child
    except OSError as error:
        os.write(status, f"refused {error}\n".encode())
        os._exit(1)
    if pid == 0:
        os.close(status)
        _descriptors.update(zip(request["names"], extra, strict=True))
        try:
            _become_host(request, channel, output)
            _serve(wire.Connection(socket.socket(fileno=channel)), shell)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    for fd in (channel, output, *extra):
        os.close(fd)
    os.write(status, f"started {pid}\n".encode())
    _, how = os.waitpid(pid, 0)
    os.write(status, f"ended {os.waitstatus_to_exitcode(how)}\n".encode())
    os._exit(0)


_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEW = dict(ns=0x00020000, cgroup=0x02000000, uts=0x04000000, ipc=0x08000000, user=0x10000000,
                  pid=0x20000000, net=0x40000000)  # fmt: skip
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47
_LINUX = sys.platform == "linux"


def _enter(box_pid: int, userns: bool) -> None:
    kinds = [k for k in _CLONE_NEW if k != "user" or userns]
    fd = os.pidfd_open(box_pid)
    if _libc.setns(fd, sum(_CLONE_NEW[k] for k in kinds)):
        raise OSError(ctypes.get_errno(), f"can't enter the box: {os.strerror(ctypes.get_errno())}")
    os.close(fd)


def _die_with_parent() -> None:
    if _LINUX:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _become_host(request: dict, channel: int, output: int) -> None:
    """The order matters: affinity and descriptors while allowed, then limits, then privileges, then seccomp."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    keep = {0, 1, 2, channel, *_descriptors.values()}
    for fd in [int(name) for name in os.listdir("/proc/self/fd" if _LINUX else "/dev/fd")]:
        if fd not in keep:
            try:
                os.close(fd)
            except OSError as error:  # the listing's own descriptor is gone already
                if error.errno != errno.EBADF:
                    raise
    if request["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cpus"])
    if request["nice"]:
        os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    os.environ.clear()
    os.environ.update(request["environ"])
    os.umask(0o022)
    for name, value in request["limits"].items():
        limit = getattr(resource, name, None)
        if limit is None:
            continue
        if name == "RLIMIT_AS":
            if not _LINUX:
                continue
            with open("/proc/self/statm") as file:
                value += int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        soft = min(value, resource.getrlimit(limit)[1] & ((1 << 63) - 1))
        # a second apart, so that the process ends by SIGXCPU, which says why, before SIGKILL, which does not
        resource.setrlimit(limit, (soft, soft + 1 if name == "RLIMIT_CPU" else soft))
    if request["box_pid"]:
        for capability in range(64):  # while there is a right to give rights up
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        if os.getuid() == 0 and not request["userns"]:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        _drop_capabilities()
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self belongs to root and common libraries fail
    _die_with_parent()  # again: a change of user clears it
    os.chdir(request["directory"])
    if request["seccomp"]:
        _filter_system_calls()
    gc.enable()


def _drop_capabilities() -> None:
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "can't drop capabilities")


# What an answer has no use for and an escape often starts with. Affinity is in it so that an answer pinned to one
# core can't load the one its reference runs on.
REFUSED_SYSTEM_CALLS = (
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise", "mount", "umount2",
    "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
    "unshare", "setns", "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load", "kexec_file_load", "init_module",
    "finit_module", "delete_module", "reboot", "swapon", "swapoff", "acct", "quotactl", "syslog",
    "open_by_handle_at", "name_to_handle_at", "iopl", "ioperm", "sched_setaffinity", "sched_setscheduler",
    "sched_setparam", "sched_setattr", "setpriority", "ioprio_set", "sethostname", "setdomainname", "settimeofday",
    "clock_settime", "clock_adjtime", "adjtimex", "personality", "migrate_pages", "move_pages", "mbind",
    "set_mempolicy", "vhangup", "fanotify_init", "lookup_dcookie", "nfsservctl", "uselib", "ustat", "sysfs",
)  # fmt: skip


def has_seccomp() -> bool:
    """True where libseccomp and its Python binding can be loaded, which makes the sandbox's second layer."""
    return find_library("seccomp") is not None and find_spec("pyseccomp") is not None


def _filter_system_calls() -> None:
    import pyseccomp as sc

    rules = sc.SyscallFilter(defaction=sc.ALLOW)
    no = sc.ERRNO(errno.EPERM)
    for name in REFUSED_SYSTEM_CALLS:
        try:
            rules.add_rule(no, name)
        except (OSError, RuntimeError, ValueError):  # not a call of this architecture
            continue
    rules.add_rule(sc.ERRNO(errno.ENOSYS), "clone3")  # its flags are out of a filter's sight; libc then uses clone
    # CLONE_PARENT makes brothers and sisters, who would outlive the answer's processes and count as nobody's
    for flag in (*_CLONE_NEW.values(), 0x8000):
        rules.add_rule(no, "clone", sc.Arg(0, sc.MASKED_EQ, flag, flag))
    for family in (socket.AF_NETLINK, socket.AF_PACKET, 38, 40):  # 38 AF_ALG, 40 AF_VSOCK
        rules.add_rule(no, "socket", sc.Arg(0, sc.EQ, int(family)))
    rules.load()


# ---------------------------------------------------------------- running cells


def _make_shell():
    """An IPython shell whose namespace is ``__main__``, as in a kernel, with no history and no threads."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.xmode = "Plain"


    class Shell(InteractiveShell):
        recorder = None

        def enable_gui(self, gui=None):  # there is no event loop to join; %matplotlib inline needs none
            return None

        def _showtraceback(self, etype, evalue, stb):
            if self.recorder is not None:
                self.recorder.error(etype.__name__, str(evalue), stb)

    return Shell.instance(config=config, user_module=main, user_ns=main.__dict__)


class _AnswerError(Exception):
    """An exception of the answer's, ready to be sent."""

    def __init__(self, report: dict):
        self.report = report


class _Answer:
    """The answer's cells, run one after the other as one file, so that ``inspect`` and tracebacks find their lines."""

    def __init__(self, shell, cells: list[str]):
        self.shell = shell
        self.cells = [shell.input_transformer_manager.transform_cell(c) for c in cells]
        self.starts = []
        line = 1
        for cell in self.cells:
            self.starts.append(line)
            line += cell.count("\n")
        text = "".join(self.cells)
        self.path = os.path.abspath(ANSWER_FILE)
        main = sys.modules["__main__"]
        with open(self.path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        linecache.cache[self.path] = (len(text), None, text.splitlines(True), self.path)
        main.__file__ = self.path

    def run(self, entry_points: list[str]) -> None:
        """Runs the cells in order. Raises _AnswerError where the last one raises, or an earlier one and a name is missing.

        An old copy of an answer left above the right one may raise; in a notebook it would not have mattered either.
        """
        namespace, first, failed = sys.modules["__main__"].__dict__, None, False
        with self.shell.builtin_trap:
            for cell, start in zip(self.cells, self.starts, strict=True):
                try:
                    tree = ast.increment_lineno(ast.parse(cell, self.path), start - 1)
                    code = compile(tree, self.path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                    if code.co_flags & inspect.CO_COROUTINE:
                        asyncio.run(eval(code, namespace))
                    else:
                        exec(code, namespace)
                except BaseException as error:
                    first, failed = first or _AnswerError(self.report(error, start)), True
                else:
                    failed = False
        if first is not None and (failed or not all(name in namespace for name in entry_points)):
            raise first

    def report(self, error: BaseException, cell_start: int = 1) -> dict:
        where = []
        if isinstance(error, SyntaxError) and error.filename == self.path:
            where.append(self._place((error.lineno or 1) + cell_start - 1, "", (error.text or "").strip()))
        trace = error.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_filename == self.path:
                text = linecache.getline(self.path, trace.tb_lineno).strip()
                where.append(self._place(trace.tb_lineno, frame.f_code.co_name, text))
            trace = trace.tb_next
        try:
            message = str(error)
        except BaseException:
            message = "(its message could not be read)"
        if isinstance(error, SyntaxError):
            message = error.msg or message
        return {"kind": "exception", "type": type(error).__name__[:80], "text": message[:2000], "where": where[-6:]}

    def _place(self, line: int, function: str, text: str) -> dict:
        cell = max((i for i, start in enumerate(self.starts) if start <= line), default=0)
        return {"cell": cell + 1, "line": line - self.starts[cell] + 1, "function": function[:80], "source": text[:200]}


# ---------------------------------------------------------------- serving calls


class _Server:
    def __init__(self, connection: wire.Connection, shell):
        self.connection, self.shell = connection, shell
        self.answer: _Answer | None = None
        self.helpers: dict = {}
        self.turn = threading.RLock()

    def proxy(self, number: int):
        def function(*args):
            with self.turn:
                self.connection.send({"op": "callback", "number": number, "value": list(args)})
                header, arrays = self.connection.receive()
            if header.get("op") != "returned":
                raise RuntimeError(str(header.get("text", "the judge refused this call")))
            return wire.decode(header["value"], arrays, as_torch=True, function=self.proxy)

        function.__name__ = f"judge_function_{number}"
        return function

    def handle(self, header: dict, arrays: list) -> dict:
        op = header["op"]
        if op == "hello":
            import torch

            torch.set_num_threads(header["threads"])
            return {"value": None}
        if op == "answer":
            self.answer = _Answer(self.shell, header["cells"])
            self.answer.run(header["entry_points"])
            namespace = sys.modules["__main__"].__dict__
            return {"value": [n for n in header["entry_points"] if n in namespace]}
        if op == "define":
            self.helpers["answer"] = sys.modules["__main__"].__dict__
            text = header["source"]
            linecache.cache["<judge>"] = (len(text), None, text.splitlines(True), "<judge>")
            exec(compile(text, "<judge>", "exec"), self.helpers)
            return {"value": None}
        if op == "call":
            return self.call(header, arrays)
        if op == "cell":
            return {"value": None, "outputs": self.notebook().run(header["source"])}
        raise ValueError(f"unknown request {op!r}")

    def notebook(self):
        if not hasattr(self, "recorder"):
            self.recorder = Recorder(self.shell)
        return self.recorder

    def call(self, header: dict, arrays: list) -> dict:
        name = header["name"]
        function = self.helpers[name[1:]] if name[0] == "$" else sys.modules["__main__"].__dict__[name]
        mode = nullcontext()
        if header["inference"]:
            import torch

            mode = torch.inference_mode()
        with mode:
            args = wire.decode(header["value"], arrays, as_torch=True, function=self.proxy)
            try:
                value = function(*args)
            except BaseException as error:
                raise _AnswerError(self.answer.report(error) if self.answer else _plain_report(error)) from None
            try:
                if header["echo"]:
                    value = (value, [None if callable(a) else a for a in args])
                return {"value": value}
            finally:
                del args


def _plain_report(error: BaseException) -> dict:
    return {"kind": "exception", "type": type(error).__name__, "text": str(error)[:2000], "where": []}


def _serve(connection: wire.Connection, shell) -> None:
    server = _Server(connection, shell)
    while True:
        try:
            header, arrays = connection.receive()
        except wire.Closed:
            os._exit(0)
        try:
            reply = server.handle(header, arrays) | {"op": "done"}
        except _AnswerError as error:
            reply = {"op": "failed", "report": error.report}
        except BaseException as error:
            reply = {"op": "failed", "report": _plain_report(error) | {"kind": "helper"}}
        try:
            sys.stdout.flush()
            connection.send(reply)
        except wire.Closed:
            os._exit(0)
        except wire.WireError as error:
            connection.send({"op": "failed", "report": {"kind": "value", "type": "", "text": str(error), "where": []}})
        del header, arrays, reply


# ---------------------------------------------------------------- a notebook's outputs

CELL_TEXT_LIMIT = 100_000
CELL_DATA_LIMIT = 2_000_000
_SENT_TYPES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg", "image/svg+xml")


class _Stream(io.TextIOBase):
    def __init__(self, recorder: Recorder, name: str):
        self.recorder, self.name = recorder, name

    def writable(self):
        return True

    def write(self, text):
        self.recorder.stream(self.name, str(text))
        return len(text)


class Recorder:
    """Runs cells in the shell and keeps their outputs as nbformat has them, cut where they grow too large."""

    def __init__(self, shell):
        self.shell = shell
        self.outputs: list[dict] = []
        self.left_text = self.left_data = 0
        recorder = self

        from IPython.core.displayhook import DisplayHook
        from IPython.core.displaypub import DisplayPublisher

        class Publisher(DisplayPublisher):
            def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
                recorder.display("display_data", data)

            def clear_output(self, wait=False):
                recorder.outputs.clear()

        class Hook(DisplayHook):
            def write_output_prompt(self):
                pass

            def write_format_data(self, format_dict, md_dict=None):
                recorder.display("execute_result", format_dict, self.prompt_count)

            def finish_displayhook(self):
                pass

        shell.display_pub = Publisher(shell=shell, parent=shell)
        shell.displayhook = Hook(shell=shell, parent=shell, cache_size=0)
        shell.display_trap.hook = shell.displayhook
        shell.recorder = self

    def run(self, source: str) -> list[dict]:
        self.outputs, self.left_text, self.left_data = [], CELL_TEXT_LIMIT, CELL_DATA_LIMIT
        kept = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream(self, "stdout"), _Stream(self, "stderr")
        try:
            self.shell.run_cell(source, store_history=True)
        finally:
            sys.stdout, sys.stderr = kept
        return self.outputs

    def stream(self, name: str, text: str) -> None:
        if self.left_text <= 0 or not text:
            return
        if len(text) > self.left_text:
            text = text[: self.left_text] + f"\n… cut here: a cell's text is kept up to {CELL_TEXT_LIMIT} characters\n"
        self.left_text -= len(text)
        last = self.outputs[-1] if self.outputs else None
        if last and last["output_type"] == "stream" and last["name"] == name:
            last["text"] += text
        else:
            self.outputs.append({"output_type": "stream", "name": name, "text": text})

    def display(self, kind: str, data: dict, count=None) -> None:
        import base64

        kept = {}
        for mime in _SENT_TYPES:
            if mime in data:
                value = data[mime]
                kept[mime] = base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
        size = sum(map(len, kept.values()))
        if size > self.left_data:
            kept = {"text/plain": f"(an output of {size} characters was left out: too large)"}
        self.left_data -= sum(map(len, kept.values()))
        output = {"output_type": kind, "data": kept, "metadata": {}}
        if kind == "execute_result":
            output["execution_count"] = count
        if len(self.outputs) < 200:
            self.outputs.append(output)

    def error(self, name: str, text: str, lines: list[str]) -> None:
        trace = [line[:2000] for line in lines[-40:]]
        self.outputs.append({"output_type": "error", "ename": name, "evalue": text[:2000], "traceback": trace})


if __name__ == "__main__":
    # Through the package, so that the running code is perflab.host and not a second copy named __main__.
    from perflab import host

    host.warm_parent(int(sys.argv[1]))
