"""What the exercises with a C answer share: accepting the C, timing it from outside, comparing an instrument's figures.

Three processes take part. The *answer's* runs the student's Python and C, and nothing it says is believed. The
*subject* runs the judge's Python and the student's C: it computes and is timed by the judge's clock, from outside,
since C can reach into the process it is loaded in. The *probe* runs the judge's Python and the judge's C alone.
"""

from __future__ import annotations

import functools
import math
import time

import numpy as np

from perflab import native

# Helpers inside each of the three processes. `exercise` is the module of the exercise, `functions` its bound library.
SOURCE = '''
import importlib
import numpy as np
from perflab import native

def use(name):
    global exercise
    exercise = importlib.import_module(name)

def install(shared):
    global functions
    functions = exercise.bind(native.load(shared.tobytes()))

def c_source():
    return answer.get("C_SOURCE")

def nothing():
    return None

def round_trips(function, n):
    import time
    times = []
    for _ in range(n):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
'''

ATTEMPTS = 3


def accept(session, host, parts, module, points: float):
    """Builds the answer's ``C_SOURCE``; adds a failed part and returns None where it is refused."""
    host.define(SOURCE)
    source = host.call("$c_source")
    try:
        return native.build(source, module.PROTOTYPES, session.run)
    except native.CError as error:
        parts.add("c", points, False, error.en, error.zh)
    return None


def start(host, source: str, module, shared: bytes | None = None) -> None:
    """Readies a process: the judge's helpers in `source`, the exercise's module, the answer's library if there is one."""
    host.define(SOURCE + source)
    host.call("$use", module.__name__, inference=False)
    if shared is not None:
        host.call("$install", np.frombuffer(shared, np.uint8), inference=False)


NO_SANITIZERS = (" (No sanitizers on this machine: the grader's check for undefined behaviour was not made.)",
                 "（本机没有 sanitizer：正式评分时还会检查未定义行为。）")  # fmt: skip


def sanitized(session, built, driver: str, cases: bytes) -> bytes | None:
    """What the driver wrote, or None on a student's own machine that has no sanitizers. Raises CError, NoCompiler."""
    try:
        return native.sanitized_run(built, driver, cases, session.run)
    except native.NoCompiler:
        if not session.public:
            raise
        return None


@functools.cache
def probe_library(name: str) -> bytes:
    """The judge's own C, ``csrc/<name>``, as a shared library; compiled once a process. Not an answer's: no sandbox."""
    cc = native.compiler_path()
    done = native.run_here(
        [cc, "-std=gnu11", "-O2", "-fPIC", "-shared", "-o", "probe.so", "probe.c"],
        {"probe.c": (native.CSRC / name).read_bytes()}, ["probe.so"],
    )  # fmt: skip
    if done.returncode:
        raise native.NoCompiler(f"{cc} could not compile the judge's own {name}: {done.stderr.strip()[:300]}")
    return done.files["probe.so"]


def overhead_s(host) -> float:
    """What a timed call costs that does nothing."""
    return min(host.timed_call("$nothing")[1] for _ in range(15))


def wait_until(deadline_s: float) -> None:
    """Waits until time.perf_counter() reaches `deadline_s`, to some microseconds: sleeps, then spins."""
    left = deadline_s - time.perf_counter()
    if left > 4e-4:
        time.sleep(left - 3e-4)
    while time.perf_counter() < deadline_s:
        pass


class Agreement:
    """Compares an instrument's figures with the judge's, attempt by attempt.

    A figure is shown as soon as one attempt agrees, wrong when two attempts disagree and none agrees, and open
    otherwise. An attempt where the judge's own two figures, before and after, differ by more than the factor says
    nothing. So a disturbance that hits one measurement costs nothing, and a wrong instrument disagrees each time.
    """

    def __init__(self):
        self.agreed: dict = {}
        self.disagreed: dict = {}
        self.last: dict = {}

    def note(self, key, value: float, before: float, after: float, factor: float) -> None:
        """One figure of one attempt: the instrument's `value`, the judge's `before` and `after`."""
        self.agreed.setdefault(key, 0)
        self.disagreed.setdefault(key, 0)
        if max(before, after) > factor * min(before, after):
            return
        low, high = sorted((before, after))
        self.last[key] = (value, math.sqrt(low * high))
        if low / factor <= value <= high * factor:
            self.agreed[key] += 1
        else:
            self.disagreed[key] += 1

    def ok(self, key) -> bool | None:
        """True, False, or None where it is still open."""
        if self.agreed.get(key):
            return True
        return False if self.disagreed.get(key, 0) >= 2 else None

    def all_ok(self, keys) -> bool | None:
        """All of `keys` together: False if one is wrong, else None if one is open."""
        states = [self.ok(key) for key in keys]
        return False if False in states else None if None in states else True

    def settled(self, keys) -> bool:
        """No figure is open."""
        return all(self.ok(key) is not None for key in keys)

    def wrong(self, keys) -> list:
        """The figures that disagree: (key, instrument's value, judge's)."""
        return [(key, *self.last[key]) for key in keys if self.ok(key) is False]


def positive(value) -> bool:
    """A finite positive Python number, not a bool."""
    return type(value) in (int, float) and math.isfinite(value) and value > 0
