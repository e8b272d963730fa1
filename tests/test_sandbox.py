"""Tries to get out of the sandbox as an answer would. Every probe runs inside; the outside checks that it got nowhere."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grader import judging, sandbox
from perflab import launch
from perflab.launch import AnswerFailed

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(sandbox.why_no_box() is not None, reason=f"no sandbox here: {sandbox.why_no_box()}")


@pytest.fixture(scope="module")
def launcher():
    return judging.launcher()


def inside(launcher, source, *args, timeout_s=20, **options):
    """Runs `source`, which defines f, in a sandbox and returns f(*args)."""
    with launcher.start(**options) as host:
        host.run_answer([source], ["f"])
        return host.call("f", *args, timeout_s=timeout_s, inference=False)


def fails(launcher, source, *args, **options):
    with pytest.raises(AnswerFailed) as caught:
        inside(launcher, source, *args, **options)
    return caught.value


def attempt(statement):
    """An f that returns what `statement` gives or the name of the error it meets."""
    return f"""
import ctypes, os, pathlib, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def f(*args):
    try:
        return {statement}
    except Exception as error:
        return "refused: " + type(error).__name__
"""


REFUSED = "refused: "

# ---------------------------------------------------------------- reads


@pytest.mark.parametrize("where", ["grader", "solutions", "tests", "grader/hidden", "grader/course", ".git", "README.md"])
def test_the_course_is_not_there(launcher, where):
    assert inside(launcher, attempt("os.path.exists(args[0])"), str(ROOT / where)) is False


# but those that the checkout or Python itself lies in
ELSEWHERE = [p for p in ("/etc/shadow", "/etc/passwd", "/home", "/var", "/run", "/root/.bashrc", "/sys", "/boot")
             if not any(str(q).startswith(p) for q in (ROOT, sys.prefix, sys.base_prefix))]  # fmt: skip


@pytest.mark.parametrize("path", ELSEWHERE)
def test_the_system_beyond_libraries_is_not_there(launcher, path):
    assert inside(launcher, attempt("os.path.exists(args[0])"), path) is False


def test_only_python_is_in_its_home(launcher):
    """Folders above Python and perflab exist inside only as the way to them."""
    listed = inside(launcher, attempt("{str(p): os.listdir(p) for p in args[0] if os.path.isdir(p)}".replace("args[0]", "map(pathlib.Path, args[0])")),
                    [str(p) for p in ROOT.parents if str(p) != "/"] + [str(ROOT), str(ROOT / "src")])  # fmt: skip
    assert "grader" not in str(listed) and "solutions" not in str(listed) and "shared" not in str(listed)


def test_no_environment_of_the_judge(launcher, monkeypatch):
    monkeypatch.setenv("GRADER_SECRET", "swordfish")
    found = inside(launcher, attempt("[dict(os.environ), open('/proc/self/environ').read()]"))
    assert "swordfish" not in str(found)
    allowed = {"PATH", "LANG", "USER", "HOME", "TMPDIR", "MPLBACKEND", "PERFLAB_AUTOGRADE", "PYTHONDONTWRITEBYTECODE",
               "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"}  # fmt: skip
    assert set(found[0]) <= allowed


def test_no_descriptor_of_the_judge(launcher):
    """Standard streams, the private channel, and the descriptor that lists them; nothing else."""
    found = inside(launcher, attempt("{n: os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n) or True and os.path.islink('/proc/self/fd/' + n)}"))
    kinds = sorted(v.split(":")[0] for v in found.values() if not v.startswith("/proc"))
    assert kinds == ["/dev/null", "pipe", "pipe", "socket"], found


def test_no_process_of_the_judge(launcher):
    assert inside(launcher, attempt("[int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) > 20]")) == []
    outside = os.getpid()
    assert inside(launcher, attempt("os.kill(args[0], 0)"), outside).startswith(REFUSED)


@pytest.mark.parametrize("path", ["/proc/1/mem", "/proc/1/root/etc/shadow", "/proc/1/cwd", "/proc/kcore"])
def test_the_first_process_is_closed(launcher, path):
    assert str(inside(launcher, attempt("open(args[0], 'rb').read(10)"), path)).startswith(REFUSED)


def test_the_first_process_knows_nothing(launcher):
    """Where answers run as the grader's own user it can be read: all it has is a search path."""
    assert inside(launcher, attempt("open('/proc/1/environ').read()")) in ("PATH=/usr/bin:/bin\0", "refused: PermissionError")


