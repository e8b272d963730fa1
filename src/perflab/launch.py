"""The judge's handle on the processes that answers run in.

:class:`Launcher` keeps one warm parent (perflab.host) and has it fork a host for every request; :class:`Host` asks
questions of one such process. Without a box, hosts are plain processes: that is what a student's own
``perflab.check`` uses. The grader passes a function that makes a box (grader.sandbox).
"""

from __future__ import annotations

import builtins
import inspect
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import psutil

from perflab import wire

PRINTED_KEPT = 4_000
DEFAULT_LIMITS = {
    "memory_bytes": 4 << 30,
    "cpu_s": 300,
    "file_bytes": 1 << 30,
    "open_files": 1024,
    "processes": 256,
    "printed_bytes": 1 << 20,
    "reply_bytes": 1 << 29,
}
# Which kernel an OpenBLAS takes on a processor it does not know is a property of the machine, not of the judge.
_NUMERIC_ENVIRONMENT = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class AnswerFailed(Exception):
    """The answer did something that ends the question: `kind` says what, `en` and `zh` say it to the student.

    Kinds: ``exception``, ``timeout``, ``died``, ``output``, ``value``, ``missing``, ``protocol``.
    """

    def __init__(self, kind: str, en: str, zh: str):
        super().__init__(en)
        self.kind, self.en, self.zh = kind, en, zh


class SandboxError(Exception):
    """The host could not be started for a reason that is not the answer's."""


# Where the grader is root, what is measured runs before the machine's other work. Answer and reference alike.
RAISED_PRIORITY = -10


def may_raise_priority() -> bool:
    """True where this process may give its hosts a priority above that of ordinary processes."""
    return _LINUX and os.geteuid() == 0


@dataclass
class Finished:
    """What a command left: its exit status, what it printed (text, cut at 1 MB each) and the files asked for."""

    returncode: int
    stdout: str
    stderr: str
    files: dict[str, bytes] = field(default_factory=dict)


# Runs a command inside a host; see Launcher.run.
_RUN_SOURCE = '''
import os, subprocess
import numpy as np

def run(argv, files, collect, timeout_s):
    for name, data in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as f:
            f.write(data.tobytes())
    with open(".stdout", "wb") as out, open(".stderr", "wb") as err:
        try:
            code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=timeout_s).returncode
        except subprocess.TimeoutExpired:
            code = -9
            err.write(b"stopped: the time limit was reached")
        except OSError as error:
            code = 127
            err.write(str(error).encode())
    def read(name, most):
        with open(name, "rb") as f:
            return np.frombuffer(f.read(most), np.uint8)
    found = {n: read(n, 64 << 20) for n in collect if os.path.isfile(n) and not os.path.islink(n)}
    return code, read(".stdout", 1 << 20), read(".stderr", 1 << 20), found
'''


