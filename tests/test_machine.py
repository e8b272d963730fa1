"""perflab.machine: right where this machine can be asked otherwise, and at ease on every other kind."""

import json
import os
import platform
import subprocess
import sys

import pytest

from perflab import machine, units


@pytest.fixture(autouse=True)
def forget():
    """The slow answers are kept for the process's life; a test that changes the machine must not see them."""
    for cached in (machine._lscpu, machine._sysctl, machine.virtual):
        cached.cache_clear()
    yield
    for cached in (machine._lscpu, machine._sysctl, machine.virtual):
        cached.cache_clear()


def test_describe_is_json_and_complete():
    known = json.loads(json.dumps(machine.describe()))
    assert (
        known["cpu"]["usable"] == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else True
    )
    assert known["cpu"]["architecture"] == platform.machine()
    assert known["python"] == platform.python_version()
    assert known["memory_bytes"] > 2**28
    assert known["versions"]["numpy"].count(".") == 2
    assert known["date"].endswith("+00:00")


def test_line_has_what_a_reader_needs_and_is_one_line():
    line = machine.line()
    assert "\n" not in line
    assert f"Python {platform.python_version()}" in line
    assert "core" in line and "memory" in line and "torch" in line


def test_no_torch_and_no_numpy_are_imported():
    code = (
        "import sys; from perflab import machine; machine.describe(); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.skipif(not os.path.isdir("/sys/devices/system/cpu/cpu0/cache"), reason="no sysfs caches")
def test_caches_agree_with_the_c_library_here():
    by_level = {cache["level"]: cache["size_bytes"] for cache in machine.caches()}
    assert by_level == dict(sorted(by_level.items()))
    for cache in machine._caches_getconf():
        if cache["level"] <= 2:  # C libraries differ on the share of the last level
            assert by_level[cache["level"]] == cache["size_bytes"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        (  # an Arm core of a virtual machine: levels without sizes
            {"index0": {"level": "1", "type": "Data"}},
            [],
        ),
        (
            {
                "index0": {"level": "1", "type": "Data", "size": "64K", "coherency_line_size": "64"},
                "index1": {"level": "1", "type": "Instruction", "size": "64K", "coherency_line_size": "64"},
                "index2": {"level": "2", "type": "Unified", "size": "1M", "shared_cpu_list": "0-3,8"},
            },
            [(1, "data", 65536, 64, None), (2, "unified", 2**20, None, 5)],
        ),
    ],
)
def test_caches_from_any_sysfs(tmp_path, monkeypatch, files, expected):
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    for index, values in files.items():
        folder = tmp_path / f"cpu{core}/cache/{index}"
        folder.mkdir(parents=True)
        for name, value in values.items():
            (folder / name).write_text(value + "\n")
    monkeypatch.setattr(machine, "_SYS_CPU", tmp_path)
    found = machine._caches_sysfs()
    assert [
        (c["level"], c["kind"], c["size_bytes"], c["line_bytes"], c["shared_by"]) for c in found
    ] == expected


def test_caches_from_getconf_when_sysfs_is_silent(tmp_path, monkeypatch):
    table = (
        "LEVEL1_DCACHE_SIZE 32768\nLEVEL1_DCACHE_ASSOC 8\nLEVEL1_DCACHE_LINESIZE 64\n"
        "LEVEL2_CACHE_SIZE 0\nPATH\n"
    )
    monkeypatch.setattr(machine, "_SYS_CPU", tmp_path)
    monkeypatch.setattr(machine, "_output", lambda *command: table if command[0] == "getconf" else "")
    (cache,) = machine.caches()
    assert (cache["level"], cache["size_bytes"], cache["line_bytes"], cache["ways"]) == (1, 32768, 64, 8)
    assert cache["source"] == "getconf"


