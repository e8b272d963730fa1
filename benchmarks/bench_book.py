"""What a rebuild of the unchanged book costs: as it is asked for, and when everything is rendered again.

And how long its chapters took to execute, by the record that the book keeps and its pages show.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 20.0  # for a rebuild of an unchanged book, all of it rendered again, nothing executed
CHAPTERS = ((("12-1", "12-3"), 150.0), (("12-4",), 90.0), (("12-5", "12-6"), 180.0))  # executed in at most so many seconds


def build_s() -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, ROOT / "book" / "build.py"], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode or "executing" in done.stdout:
        sys.exit(f"not a rebuild of an unchanged book:\n{done.stdout}{done.stderr}")
    return seconds


def executions() -> dict[str, dict]:
    """chapter → the record of its page's execution."""
    pages = sorted((ROOT / "_build" / "work" / "book" / "executed").glob("12-*.ipynb"))
    return {page.stem[:4]: json.loads(page.read_text("utf8"))["metadata"]["execution_record"] for page in pages}


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
    records = executions()
    print("executing, with whatever else the machine did then (again: python book/build.py --force):")
    for chapters, limit_s in CHAPTERS:
        seconds = sum(records[chapter]["execution_seconds"] for chapter in chapters)
        dates = ", ".join(records[chapter]["machine"]["date"] for chapter in chapters)
        over = seconds > limit_s
        slow |= over
        print(f"  {' + '.join(chapters)}: {seconds:.0f} s on {dates}; limit {limit_s:.0f} s: {'EXCEEDED' if over else 'kept'}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