def test_ptrace_and_its_relatives_are_refused(launcher):
    calls = {"ptrace": 101, "process_vm_readv": 310, "unshare": 272, "mount": 165, "setns": 308, "bpf": 321,
             "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "keyctl": 250, "pivot_root": 155}  # fmt: skip
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of system calls above are those of x86-64")
    for name, number in calls.items():
        code = inside(launcher, attempt("(libc.syscall(args[0], 16, 0, 0, 0, 0), ctypes.get_errno())"), number)
        assert code == (-1, 1), (name, code)  # EPERM


def test_no_new_namespace(launcher):
    assert inside(launcher, attempt("subprocess.run(['unshare', '-rn', 'true'], capture_output=True).returncode")) != 0
    assert inside(launcher, attempt("subprocess.run(['bwrap', '--ro-bind', '/', '/', 'true'], capture_output=True).returncode")) != 0


# ---------------------------------------------------------------- network


def test_no_network(launcher):
    """A server on this machine can't be reached from inside, though the same code reaches it from outside."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    socket.create_connection(("127.0.0.1", port), timeout=2).close()
    assert inside(launcher, attempt("socket.create_connection(('127.0.0.1', args[0]), timeout=2)"), port).startswith(REFUSED)
    assert inside(launcher, attempt("[n for _, n in socket.if_nameindex()]")) == "refused: PermissionError"
    server.close()


def test_no_abstract_socket_of_the_host(launcher):
    name = f"\0perflab-test-{os.getpid()}"
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(name)
    source = attempt(f"socket.socket(socket.AF_UNIX).connect({name!r})")
    assert inside(launcher, source).startswith(REFUSED)
    server.close()


# ---------------------------------------------------------------- writes


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"])
def test_the_system_is_read_only(launcher, path):
    assert inside(launcher, attempt("open(args[0], 'w').write('1')"), path).startswith(REFUSED)


def test_packages_are_read_only(launcher):
    import torch

    import perflab

    for package in (perflab, torch):
        path = str(Path(package.__file__).parent / "x")
        assert inside(launcher, attempt("open(args[0], 'w').write('1')"), path).startswith(REFUSED)
        assert not os.path.exists(path)


def test_nothing_stays_for_the_next_answer(launcher):
    assert inside(launcher, attempt("[open(p + '/left', 'w').write('x') for p in ('/tmp', '/dev/shm')]")) == [1, 1]
    assert inside(launcher, attempt("[os.path.exists(p + '/left') for p in ('/tmp', '/dev/shm')]")) == [False, False]


def test_the_private_disk_is_small(launcher):
    """Writing on and on ends in an error inside, and the machine's own disk is not touched."""
    source = attempt("[open(f'/tmp/{i}', 'wb').write(bytes(64 << 20)) for i in range(64)]")
    assert inside(launcher, source, memory_bytes=8 << 30, timeout_s=60) == "refused: OSError"


# ---------------------------------------------------------------- rights


def test_no_rights(launcher):
    status = inside(launcher, attempt("open('/proc/self/status').read()"))
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[kind], 16) == 0, kind
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    if os.getuid() == 0:
        assert set(fields["Uid"].split()) == {"65534"}
    assert not set(fields["Groups"].split()) - {"65534"}


def test_root_can_not_be_had_back(launcher):
    assert inside(launcher, attempt("os.setuid(0)")).startswith(REFUSED) or os.getuid() != 0
    assert inside(launcher, attempt("subprocess.run(['su', '-c', 'id'], capture_output=True, stdin=subprocess.DEVNULL).returncode")) != 0


# ---------------------------------------------------------------- resources


def test_memory_is_limited(launcher):
    error = fails(launcher, "def f(): return len(bytearray(3 << 30))", memory_bytes=1 << 30)
    assert "1 GiB" in error.en


def test_a_swarm_of_processes_shares_the_memory_limit(launcher):
    """Each child stays below its own limit; only a limit on the whole box stops them together."""
    if not sandbox.cgroup_roots():
        pytest.skip("no cgroup is writable here, so limits hold for each process alone (doctor says so)")
    source = """
import os, time
def f():
    for _ in range(12):
        if os.fork() == 0:
            block = bytearray(400 << 20)
            time.sleep(20)
            os._exit(0)
    time.sleep(4)
    return "alive"
"""
    used = []

    def watch(stop):
        import psutil

        start = psutil.virtual_memory().available
        while not stop.wait(0.05):
            used.append(start - psutil.virtual_memory().available)

    stop = threading.Event()
    thread = threading.Thread(target=watch, args=(stop,))
    thread.start()
    try:
        inside(launcher, source, memory_bytes=1 << 30)
    except AnswerFailed as error:
        assert error.kind == "died"
    finally:
        stop.set()
        thread.join()
    assert max(used) < 3 << 30


