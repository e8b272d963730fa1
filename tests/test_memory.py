"""perflab.memory: estimators on stored curves, loops against NumPy, refusals, and what holds on any machine."""

import ctypes
import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from perflab import machine, memory

KIB, MIB = memory.KIB, memory.MIB

# Minima over interleaved passes on one AMD Zen 5 core (48 KiB, 1 MiB, 32 MiB shared and by label only) in a
# virtual machine with a busy neighbour, 2026-12-01: four sizes an octave from 4 KiB to 128 MiB.
HUGE_PAGES = """
0.881 0.882 0.881 0.881 0.881 0.881 0.882 0.882 0.881 0.881 0.882 0.882 0.882 0.885 0.889 2.97 3.09 3.08 3.08
3.09 3.08 3.08 3.08 3.08 3.08 3.09 3.08 3.27 3.48 3.68 4.24 4.84 5.74 7.54 9.23 9.58 10.8 10.9 11 11.5 11.9 11.5
12.2 12.6 12 12.8 12.7 12.2 15.5 21.2 28.7 48 51.4 98.3 91.9 102 109 112 117 124 127
"""
SMALL_PAGES = """
0.881 0.881 0.882 0.882 0.88 0.882 0.882 0.882 0.881 0.881 0.882 0.881 0.882 0.885 0.889 3 3.09 3.08 3.08 3.09
3.09 3.09 3.09 3.09 3.09 3.08 3.09 3.27 3.48 3.69 3.87 4.59 6.83 7.55 9.56 11.3 11.1 10.7 10.9 11.5 11.4 11.5 12
13.1 12.4 12.7 12.8 13 19.9 27.5 33.6 52.6 57.5 90.8 99 102 125 115 129 139 132
"""
SIZES = memory.octaves(4 * KIB, 128 * MIB)


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """The measured parts need the C library; without a compiler the probes' refusal is what is tested."""
    try:
        return memory._library()
    except memory.NoCompiler as problem:
        pytest.skip(str(problem))


# ---- where a curve steps up --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [HUGE_PAGES, SMALL_PAGES], ids=["huge pages", "small pages"])
def test_a_recorded_curve_gives_the_processors_caches(text):
    ns = [float(v) for v in text.split()]
    levels = memory.cache_sizes(SIZES, ns)
    assert len(levels) == 3
    assert 48 * KIB / 1.2 < levels[0]["bytes"] < 48 * KIB * 1.2
    assert MIB / 1.3 < levels[1]["bytes"] < MIB * 1.3
    assert 8 * MIB < levels[2]["bytes"] < 40 * MIB  # in a virtual machine what the neighbours left
    assert [round(level["ns"], 1) for level in levels[:2]] == [0.9, 3.1]


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_made_up_machines(levels, seed):
    """Levels 3 octaves and 2× apart, soft edges, noise of 5 %, one point in twenty disturbed upwards."""
    rng = np.random.default_rng(seed)
    capacity = 16 * KIB * 8.0 ** np.arange(levels) * rng.uniform(1, 1.8, levels)
    plateau = 1.1 * np.cumprod(rng.uniform(2.2, 4.5, levels + 1))
    sizes = np.array(memory.octaves(4 * KIB, int(capacity[-1] * 8)))
    ns = np.full(len(sizes), plateau[0])
    for c, low, high in zip(capacity, plateau, plateau[1:], strict=False):
        miss = 1 / (1 + np.exp(-8 * np.log2(sizes / c)))  # the edge takes about an octave
        ns = ns + (high - low) * miss
    ns = ns * rng.normal(1, 0.05, len(ns)).clip(0.85, 1.15)
    ns[rng.random(len(ns)) < 0.05] *= 1.5
    found = [level["bytes"] for level in memory.cache_sizes(sizes, ns)]
    assert len(found) == levels
    assert (np.abs(np.log2(np.array(found) / capacity)) < np.log2(1.5)).all()