class Launcher:
    """Starts hosts. `make_box()` returns a box (see grader.sandbox.Box) or is None for plain processes.

    One launcher may serve several threads. Close it, or use it as a context manager.
    """

    def __init__(self, make_box=None, *, environ: dict[str, str] | None = None):
        self.make_box = make_box
        self.environ = environ or {}
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._process.wait()
                self._control = None

    def warm_up(self) -> None:
        """Starts the warm parent if there is none yet (about two seconds: torch is imported)."""
        with self._lock:
            if self._control is not None and self._process.poll() is None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET if _LINUX else socket.SOCK_DGRAM)
            environ = {name: os.environ[name] for name in _NUMERIC_ENVIRONMENT if name in os.environ}
            environ |= _base_environ(1)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "perflab.host", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
            )  # fmt: skip
            theirs.close()
            if ours.recv(16) != b"ready":
                raise SandboxError("the parent of the answers' processes did not start: see the messages above")
            self._control = ours

    def start(
        self, *, cpus=None, threads: int = 1, fds: dict[str, int] | None = None, environ: dict | None = None,
        raised: bool = False, **limits,
    ) -> Host:  # fmt: skip
        """A new host that has run nothing yet. `limits` override DEFAULT_LIMITS. Raises SandboxError.

        raised: run it before the machine's other work where that is allowed; for what is measured under the lease only.
        """
        unknown = set(limits) - set(DEFAULT_LIMITS)
        if unknown:
            raise TypeError(f"unknown limits {sorted(unknown)}; known are {sorted(DEFAULT_LIMITS)}")
        limits = DEFAULT_LIMITS | limits
        self.warm_up()
        box = self.make_box(limits) if self.make_box else None
        directory = box.directory if box else tempfile.mkdtemp(prefix="perflab-")
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        output, output_in = os.pipe()
        status, status_in = os.pipe()
        fds = fds or {}
        request = {
            "box_pid": box.pid if box else None,
            "userns": box.userns if box else False,
            "seccomp": box is not None and box.seccomp,
            "directory": directory,
            "cpus": sorted(cpus) if cpus else None,
            "nice": RAISED_PRIORITY if raised and box and may_raise_priority() else 0,
            "names": list(fds),
            "environ": _base_environ(threads) | self.environ | (environ or {}) | {"HOME": directory, "TMPDIR": directory},
            "limits": {
                "RLIMIT_AS": limits["memory_bytes"], "RLIMIT_CPU": limits["cpu_s"], "RLIMIT_CORE": 0,
                "RLIMIT_FSIZE": limits["file_bytes"], "RLIMIT_NOFILE": limits["open_files"],
                # counts all processes of the user that every box runs answers as: only where nothing counts a box's own
            } | ({"RLIMIT_NPROC": limits["processes"]} if box and not box.counts_processes else {}),
        }  # fmt: skip
        try:
            with self._lock:
                socket.send_fds(
                    self._control, [json.dumps(request).encode()], [theirs.fileno(), output_in, status_in, *fds.values()]
                )
        except OSError as error:
            raise SandboxError(f"the parent of the answers' processes is gone ({error})") from error
        finally:
            theirs.close()
            os.close(output_in)
            os.close(status_in)
        host = Host(ours, output, status, box, None if box else directory, limits, threads)
        host._begin()
        return host

    def run(self, argv: list[str], files: dict[str, bytes] | None = None, collect=(), timeout_s: float = 60, **limits) -> Finished:
        """Runs a command in a box of its own, in an empty directory that holds `files`; brings back those in `collect`.

        A command that can't be started has exit status 127, one stopped at the time limit −9.
        """
        data = {name: np.frombuffer(content, np.uint8) for name, content in (files or {}).items()}
        with self.start(**limits) as host:
            host.define(_RUN_SOURCE)
            code, out, err, found = host.call(
                "$run", list(argv), data, list(collect), timeout_s, timeout_s=timeout_s + 10, inference=False
            )
        return Finished(
            code, out.tobytes().decode("utf-8", "replace"), err.tobytes().decode("utf-8", "replace"),
            {name: array.tobytes() for name, array in found.items()},
        )  # fmt: skip


_LINUX = sys.platform == "linux"


