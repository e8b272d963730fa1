"""Tries to get out of the sandbox as an answer would. Every probe runs inside; the outside checks that it got nowhere."""

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader import judging, sandbox
from perflab import launch
from perflab.exercises.async_on_cpu import Device
from perflab.launch import AnswerFailed
from perflab.wire import Proxy

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("needs_sandbox")


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


# ---------------------------------------------------------------- secrets of the judge

# Looks for doubles everywhere in its own process. What it looks for is sent in halves, so as not to be found itself.
SEARCH = """
import gc, struct, sys
import numpy as np

def by_reference(halves):
    left, seen, found = [sys.modules, *gc.get_objects()], set(), 0
    for frame in sys._current_frames().values():
        while frame is not None:
            left.append(frame)
            frame = frame.f_back
    while left:
        thing = left.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            found += type(thing) is float and list(struct.unpack("<II", struct.pack("<d", thing))) in halves
            left.extend(gc.get_referents(thing))
    return found

def in_memory(halves):
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for start, end in [map(lambda x: int(x, 16), line.split()[0].split("-")) for line in maps if " rw" in line]:
            while start < end:
                memory.seek(start)
                words = np.frombuffer(memory.read(min(end - start, 1 << 24)), np.uint32).reshape(-1, 2)
                found += sum(int(((words[:, 0] == low) & (words[:, 1] == high)).sum()) for low, high in halves)
                start += words.nbytes
    return found

def f(launch, wait, halves, control):
    for _ in range(2):
        launch(), wait()
    return [search(wanted) for wanted in halves for search in (by_reference, in_memory)]
"""


def halves(*values):
    return [list(struct.unpack("<II", struct.pack("<d", v))) for v in values]


def test_a_device_is_not_in_the_answers_process(launcher):
    """Neither in frames and objects nor, for ctypes, anywhere in memory. That the search can find shows a number that was sent."""
    device, control = Device(("", ""), 0.012345678901234567, 0.021234567890123456), 0.031234567890123456
    searches = [halves(device.launch_s, device.total_s), halves(control)]
    found = inside(launcher, SEARCH, Proxy(device.launch), Proxy(device.wait), searches, control, timeout_s=180)
    assert found[:2] == [0, 0]
    assert min(found[2:]) > 0, found
    assert len(device.pairs) == 2 and not device.misuse


def test_a_device_does_not_wait_in_the_answers_process(launcher):
    """What an answer puts in place of events, locks and clocks is never asked, and shortens nothing."""
    source = """
import threading, time
asked = []
def instead(*args, **options):
    asked.append(args)
    return True
threading.Event.wait = threading.Event.is_set = threading.Condition.wait = threading.Thread.join = instead
time.sleep = time.perf_counter = time.monotonic = time.time = instead
def f(launch, wait):
    launch(), wait()
    return len(asked)
"""
    device = Device(("", ""), 1e-4, 0.05)
    assert inside(launcher, source, Proxy(device.launch), Proxy(device.wait)) == 0
    assert device.pairs[0][1] >= device.total_s


@pytest.mark.parametrize("number", [1, 2])
def test_the_judges_functions_can_not_be_had_by_number(launcher, number):
    """A function is lent for one call. The object behind it, kept, asks in vain for the earlier one and for the next."""
    source = """
def f(given):
    global server
    if callable(given):
        server = next(c.cell_contents for c in given.__closure__ if hasattr(c.cell_contents, "proxy"))
        return given()
    return server.proxy(given)()
"""
    called = []
    with launcher.start() as host:
        host.run_answer([source], ["f"])
        host.call("f", Proxy(lambda: called.append("lent")))
        with pytest.raises(AnswerFailed) as caught:
            host.call("f", number)
    assert caught.value.kind == "protocol" and called == ["lent"]


# ---------------------------------------------------------------- resources


@pytest.fixture(params=["cgroups", "rlimits"])
def either_limit(request, monkeypatch):
    """Both kinds of limits: with this machine's cgroups, if it has any, and with those of each process alone."""
    if request.param == "rlimits":
        monkeypatch.setattr(sandbox, "cgroup_roots", list)
    elif not sandbox.limited_for_a_whole_box():
        pytest.skip("no cgroup is writable here")


@pytest.fixture
def peaks_bytes(monkeypatch):
    """The most memory that each box held that has ended since, as its own cgroup counted it."""
    if "memory" not in sandbox.limited_for_a_whole_box():
        pytest.skip("no cgroup can limit memory here, so limits hold for each process alone (doctor says so)")
    peaks, remove = [], sandbox._Cgroups.remove

    def read_and_remove(cgroups):
        files = [f / name for f in cgroups._folders for name in ("memory.max_usage_in_bytes", "memory.peak")]
        peaks.extend(int(file.read_text()) for file in files if file.exists())
        remove(cgroups)
        if not peaks:
            pytest.skip("this kernel does not keep the peak of a cgroup's memory (version 2 before Linux 5.19)")

    monkeypatch.setattr(sandbox._Cgroups, "remove", read_and_remove)
    return peaks