def test_a_flat_curve_has_no_cache():
    noise = np.random.default_rng(1).normal(1, 0.02, len(SIZES))
    assert memory.cache_sizes(SIZES, 3.0 * noise) == []


def test_a_slope_is_no_plateau():
    """An edge spread over two octaves is one step, not a level of its own between."""
    sizes = np.array(SIZES)
    ns = np.interp(np.log2(sizes), [12, 18, 20, 27], [1.0, 1.0, 10.0, 10.0])
    assert len(memory.cache_sizes(sizes, ns)) == 1


@pytest.mark.parametrize(
    ("sizes", "ns"),
    [([1, 2, 3], [1, 1, 1]), ([1, 2, 2, 4], [1] * 4), ([1, 2, 3, 4], [1, 1, 0, 1]), ([1, 2, 3, 4], [1, 1])],
)
def test_what_is_no_curve_is_refused(sizes, ns):
    with pytest.raises(ValueError, match="ascending sizes"):
        memory.cache_sizes(sizes, ns)


# ---- the loops do what they say ----------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [1, 2, 3, 64, 1000])
def test_a_ring_is_one_cycle_through_every_line(lines):
    array = memory.buffer(lines * 64)
    offsets = np.arange(lines) * 64 + 24
    at = memory._ring(array, offsets, np.random.default_rng(3)).value
    seen = set()
    for _ in range(lines):
        seen.add(at - array.ctypes.data)
        at = int(array.view(np.uint64)[(at - array.ctypes.data) // 8])
    assert seen == set(offsets.tolist())
    assert at - array.ctypes.data in seen


def test_rings_share_lines_without_harming_each_other():
    reading = memory.latency([1 * KIB, 2 * KIB, 3 * KIB, 4 * KIB], passes=1, sample_ns=1e3)
    assert [p["bytes"] for p in reading.points] == [1 * KIB, 2 * KIB, 3 * KIB, 4 * KIB]


@pytest.mark.parametrize("n", [1, 7, 8, 100, 4099])
@pytest.mark.parametrize("stride", [1, 3, 8, 64, 5000])
def test_a_sweep_reads_every_element_once(compiler, n, stride):
    a = np.random.default_rng(n).integers(0, 2**63, n, dtype=np.uint64)
    total = ctypes.c_uint64()
    compiler.pl_sweep(a.ctypes.data, n, stride, stride, 1, ctypes.byref(total))
    assert total.value == int(a.sum(dtype=np.uint64))
    compiler.pl_sweep(a.ctypes.data, n, stride, 1, 3, ctypes.byref(total))
    assert total.value == 3 * int(a[::stride].sum(dtype=np.uint64)) % 2**64


def test_a_scatter_reads_every_element_once(compiler):
    a = np.random.default_rng(5).integers(0, 2**63, 4096, dtype=np.uint64)
    total = ctypes.c_uint64()
    compiler.pl_scatter(a.ctypes.data, a.size, ctypes.byref(total))
    assert total.value == int(a.sum(dtype=np.uint64))


@pytest.mark.parametrize("offset", [0, 1, 60, 4092])
def test_a_store_touches_its_eight_bytes_only(compiler, offset):
    array = memory.buffer(8192, huge=False)
    array[:] = 0xAB
    compiler.pl_store(array.ctypes.data + offset, 8)
    assert (array[offset : offset + 8] == 0).all()
    assert np.count_nonzero(array != 0xAB) == 8


def test_false_sharing_counts_every_addition(compiler):
    array = memory.buffer(8192)
    ns = (ctypes.c_double * 2)()
    assert compiler.pl_sharing(array.ctypes.data, 128, 1000, 2, None, ns) == 0
    counters = array.view(np.uint64)
    assert counters[0] == counters[16] == 1000
    assert np.count_nonzero(counters) == 2


def test_a_buffer_is_zero_aligned_and_its_own():
    a, b = memory.buffer(3 * MIB, huge=True), memory.buffer(64, huge=False)
    assert a.ctypes.data % (2 * MIB) == 0
    assert not a.any()
    a[:] = 1
    assert not b.any()
    assert "pages" in memory.page_state(a)
    assert "2 MiB" not in memory.page_state(b)


# ---- what holds on any machine -----------------------------------------------------------------------------


def test_memory_is_slower_than_the_first_cache():
    reading = memory.latency([8 * KIB, 256 * MIB], passes=3)
    assert reading.value(bytes=256 * MIB) > 3 * reading.value(bytes=8 * KIB)


def test_a_random_order_is_slower_than_a_sequential_one():
    reading = memory.stride([8, 64], passes=3)
    assert reading.value(stride_bytes=0) > 2 * reading.value(stride_bytes=8)
    assert reading.value(stride_bytes=64) > 1.5 * reading.value(stride_bytes=8)


def test_the_mountain_has_every_point_that_fits():
    reading = memory.mountain([16 * KIB, 1 * MIB], [8, 2048], passes=2)
    assert {(p["bytes"], p["stride_bytes"]) for p in reading.points} == {
        (16 * KIB, 8),
        (1 * MIB, 8),
        (1 * MIB, 2048),
    }
    assert all(p["value"] > 0 for p in reading.points)


def test_within_a_line_alignment_costs_nothing():
    """On every processor that allows unaligned access at all; a split is never cheaper (wide margins)."""
    cases = memory.alignment_cases()
    reading = memory.alignment(sorted(cases.values()))
    for access in ("load latency", "load", "store"):
        ns = {name: reading.value(access=access, offset_bytes=at) for name, at in cases.items()}
        assert ns["unaligned"] < 1.5 * ns["aligned"]
        assert ns["line split"] > 0.7 * ns["aligned"]
        assert ns["page split"] > 0.7 * ns["line split"]


def test_bandwidth_and_arithmetic():
    reading = memory.bandwidth(8 * MIB, threads=1, repeats=3)
    assert [p["kernel"] for p in reading.points] == ["copy", "scale", "add", "triad"]
    assert all(0.1 < p["value"] < 10_000 and len(p["samples"]) == 3 for p in reading.points)
    assert memory.arithmetic(count=100_000, passes=3).points[0]["value"] > 0.5
    # more threads than processors must end, too
    assert memory.bandwidth(4 * MIB, threads=machine.usable_cores() + 1, repeats=1)


def test_few_pages_are_never_slower_than_many():
    reading = memory.tlb([16, 2048], passes=5)
    spread = reading.value(layout="one a page", lines=2048)
    assert spread > 0.8 * reading.value(layout="packed", lines=2048)


def test_one_set_holds_few_lines():
    reading = memory.associativity(lines=[1, 2, 32, 64], passes=3)
    page = reading.points[0]["distance_bytes"]
    assert reading.value(distance_bytes=page, lines=64) > 0.8 * reading.value(distance_bytes=page, lines=1)


@pytest.mark.skipif(machine.usable_cores() < 2, reason="one processor")
def test_false_sharing_is_never_faster():
    reading = memory.false_sharing([8, 512], passes=5)
    assert reading.value(threads=2, distance_bytes=8) > 0.8 * reading.value(threads=2, distance_bytes=512)


def test_loopback():
    reading = memory.loopback(round_trips=200, bulk_bytes=16 * MIB, repeats=2)
    assert reading.value(quantity="round trip") > 0.5
    assert len(reading.select(quantity="round trip")[0]["samples"]) == 200
    assert reading.value(quantity="one way") > 0.01


# ---- files -------------------------------------------------------------------------------------------------


def test_file_reads_name_how_they_were_made(tmp_path):
    reading = memory.file_reads(tmp_path, file_bytes=8 * MIB, reads=64, depths=(1, 4), passes=2)
    assert reading.value(how="page cache", access="sequential") > 10
    assert {p["depth"] for p in reading.select(how="page cache", access="random")} == {1, 4}
    assert reading.conditions["device"]
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_a_given_file_is_read_and_kept(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(os.urandom(4 * MIB))
    memory.file_reads(path=str(path), reads=16, passes=1)
    assert path.stat().st_size == 4 * MIB


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no O_DIRECT on this system")
def test_without_direct_reads_the_cache_is_dropped(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(memory, "_file_system", lambda path: "ext4")
    reading = memory.file_reads(tmp_path, file_bytes=2 * MIB, reads=16, passes=1)
    assert "dropped" in reading.conditions["device"]
    assert reading.select(how="device")


def test_memory_posing_as_a_disk_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_file_system", lambda path: "tmpfs")
    reading = memory.file_reads(tmp_path, file_bytes=2 * MIB, reads=16, passes=1)
    assert "tmpfs lies in memory" in reading.conditions["device"]
    assert not reading.select(how="device")


def test_a_folder_that_is_not_there_is_a_sentence():
    reading = memory.file_reads("/nowhere-at-all")
    assert not reading
    assert "/nowhere-at-all" in reading.cannot
    assert "另指定" in reading.cannot


# ---- machines that can't ------------------------------------------------------------------------------------


def test_one_processor(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    reading = memory.false_sharing()
    assert not reading
    assert "one processor" in reading.cannot
    assert "处理器" in reading.cannot


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """As on a machine that has never built the probes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(memory, "_cache_folder", lambda: tmp_path)
    memory._library.cache_clear()
    yield
    memory._library.cache_clear()


def test_no_compiler(monkeypatch, fresh_library):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    for probe in (memory.latency, memory.bandwidth, memory.alignment, memory.arithmetic):
        reading = probe()
        assert not reading
        assert "install" in reading.cannot
        assert "安装" in reading.cannot
        assert str(reading).count("compiler")


def test_a_broken_compiler_is_quoted(monkeypatch, fresh_library, tmp_path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'licence expired' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert "licence expired" in memory.latency([4096]).cannot


def test_a_home_that_cannot_be_written(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such")
    monkeypatch.setattr(Path, "home", lambda: Path("/proc/no-such"))
    folder = memory._cache_folder()
    assert folder.is_dir()
    folder.rmdir()


def test_no_sysfs(monkeypatch):
    monkeypatch.setattr(machine, "caches", lambda: [])
    assert memory.line_bytes() == 64
    assert memory.stream_array_bytes() == 128 * MIB
    assert memory.latency([4 * KIB], passes=1).conditions["line"] == "64 B"


@pytest.mark.parametrize("source", sorted(memory._SOURCE.parent.glob("*.c")), ids=lambda p: p.stem)
@pytest.mark.parametrize("compiler_name", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_the_c_compiles_without_a_warning(compiler_name, source, tmp_path):
    """The probes, and the exercises' drivers. For Arm that is all that can be checked where no Arm machine is at hand."""
    if not shutil.which(compiler_name):
        pytest.skip(f"{compiler_name} is not installed")
    flags = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror", "-c", "-fPIC", "-pthread"]
    command = [compiler_name, *flags, "-o", str(tmp_path / "object.o"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- a reading ----------------------------------------------------------------------------------------------


def test_a_reading_tells_everything():
    points = ({"bytes": 4096, "value": 1.0, "samples": [1.0, 1.2]}, {"bytes": 8192, "value": 2.0, "samples": [2.0]})
    reading = memory.Reading("loads", "ns", "minimum", points, {"threads": 1})
    assert reading.value(bytes=8192) == 2.0
    x, y = reading.curve("bytes")
    assert x.tolist() == [4096, 8192]
    assert y.tolist() == [1.0, 2.0]
    for part in ("loads [ns], minimum", "4 KiB", "n = 2", "threads: 1"):
        assert part in str(reading)
    assert json.loads(reading.to_json())["points"][0]["samples"] == [1.0, 1.2]
    with pytest.raises(KeyError, match="0 points"):
        reading.value(bytes=1)
