"""What a rebuild of the unchanged book costs: as it is asked for, and when everything is rendered again."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 20.0  # for a rebuild of an unchanged book, all of it rendered again, nothing executed


def build_s() -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, ROOT / "book" / "build.py"], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode or "executing" in done.stdout:
        sys.exit(f"not a rebuild of an unchanged book:\n{done.stdout}{done.stderr}")
    return seconds


def main() -> int:
    subprocess.run([sys.executable, ROOT / "book" / "build.py"], check=True)
    unchanged = [build_s() for _ in range(5)]
    rendered = []
    for _ in range(3):
        (ROOT / "_build" / "html" / ".built").unlink()
        rendered.append(build_s())
    pages = len(list((ROOT / "_build" / "html" / "en").glob("*.html"))) - 1  # without the search page
    for name, seconds in (("nothing to do", unchanged), ("everything rendered again", rendered)):
        spread = f"{min(seconds):.2f}–{max(seconds):.2f} s"
        print(f"book of {pages} pages, 2 editions, {name}: {statistics.median(seconds):.2f} s (n = {len(seconds)}, {spread})")
    slow = min(rendered) > LIMIT_S  # what other programs of this machine take is not the builder's
    print(f"limit {LIMIT_S:.0f} s: {'EXCEEDED' if slow else 'kept'}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