@pytest.mark.usefixtures("either_limit")
def test_memory_is_limited(launcher):
    error = fails(launcher, "def f(): return len(bytearray(3 << 30))", memory_bytes=1 << 30)
    assert "1 GiB" in error.en


def test_a_swarm_of_processes_shares_the_memory_limit(launcher, peaks_bytes):
    """Each child stays below its own limit; only a limit on the whole box stops them together."""
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
    try:
        inside(launcher, source, memory_bytes=1 << 30)
    except AnswerFailed as error:
        assert error.kind == "died"
    assert 1 << 30 < max(peaks_bytes) <= 1.05 * ((1 << 30) + sandbox.TMP_BYTES)


def test_empty_files_are_charged_to_the_box(launcher, peaks_bytes, monkeypatch):
    """An inode takes about 1 KiB of the kernel's memory and none of a tmpfs's size."""
    monkeypatch.setattr(sandbox, "TMP_BYTES", 16 << 20)
    source = """
def f():
    for i in range(1_000_000):
        for folder in ("/tmp", "/dev/shm"):
            open(f"{folder}/{i}", "x").close()
    return "all made"
"""
    error = fails(launcher, source, memory_bytes=64 << 20, timeout_s=120)
    assert error.kind == "died" or "OSError" in error.en or "MemoryError" in error.en
    assert max(peaks_bytes) <= 1.05 * (80 << 20)


@pytest.mark.usefixtures("either_limit")
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


@pytest.mark.usefixtures("either_limit")
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


def test_boxes_end_with_the_judge():
    """kill -9 of the judge: its boxes, hosts and warm parent are gone a moment later, their cgroups when the next box is made."""
    program = """
import os, signal, sys
from grader import judging
host = judging.launcher().start()
host.run_answer(["import time\\ndef f(): time.sleep(100)"], ["f"])
print(host.pid, host._box.pid, judging.launcher()._process.pid)
print(*host._box._cgroups._folders, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    pids, cgroups = [int(p) for p in lines[0].split()], [Path(p) for p in lines[1].split()]
    assert len(pids) == 3 and len(cgroups) == len(sandbox.cgroup_roots())
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{p}") for p in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{p}") for p in pids)
    for folder in cgroups:  # not a shorter ABANDONED_S: it would take the cgroups of boxes that other judges are making
        os.utime(folder, (0, 0))
    while any(folder.exists() for folder in cgroups) and time.monotonic() < deadline + 10:  # busy for a moment, perhaps
        sandbox.Box({"memory_bytes": 1 << 30, "processes": 16}).kill()
    assert not any(folder.exists() for folder in cgroups)


def test_the_cgroup_of_a_box_that_runs_stays():
    box = sandbox.Box({"memory_bytes": 1 << 30, "processes": 16})
    try:
        for folder in box._cgroups._folders:
            os.utime(folder, (0, 0))
        sandbox._remove_abandoned(sandbox.cgroup_roots())
        assert all(folder.exists() for folder in box._cgroups._folders)
    finally:
        box.kill()
    assert not any(folder.exists() for folder in box._cgroups._folders)


def version_1(base, kinds):
    for kind in kinds:
        (base / kind).mkdir()
        (base / kind / "cgroup.procs").touch()


def version_2(base, delegated):
    (base / "cgroup.controllers").write_text("cpu io memory pids\n")
    (base / "cgroup.subtree_control").write_text(delegated)


def test_version_1_of_cgroups(tmp_path):
    assert sandbox.cgroup_roots(tmp_path) == []
    version_1(tmp_path, ("memory", "pids", "cpuacct"))
    assert sandbox.cgroup_roots(tmp_path) == [tmp_path / "memory", tmp_path / "pids", tmp_path / "cpuacct"]


def test_a_cgroup_that_only_counts_limits_nothing(tmp_path, monkeypatch):
    version_1(tmp_path, ["cpuacct"])
    roots = sandbox.cgroup_roots(tmp_path)
    assert roots == [tmp_path / "cpuacct"]
    monkeypatch.setattr(sandbox, "cgroup_roots", lambda: roots)
    assert sandbox.limited_for_a_whole_box() == set()


@pytest.mark.parametrize("delegated", ["memory pids\n", "cpu\n", ""])
def test_version_2_of_cgroups(tmp_path, delegated):
    """Its controllers are on for the folders in it, or are turned on."""
    version_2(tmp_path, delegated)
    assert sandbox.cgroup_roots(tmp_path) == [tmp_path]
    written = (tmp_path / "cgroup.subtree_control").read_text()
    assert written == (delegated if "memory" in delegated else "+memory +pids")


def test_version_2_of_cgroups_that_is_not_delegated(tmp_path, monkeypatch):
    version_2(tmp_path, "cpu\n")

    def refuse(*_):  # as the kernel does where there are processes in the cgroup itself
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert sandbox.cgroup_roots(tmp_path) == []


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