def test_macos_is_read_through_sysctl(tmp_path, monkeypatch):
    answers = {
        "hw.perflevel0.l1dcachesize": "131072",
        "hw.perflevel0.l2cachesize": "16777216",
        "hw.cachelinesize": "128",
        "hw.perflevel0.cpusperl2": "6",
        "hw.physicalcpu": "12",
        "machdep.cpu.brand_string": "Apple M3 Pro",
    }
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_SYS_CPU", tmp_path)
    monkeypatch.setattr(machine, "_read", lambda path: None)
    monkeypatch.setattr(
        machine, "_output", lambda *command: answers.get(command[-1], "") if command[0] == "sysctl" else ""
    )
    known = machine.describe()
    assert known["cpu"]["name"] == "Apple M3 Pro" and known["cpu"]["physical"] == 12
    assert [(c["level"], c["size_bytes"], c["line_bytes"]) for c in known["caches"]] == [
        (1, 131072, 128),
        (2, 16777216, 128),
    ]
    assert known["os"].startswith("macOS")


def test_a_machine_that_says_nothing_is_described_too(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_SYS_CPU", tmp_path)
    monkeypatch.setattr(machine, "_read", lambda path: None)
    monkeypatch.setattr(machine, "_output", lambda *command: "")
    known = machine.describe()
    json.dumps(known)
    assert known["caches"] == [] and known["gpus"] == [] and known["cpu"]["physical"] is None
    assert any("how large the caches are" in item["en"] for item in known["hidden"])
    assert machine.line()


def test_gpus_as_nvidia_smi_lists_them(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(
        machine,
        "_output",
        lambda *c: "NVIDIA A10G, 23028\nNVIDIA H100 80GB HBM3, [N/A]\n" if "smi" in c[0] else "",
    )
    assert [(g["name"], g["memory_bytes"]) for g in machine.gpus()] == [
        ("NVIDIA A10G", 23028 * 2**20),
        ("NVIDIA H100 80GB HBM3", None),
    ]


def test_a_program_that_is_missing_fails_or_hangs_says_nothing(tmp_path):
    assert machine._output("no-such-program-anywhere") == ""
    assert machine._output("false") == ""


def test_memory_is_the_containers_limit_where_that_is_lower(monkeypatch):
    limits = {"/sys/fs/cgroup/memory.max": "536870912"}
    monkeypatch.setattr(machine, "_read", lambda path: limits.get(str(path)))
    assert machine.memory_bytes() == 2**29
    limits["/sys/fs/cgroup/memory.max"] = "max"
    assert machine.memory_bytes() > 2**28


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ({}, None),
    ],
)
def test_cpu_quota(monkeypatch, files, expected):
    monkeypatch.setattr(machine, "_read", lambda path: files.get(str(path)))
    assert machine._cpu_quota() == expected


def test_a_virtual_machine_says_what_it_hides(monkeypatch):
    monkeypatch.setattr(machine, "virtual", lambda: "KVM + Docker")
    assert any("last-level cache" in item["en"] and item["zh"] for item in machine.hidden())
    monkeypatch.setattr(machine, "virtual", lambda: "Docker")
    assert not any("last-level cache" in item["en"] for item in machine.hidden())


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12 ms"),
        (0.123, "s", "120 ms"),
        (999.6e-6, "s", "1.0 ms"),
        (5e-9, "s", "5.0 ns"),
        (0, "s", "0 s"),
        (-3e-3, "s", "−3.0 ms"),
        (2.56e10, "B/s", "26 GB/s"),
        (1.0, "s", "1.0 s"),
        (float("inf"), "s", "inf s"),
    ],
)
def test_si_prints_two_figures(value, unit, text):
    assert units.si(value, unit) == text


def test_significant_and_size():
    assert units.significant(1234) == "1200"
    assert units.significant(0.996, 2) == "1.0"
    assert units.significant(float("nan")) == "nan"
    assert units.si(0.01234, "s", 3) == "12.3 ms"
    assert [units.size(n) for n in (0, 512, 49152, 2**25, 1500, 2**40)] == [
        "0 B",
        "512 B",
        "48 KiB",
        "32 MiB",
        "1.46 KiB",
        "1 TiB",
    ]
