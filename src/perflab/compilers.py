"""What chapter 12.1 builds outside Python: an AOTInductor package, a C++ program; and fresh processes.

Both products take long to build, so they are kept under `_build/products/`, keyed by all that goes into them:
the program, its weights, the source, the versions and the processor. A product is built again when any of
these changes.
"""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from perflab import machine


class BuildFailed(RuntimeError):
    """The C++ compiler, or a program started in a fresh process, failed; its messages are quoted."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A file that was built: where it is, how long building took, and whether it had been built before."""

    path: Path
    seconds: float
    reused: bool

    def __str__(self) -> str:
        when = "built earlier (kept in _build/products)" if self.reused else "built now"
        size = f"{self.path.stat().st_size:,} bytes"
        return f"{self.path.name}: {size}, {when}, building took {self.seconds:.1f} s"


@functools.cache
def cxx() -> str | None:
    """The C++ compiler that torch.compile would use on this machine, or None."""
    candidates = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def product(name: str, key: Iterable[bytes | str], build: Callable[[Path], None]) -> Product:
    """The file `name`, made by `build(path)` unless it was made before from the same `key`.

    An interrupted build leaves nothing: the file gets its place only when it is complete.
    """
    digest = hashlib.sha256()
    for part in [name, *key]:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    place = _products() / digest.hexdigest()[:16]
    note = place / "built.json"
    if note.is_file():
        return Product(place / name, json.loads(note.read_text())["seconds"], reused=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=place.parent, prefix="unfinished-"))
    try:
        started = time.perf_counter()
        build(work / name)
        seconds = time.perf_counter() - started
        (work / "built.json").write_text(json.dumps({"seconds": seconds}))
        if not note.is_file():  # else another process was faster, and its product is as good
            os.rename(work, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Product(place / name, seconds, reused=False)


def aot_package(exported, name: str) -> Product:
    """`exported` (a torch.export.ExportedProgram) compiled by AOTInductor into the package `name` (.pt2)."""
    import torch

    tensors = {**exported.state_dict, **exported.constants}
    weights = [
        part
        for key, tensor in sorted(tensors.items())
        if isinstance(tensor, torch.Tensor)
        for part in (key, tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    ]
    # Not str(exported): it quotes the file and line of each operation.
    shapes = [str(node.meta.get("val")) for node in exported.graph.nodes]
    graph = [exported.graph_module.code, str(exported.graph_signature), *shapes]
    key = ["aot", *graph, *weights, torch.__version__, _processor(), cxx() or ""]

    def build(path: Path) -> None:
        with warnings.catch_warnings():
            # torch 2.13 copies its own tree specifications in a way that it calls deprecated
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path))

    return product(name, key, build)


def cpp_program(source: str, name: str) -> Product:
    """The C++ program `source`, compiled and linked against the installed torch's own headers and libraries.

    BuildFailed: there is no compiler, or it refused the source; its messages are quoted.
    """
    import torch
    from torch.utils import cpp_extension

    flags = ["-std=c++20", "-O1", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-I{path}" for path in cpp_extension.include_paths()]
    for path in cpp_extension.library_paths():
        flags += [f"-L{path}", f"-Wl,-rpath,{path}"]
    # A distribution's linker drops a library that the program names no symbol of, but torch_cpu registers
    # its operators by being loaded.
    flags += ["-Wl,--no-as-needed"] if sys.platform == "linux" else []
    flags += ["-ltorch", "-ltorch_cpu", "-lc10"]

    def build(path: Path) -> None:
        if cxx() is None:
            raise BuildFailed("No C++ compiler found. Install g++ or clang++, or name one in CXX.")
        text = path.with_suffix(".cpp")
        text.write_text(source)
        done = subprocess.run([cxx(), str(text), "-o", str(path), *flags], capture_output=True, text=True)
        if done.returncode:
            raise BuildFailed(f"{cxx()} refused {text.name}:\n{done.stderr[-3000:]}")

    return product(name, ["cpp", source, torch.__version__, _processor(), cxx() or "", *flags], build)


def run_program(*argv: str | Path, timeout_s: float = 120.0) -> str:
    """What a program prints. BuildFailed: it could not start or failed; its last messages are quoted."""
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        raise BuildFailed(f"{Path(argv[0]).name} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def fresh_python(source: str, *arguments: str | Path, timeout_s: float = 120.0):
    """Run Python source in a new, isolated process (-I): nothing of the notebook exists there.

    Returns the subprocess.CompletedProcess with `stdout`, `stderr` and `returncode`, failed or not: a failure
    can be the point.
    """
    command = [sys.executable, "-I", "-W", "ignore", "-c", source, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def _products() -> Path:
    """`_build/products` of the course's checkout; in a reader's own folder, beside the notebook."""
    checkout = Path(__file__).parents[2]
    return (checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()) / "_build/products"


def _processor() -> str:
    cpu = machine.describe()["cpu"]
    return f"{cpu['name']} {cpu['architecture']}"