def test_processes_are_limited(launcher):
    source = """
import os, time
def f():
    made = 0
    try:
        for _ in range(2000):
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            made += 1
    except OSError:
        return made
    return made
"""
    assert inside(launcher, source, processes=64) <= 64


def test_threads_are_limited(launcher):
    source = """
import threading, time
def f():
    for i in range(5000):
        try:
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        except RuntimeError:
            return i
    return 5000
"""
    assert inside(launcher, source, processes=64) <= 64


def test_processor_time_is_limited(launcher):
    error = fails(launcher, "def f():\n    while True: pass\n", cpu_s=1, timeout_s=15)
    assert error.kind == "died" and "CPU time" in error.en


def test_time_is_limited(launcher):
    assert fails(launcher, "import time\ndef f(): time.sleep(60)\n", timeout_s=0.5).kind == "timeout"


def test_ignoring_signals_does_not_help(launcher):
    source = """
import signal, time
def f():
    for s in signal.valid_signals():
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True: time.sleep(1)
"""
    assert fails(launcher, source, timeout_s=0.5).kind == "timeout"


def test_printing_without_end_is_stopped(launcher):
    error = fails(launcher, "def f():\n    while True: print('x' * 10_000)\n")
    assert error.kind == "output" and "print" in error.en


def test_one_line_of_60_megabytes_is_stopped(launcher):
    assert fails(launcher, "def f(): print('x' * 60_000_000)\n").kind == "output"


def test_a_reply_of_a_gigabyte_is_refused(launcher):
    error = fails(launcher, "import numpy as np\ndef f(): return np.zeros(1 << 27)\n", reply_bytes=1 << 26, timeout_s=30)
    assert error.kind in ("protocol", "value", "died")


def test_deep_recursion_is_an_error_of_the_answer(launcher):
    error = fails(launcher, "def f(): return f()\n")
    assert error.kind in ("exception", "died")
    error = fails(launcher, "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\n", memory_bytes=1 << 29, timeout_s=10)
    assert error.kind in ("exception", "died", "timeout")


def test_input_is_an_error_of_the_answer(launcher):
    assert "EOFError" in fails(launcher, "def f(): return input('password: ')\n").en


def test_nothing_survives(launcher):
    """A daemon that double-forks into a session of its own is gone with the box."""
    mark = f"perflab-survivor-{os.getpid()}"
    source = f"""
import os, subprocess
def f():
    subprocess.Popen(["/bin/sh", "-c", "exec -a {mark} sleep 300 & exec sleep 300"], start_new_session=True)
    subprocess.Popen(["/bin/bash", "-c", "(trap '' TERM HUP INT; exec -a {mark} sleep 300) & disown"], start_new_session=True)
    return 1
"""
    assert inside(launcher, source) == 1
    time.sleep(0.2)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert mark not in commands


def test_boxes_end_with_the_judge(tmp_path):
    """kill -9 of the judge: its boxes, hosts and warm parent are gone a moment later, and so are their cgroups."""
    program = """
import os, signal, sys
from grader import judging
host = judging.launcher().start()
host.run_answer(["import time\\ndef f(): time.sleep(100)"], ["f"])
print(host.pid, host._box.pid, judging.launcher()._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    pids = [int(p) for p in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{p}") for p in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{p}") for p in pids)


def test_the_affinity_is_kept(launcher):
    if launch.may_raise_priority() is False and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: there is no other to move to")
    cpu = min(os.sched_getaffinity(0))
    source = attempt("(sorted(os.sched_getaffinity(0)), os.sched_setaffinity(0, range(64)))")
    assert inside(launcher, source, cpus={cpu}).startswith(REFUSED)
    assert inside(launcher, attempt("sorted(os.sched_getaffinity(0))"), cpus={cpu}) == [cpu]


def test_without_bubblewrap_nothing_is_graded(monkeypatch, tmp_path):
    """No sandbox, no grade, unless told; and then every result says so."""
    answer = tmp_path / "answer.py"
    answer.write_text("x = 1\n")
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "grader", "judge", "async-on-cpu", str(answer), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == ""
    assert "bubblewrap" in done.stderr and "--unsafe-no-sandbox" in done.stderr
    done = subprocess.run([*command, "--unsafe-no-sandbox"], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0 and "without a sandbox" in done.stdout
