"""What this machine is: processor, caches, memory, graphics cards, versions, and what it does not show.

Every function answers on Linux (x86 and Arm, bare, in a container or a virtual machine) and on macOS, raises
nothing, imports neither torch nor NumPy, and returns values that `json.dumps` takes. What cannot be found out
is None or missing from the list, never a guess.
"""

import datetime
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from perflab import units

_SYS_CPU = Path("/sys/devices/system/cpu")
_PACKAGES = ("torch", "numpy")  # those whose version changes a timing


def describe() -> dict:
    """All that is known about this machine, as one JSON-able dict.

    Keys: `cpu` (name, architecture, logical, physical, usable: cores this process may run on, quota: cores'
    worth of time its container may use, or None), `caches`, `memory_bytes` (what this process may use),
    `virtual` (the hypervisor's or container's name, or None), `hidden` (what cannot be seen here), `gpus`,
    `os`, `python`, `versions` (of the packages that matter for timing), `date` (UTC, ISO 8601).
    """
    return {
        "cpu": {
            "name": _cpu_name(),
            "architecture": platform.machine(),
            "logical": os.cpu_count(),
            "physical": _physical_cores(),
            "usable": usable_cores(),
            "quota": _cpu_quota(),
        },
        "caches": caches(),
        "memory_bytes": memory_bytes(),
        "virtual": virtual(),
        "hidden": hidden(),
        "gpus": gpus(),
        "os": _os_name(),
        "python": platform.python_version(),
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def line() -> str:
    """The same in one line, to print under a measurement: processor, cores, memory, system, versions."""
    known = describe()
    cpu = known["cpu"]
    usable, logical = cpu["usable"], cpu["logical"]
    parts = [cpu["name"] or f"unknown {cpu['architecture']} processor"]
    cores = f"{usable} of {logical} cores" if logical and usable != logical else _plural(usable, "core")
    parts.append(cores + (f" (quota {units.significant(cpu['quota'], 3)})" if cpu["quota"] else ""))
    if known["memory_bytes"]:
        parts.append(f"{units.size(known['memory_bytes'])} memory")
    parts += [gpu["name"] for gpu in known["gpus"]] or ["no GPU"]
    parts.append(known["os"] + (f" in {known['virtual']}" if known["virtual"] else ""))
    parts.append(f"Python {known['python']}")
    parts += [f"{package} {version}" for package, version in known["versions"].items()]
    parts.append(known["date"][:10])
    return ", ".join(parts)


def usable_cores() -> int:
    """The number of logical cores that this process may run on; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """The memory that this process may use: the machine's, or its container's limit if that is lower."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (ValueError, OSError):
        found = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read(path)
        if limit and limit.isdigit():  # cgroup v2 says "max" where there is no limit, v1 a huge number
            found.append(int(limit))
    return min(found, default=None)


def caches(cpu: int | None = None) -> list[dict]:
    """The data and unified caches of core `cpu` (None: the first usable one), smallest first; [] where the system is silent.

    Each: `level`, `kind` ("data" or "unified"), `size_bytes`, `line_bytes`, `ways`, `shared_by` (number of
    logical cores), `source`; what is not known is None. It is what the system *says*: a virtual machine
    passes on the processor's label, not the share that its neighbours leave. Chapter 12.4 measures it.
    """
    return _caches_sysfs(cpu) or _caches_sysctl() or _caches_getconf()


def gpus() -> list[dict]:
    """The graphics processors: from torch if it is imported already, else from `nvidia-smi`; [] for none.

    Each: `name`, `memory_bytes` (or None), `source`. torch is asked first as it alone knows what it can use.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [{"name": g.name, "memory_bytes": g.total_memory, "source": "torch"} for g in found]
    table = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    rows = [row.rsplit(",", 1) for row in table.splitlines() if row.count(",")]
    return [
        {
            "name": name.strip(),
            "memory_bytes": int(mib) * 2**20 if mib.strip().isdigit() else None,
            "source": "nvidia-smi",
        }
        for name, mib in rows
    ]


@functools.cache
def virtual() -> str | None:
    """What stands between this process and the hardware ("KVM + Docker"), or None where nothing is seen."""
    found = []
    if (vendor := _lscpu().get("Hypervisor vendor")) is not None:
        found.append(vendor)
    elif "hypervisor" in (_read("/proc/cpuinfo") or "").split() or _sysctl("kern.hv_vmm_present") == "1":
        found.append("a virtual machine")
    if "microsoft" in platform.release().lower():
        found.append("WSL")
    if Path("/.dockerenv").exists():
        found.append("Docker")
    elif Path("/run/.containerenv").exists():
        found.append("Podman")
    return " + ".join(found) or None


def hidden() -> list[dict]:
    """What a measurement here cannot see or trust, each as {"en": …, "zh": …}; [] on an open machine."""
    found = []
    name = virtual()
    if name and set(name.split(" + ")) - {"Docker", "Podman"}:
        found.append(
            {
                "en": f"A virtual machine ({name}): other guests share the last-level cache, the memory "
                "bandwidth and the clock with this one, and nothing here shows how much they take.",
                "zh": f"虚拟机（{name}）：末级缓存、内存带宽和主频与其他客户机共享，"
                "而在这里看不出被它们占去了多少。",
            }
        )
    counters = Path("/sys/bus/event_source/devices")
    if sys.platform == "linux" and not [*counters.glob("*cpu*"), *counters.glob("*pmu*")]:
        found.append(
            {
                "en": "No hardware performance counters: cache misses can be timed but not counted.",
                "zh": "没有硬件性能计数器：缓存未命中只能计时，不能计数。",
            }
        )
    if not caches():
        found.append(
            {
                "en": "The system does not say how large the caches are.",
                "zh": "系统没有给出缓存的大小。",
            }
        )
    if usable_cores() == 1:
        found.append(
            {
                "en": "One usable core: nothing that runs side by side can get faster here.",
                "zh": "只有一个可用的核：任何并行在这里都不会变快。",
            }
        )
    return found


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def _output(*command: str) -> str:
    """What a command prints, or "" where it is missing, fails or takes longer than five seconds."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, env={**os.environ, "LC_ALL": "C"}, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@functools.cache
def _lscpu() -> dict[str, str]:
    if sys.platform != "linux":
        return {}
    pairs = (row.partition(":") for row in _output("lscpu").splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@functools.cache
def _sysctl(name: str) -> str | None:
    return (_output("sysctl", "-n", name).strip() or None) if sys.platform == "darwin" else None


def _cpu_name() -> str | None:
    in_proc = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    # An Arm kernel writes numbers where x86 writes a name; lscpu knows what they stand for.
    lscpu = _lscpu()
    arm = " ".join(filter(None, (lscpu.get("Vendor ID"), lscpu.get("Model name")))) or None
    name = (in_proc and in_proc[1]) or arm or _sysctl("machdep.cpu.brand_string") or platform.processor()
    return re.sub(r"\((?:R|TM)\)|\s+CPU(?= @)", "", name) if name and name != "-" else None


def _physical_cores() -> int | None:
    if (count := _sysctl("hw.physicalcpu")) is not None:
        return int(count)
    siblings = {_read(path) for path in _SYS_CPU.glob("cpu[0-9]*/topology/thread_siblings_list")} - {None}
    return len(siblings) or None


def _cpu_quota() -> float | None:
    """Cores' worth of CPU time that the container may use, where its cgroup sets a limit."""
    fields = (_read("/sys/fs/cgroup/cpu.max") or "").split()
    if not fields:
        fields = [_read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return int(fields[0]) / int(fields[1])
    return None


def _os_name() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {re.match(r'[0-9.]*[0-9]|.*', platform.release())[0]}"


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _bytes(text: str | None) -> int | None:
    found = re.fullmatch(r"(\d+)([KMG]?)", text or "")
    return int(found[1]) * 1024 ** " KMG".index(found[2] or " ") if found else None


def like_cores(cpus: set[int]) -> set[int]:
    """Those of `cpus` that are of the fastest kind among them, on a processor with cores of several kinds; else all."""
    speed = {}
    for cpu in cpus:
        known = _read(_SYS_CPU / f"cpu{cpu}" / "cpu_capacity") or _read(_SYS_CPU / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq")
        speed[cpu] = int(known) if known and known.isdigit() else 0
    # Favoured cores of one kind differ by a few per cent, kinds by a third and more.
    return {cpu for cpu in cpus if speed[cpu] >= 0.85 * max(speed.values())}


def _caches_sysfs(cpu: int | None = None) -> list[dict]:
    core = cpu if cpu is not None else min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found = []
    for index in _SYS_CPU.glob(f"cpu{core}/cache/index[0-9]*"):
        names = ("level", "type", "size", "coherency_line_size", "shared_cpu_list")
        text = {name: _read(index / name) for name in names}
        size_bytes = _bytes(text["size"])
        if not size_bytes or not text["level"] or text["type"] not in ("Data", "Unified"):
            continue
        ways = _read(index / "ways_of_associativity")
        found.append(
            {
                "level": int(text["level"]),
                "kind": text["type"].lower(),
                "size_bytes": size_bytes,
                "line_bytes": _bytes(text["coherency_line_size"]) or None,
                "ways": int(ways) or None if ways and ways.isdigit() else None,
                "shared_by": _count_cpus(text["shared_cpu_list"]),
                "source": "sysfs",
            }
        )
    return sorted(found, key=lambda cache: cache["level"])


def _count_cpus(cpu_list: str | None) -> int | None:
    """How many cores "0-3,8" names."""
    if not cpu_list or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", cpu_list):
        return None
    ends = [[int(end) for end in part.split("-")] for part in cpu_list.split(",")]
    return sum(end[-1] - end[0] + 1 for end in ends)


def _caches_sysctl() -> list[dict]:
    """macOS: the performance cores' caches (perflevel0) where there are two kinds of core."""
    found = []
    for level, key in ((1, "l1dcachesize"), (2, "l2cachesize"), (3, "l3cachesize")):
        size_bytes = _sysctl(f"hw.perflevel0.{key}") or _sysctl(f"hw.{key}")
        if size_bytes and int(size_bytes):
            line_bytes = _sysctl("hw.cachelinesize")
            found.append(
                {
                    "level": level,
                    "kind": "data" if level == 1 else "unified",
                    "size_bytes": int(size_bytes),
                    "line_bytes": int(line_bytes) if line_bytes else None,
                    "ways": None,
                    "shared_by": int(_sysctl("hw.perflevel0.cpusperl2") or 0) or None if level == 2 else None,
                    "source": "sysctl",
                }
            )
    return found


def _caches_getconf() -> list[dict]:
    """The C library's answer: all that is left where sysfs has no caches, as in some sandboxes."""
    table = dict(row.split(None, 1) for row in _output("getconf", "-a").splitlines() if len(row.split()) == 2)
    found = []
    for level, name in ((1, "LEVEL1_DCACHE"), (2, "LEVEL2_CACHE"), (3, "LEVEL3_CACHE"), (4, "LEVEL4_CACHE")):
        size_bytes, line_bytes, ways = (
            int(table[f"{name}_{what}"]) if table.get(f"{name}_{what}", "").isdigit() else 0
            for what in ("SIZE", "LINESIZE", "ASSOC")
        )
        if size_bytes:
            found.append(
                {
                    "level": level,
                    "kind": "data" if level == 1 else "unified",
                    "size_bytes": size_bytes,
                    "line_bytes": line_bytes or None,
                    "ways": ways or None,
                    "shared_by": None,
                    "source": "getconf",
                }
            )
    return found