def _base_environ(threads: int) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "USER": "answer",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def late_s(task: str = "thread-self") -> float:
    """Seconds for which a task of /proc, this thread by default, was ready to run and had no core; 0.0 where that is not said."""
    try:
        with open(f"/proc/{task}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Host:
    """One process that an answer runs in. Close it, or use it as a context manager."""

    def __init__(self, sock, output_fd, status_fd, box, directory, limits, threads):
        self._sock, self._output, self._status = sock, output_fd, status_fd
        self._box, self._directory, self.limits, self.threads = box, directory, limits, threads
        self._connection = wire.Connection(sock, max_frame_bytes=limits["reply_bytes"])
        self._connection.watch_fd, self._connection.watch = output_fd, self._drain
        os.set_blocking(output_fd, False)
        self.printed = b""
        self._printed_bytes = 0
        self._functions: dict[int, object] = {}
        self._numbers = 0
        self.quotes = True  # whether what the answer's exceptions say is passed on: not while it sees a secret case
        self.pid: int | None = None
        self.closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- life

    def _begin(self) -> None:
        line = self._status_line(10)
        if not line.startswith("started "):
            self.close()
            raise SandboxError(f"a process for the answer could not be started: {line or 'no reason was given'}")
        self.pid = int(line.split()[1])
        if self._box:
            self._box.adopt(self.pid)
        try:
            self._request({"op": "hello", "threads": self.threads}, time.monotonic() + 20)
        except (AnswerFailed, wire.WireError, TimeoutError) as error:
            if self._connection.watch_fd is not None:
                self._drain()
            printed = self.printed.decode("utf-8", "replace")
            self.close()
            raise SandboxError(f"the answer's process ended before it began: {printed or error}") from error

    def _status_line(self, timeout_s: float) -> str:
        """The next line of the keeper's report ("started 12", "ended -9"); empty when none comes in time."""
        text, deadline = b"", time.monotonic() + timeout_s
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._status], [], [], max(0, deadline - time.monotonic()))
            byte = os.read(self._status, 1) if ready else b""
            if not byte:
                break
            text += byte
        return text.decode().strip()

    def close(self) -> None:
        """Ends the process and all that it started, and frees its box."""
        if self.closed:
            return
        self.closed = True
        self._kill()
        self._connection.close()
        os.close(self._output)
        os.close(self._status)
        if self._directory:
            import shutil

            shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        """Ends the process and all that it started; a call that is under way fails as ``died``."""
        self._kill()

    def _kill(self) -> None:
        if self._box:
            self._box.kill()
        elif self.pid:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def cpu_s(self) -> float:
        """CPU seconds that this process and all that it started have used, as the kernel counts them.

        Where the box has a control group, its count: nothing that ran there is left out, reaped or not. Elsewhere
        that of the processes there are (in steps of 10 ms).
        """
        used_s = self._box.cpu_s() if self._box else None
        if used_s is not None:
            return used_s
        # what outlives its parent is adopted by the box's first process
        roots = [self.pid, self._box.pid] if self._box else [self.pid]
        total, seen = 0.0, set()
        for root in roots:
            try:
                process = psutil.Process(root)
                for p in [process, *process.children(recursive=True)]:
                    if p.pid not in seen:
                        seen.add(p.pid)
                        t = p.cpu_times()
                        total += t.user + t.system + t.children_user + t.children_system
            except psutil.NoSuchProcess:
                continue
        return total

    def late_s(self) -> float:
        """Seconds for which this process's first thread was ready to run and had no core; 0.0 where the kernel does not say."""
        return late_s(str(self.pid))

    def _drain(self) -> None:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._connection.watch_fd = None
            return
        self._printed_bytes += len(data)
        if len(self.printed) < PRINTED_KEPT:
            self.printed += data[: PRINTED_KEPT - len(self.printed)]
        if self._printed_bytes > self.limits["printed_bytes"]:
            raise self._failed(
                "output",
                f"Your code printed more than {self.limits['printed_bytes'] // 1000} kB and was stopped."
                " Take the print out of the loop.",
                f"你的代码打印了超过 {self.limits['printed_bytes'] // 1000} kB 的内容，已被终止。请把循环里的 print 去掉。",
            )

    def _failed(self, kind: str, en: str, zh: str) -> AnswerFailed:
        self.close()
        return AnswerFailed(kind, en, zh)

    # -- questions

    def run_answer(self, cells: list[str], entry_points, *, timeout_s: float = 60) -> None:
        """Executes the answer's cells and checks that they define `entry_points`. Raises AnswerFailed."""
        text = "".join(cells)
        if "\0" in text:
            raise self._failed("exception", "The answer contains a null byte; type it anew.", "答案中含有空字节，请重新输入。")
        names = list(entry_points)
        found, _ = self._ask({"op": "answer", "cells": cells, "entry_points": names}, timeout_s, "your cells", "你的单元格")
        missing = [n for n in names if type(found) is not list or n not in found]
        if missing:
            listed = ", ".join(f"`{n}`" for n in missing)
            raise self._failed(
                "missing",
                f"The answer cell does not define {listed}. Keep the name as the exercise states it, and define it in the answer cell.",
                f"答案单元格没有定义 {listed}。请保留题目给出的名称，并在答案单元格里定义它。",
            )

    def define(self, source: str) -> None:
        """Runs the judge's helper functions inside the process; ``call("$name", …)`` calls them, `answer` is in their reach."""
        self._ask({"op": "define", "source": source}, 60, "the judge's helper", "评测程序的辅助函数")

    def run_cell(self, source: str, *, timeout_s: float) -> list[dict]:
        """Runs a notebook cell and returns its outputs (plain dicts, untrusted)."""
        reply = self._ask({"op": "cell", "source": source}, timeout_s, "this cell", "这个单元格")[1]
        outputs = reply.get("outputs")
        return outputs if type(outputs) is list else []

    def call(self, name: str, *args, timeout_s: float = 20, inference: bool = True, echo: bool = False):
        """Calls a function of the answer, or of the judge's helper where `name` begins with ``$``.

        `args` are values of perflab.wire; a wire.Proxy becomes a function there. `echo` returns (value, arguments
        after the call). Raises AnswerFailed: an exception, no return within `timeout_s`, a value that can't be sent.
        """
        return self.timed_call(name, *args, timeout_s=timeout_s, inference=inference, echo=echo)[0]

    def timed_call(self, name: str, *args, timeout_s: float = 20, inference: bool = True, echo: bool = False):
        """As :meth:`call`; returns (value, seconds), on the judge's clock, from before the inputs are sent until the outputs are here."""
        request = {"op": "call", "name": name, "inference": inference, "echo": echo, "value": list(args)}
        # the names of the judge's helpers tell a student nothing
        shown = ("your code", "你的代码") if name.startswith("$") else (f"`{name}`", f"`{name}`")
        start = time.perf_counter()
        header, arrays = self._exchange(request, time.monotonic() + timeout_s, timeout_s, *shown)
        seconds = time.perf_counter() - start
        return self._value(header, arrays), seconds

    def _ask(self, request: dict, timeout_s: float, what_en: str, what_zh: str):
        header, arrays = self._exchange(request, time.monotonic() + timeout_s, timeout_s, what_en, what_zh)
        return self._value(header, arrays), header

    def _value(self, header, arrays):
        try:
            return wire.decode(header.get("value"), arrays)
        except wire.WireError as error:
            raise self._failed("protocol", f"The reply was malformed: {error}.", f"返回的数据格式不正确：{error}。") from None

    def _number(self, function) -> int:
        self._numbers += 1
        self._functions[self._numbers] = function
        return self._numbers

    def _exchange(self, request, deadline, timeout_s, what_en, what_zh):
        if self.closed:
            raise AnswerFailed("died", "Your process had already ended.", "你的进程在此之前已经结束。")
        self._functions.clear()
        try:
            return self._request(request, deadline)
        except TimeoutError:
            raise self._failed(
                "timeout",
                f"{what_en[0].upper() + what_en[1:]} did not finish within {timeout_s:g} s and was stopped."
                " Look for a loop that never ends, or for a wait that nothing answers.",
                f"{what_zh}在 {timeout_s:g} 秒内没有结束，已被终止。请检查是否有死循环，或者在等待永远不会到来的结果。",
            ) from None
        except wire.Closed:
            raise self._ended() from None
        except wire.WireError as error:
            raise self._failed("protocol", f"The reply was malformed: {error}.", f"返回的数据格式不正确：{error}。") from None
        finally:
            self._functions.clear()

    def _request(self, request, deadline):
        connection = self._connection
        connection.send(request, deadline=deadline, function=self._number)
        while True:
            header, arrays = connection.receive(deadline=deadline)
            op = header.get("op")
            if op == "done":
                return header, arrays
            if op == "failed":
                raise self._reported(header.get("report"))
            number = header.get("number")
            function = self._functions.get(number) if op == "callback" and type(number) is int else None
            if function is None:
                raise self._failed(
                    "protocol",
                    "Your code called one of the given functions outside the call it was given in (from a thread left running?).",
                    "你的代码在调用已经返回之后又使用了题目给出的函数（是否有线程仍在运行？）。",
                )
            args = wire.decode(header.get("value"), arrays)
            if type(args) is not list:
                raise wire.WireError("arguments that are no list")
            try:
                reply = {"op": "returned", "value": function(*args)}
            except wire.WireError as error:
                reply = {"op": "refused", "text": str(error)}
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
                if not args and not _wants_arguments(function):  # the judge's own mistake, then
                    raise
                reply = {"op": "refused", "text": str(error)}
            connection.send(reply, deadline=deadline, function=self._number)

    def _reported(self, report) -> AnswerFailed:
        """What the process says of its own failure. Only words come from it; they are shown, never acted on."""
        report = report if type(report) is dict else {}

        def text(key, most=600):
            return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", " ", str(report.get(key, "")))[:most]

        if not self.quotes:
            kind = text("type", 80)
            en, zh = (kind, f" {kind}") if kind in dir(builtins) else ("an exception", "一个异常")  # another name could tell of the case
            return AnswerFailed(
                "exception", f"Your code raised {en} on a case that is kept secret, so its text is not shown here.",
                f"你的代码在一个保密的测试用例上抛出了{zh}，因此这里不显示它的内容。",
            )  # fmt: skip
        if report.get("kind") == "value":
            return AnswerFailed(
                "value", f"What your function returned can't be used: {text('text')}.", f"你的函数返回的值无法使用：{text('text')}。"
            )
        kind, message = text("type", 80), text("text")
        where_en = where_zh = ""
        places = report.get("where")
        if type(places) is list and places and type(places[-1]) is dict:
            place = {k: str(v)[:200] for k, v in places[-1].items()}
            source = place.get("source", "")
            where_en = f" in answer cell {place.get('cell')}, line {place.get('line')}: `{source}`"
            where_zh = f"，位置：第 {place.get('cell')} 个答案单元格第 {place.get('line')} 行：`{source}`"
        hint_en = hint_zh = ""
        if kind == "MemoryError":
            most = self.limits["memory_bytes"] / 2**30
            hint_en, hint_zh = f" An answer may use {most:g} GiB of memory.", f" 答案最多可用 {most:g} GiB 内存。"
        elif kind == "NameError":
            hint_en = " Only the answer cells are run: imports and helpers belong in them."
            hint_zh = " 评分时只运行答案单元格：导入语句和辅助函数也要写在里面。"
        elif kind in ("SystemExit", "KeyboardInterrupt"):
            hint_en, hint_zh = " An answer must return, not exit.", " 答案应当返回，而不是退出进程。"
        colon = f": {message}" if message else ""
        return AnswerFailed(
            "exception", f"Your code raised {kind}{colon}{where_en}.{hint_en}", f"你的代码抛出了 {kind}{colon}{where_zh}。{hint_zh}"
        )

    def _ended(self) -> AnswerFailed:
        line = self._status_line(2)
        code = int(line.split()[1]) if re.fullmatch(r"ended -?\d+", line) else None
        en, zh = f"exit status {code}", f"退出码 {code}"
        if code is None:
            en, zh = "no exit status", "没有退出码"
        elif code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
            en, zh = f"signal {name}", f"信号 {name}"
            if name == "SIGKILL":
                most = self.limits["memory_bytes"] / 2**30
                en, zh = en + f"; it may have gone over its {most:g} GiB of memory", zh + f"，可能超出了 {most:g} GiB 内存上限"
            if name == "SIGXCPU":
                en, zh = f"over {self.limits['cpu_s']} s of CPU time", f"CPU 时间超过 {self.limits['cpu_s']} 秒"
        return self._failed(
            "died",
            f"Your process ended before it answered ({en}). An answer must not exit, and must not crash native code.",
            f"你的进程在给出结果之前就结束了（{zh}）。答案不能退出进程，也不能让本地代码崩溃。",
        )


def _wants_arguments(function) -> bool:
    """Whether a call without arguments is a mistake of the caller's."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return False
    return False


def is_float(value) -> bool:
    """True for a finite Python float (a NumPy float scalar arrives as one)."""
    return type(value) is float and math.isfinite(value)
