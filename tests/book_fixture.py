"""A book of two small pages, built by the same builder and settings as the course's own, to break in every way."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polib

ROOT = Path(__file__).resolve().parents[1]

HOME = """# Home

Welcome. Read [the page](page.md).
"""

PAGE = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
  display_name: Python 3
  language: python
---

# The page

A paragraph about {term}`cache line`, with `code` and $2n^3$.

:::{note}
The memory bandwidth is a note.
:::

```{code-cell} python
import os, sys, uuid
print(f"python {sys.executable}")
print(f"threads {os.environ['OMP_NUM_THREADS']}")
print(f"run {uuid.uuid4().hex}")
```

```{glossary}
cache line
  What memory moves.
```
"""

CHINESE = {
    "Home": "主页",
    "Welcome. Read [the page](page.md).": "欢迎。请读[这一页](page.md)。",
    "The page": "本页",
    "A paragraph about {term}`cache line`, with `code` and $2n^3$.": "一段关于{term}`缓存行 <cache line>`的话，含 `code` 与 $2n^3$。",
    "The memory bandwidth is a note.": "内存带宽是一条注记。",
    "cache line": "缓存行",
    "What memory moves.": "内存搬运的单位。",
}


class TinyBook:
    """Folders of a book; `build()` runs the builder on them."""

    def __init__(self, root: Path):
        self.root = root
        (root / "book").mkdir(parents=True)
        (root / "src" / "perflab").mkdir(parents=True)
        (root / "src" / "perflab" / "helper.py").write_text("VALUE = 1\n")
        (root / "requirements.txt").write_text("torch==2.13.0\n")
        shutil.copyfile(ROOT / "_config.yml", root / "_config.yml")
        (root / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n  - file: page\n")
        self.write("index", HOME)
        self.write("page", PAGE)

    def write(self, page: str, text: str) -> None:
        (self.root / "book" / f"{page}.md").write_text(text, "utf8")

    def edit(self, page: str, old: str, new: str) -> None:
        text = (self.root / "book" / f"{page}.md").read_text("utf8")
        assert old in text
        self.write(page, text.replace(old, new))

    def catalog(self, page: str) -> polib.POFile:
        return polib.pofile(str(self.root / "book" / "locale" / "zh_CN" / "LC_MESSAGES" / f"{page}.po"))

    def translate(self) -> None:
        """What a translator does: make the catalogs, fill in what is known."""
        assert self.run("--update-po").returncode == 0
        for page in ("index", "page"):
            catalog = self.catalog(page)
            for entry in catalog:
                entry.msgstr = entry.msgstr or CHINESE.get(entry.msgid, "")
            catalog.save()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(ROOT / "book" / "build.py"), "--root", str(self.root), *arguments],
            capture_output=True, text=True, env=os.environ | environment,
        )  # fmt: skip

    def html(self, edition: str, page: str) -> str:
        return (self.root / "_build" / "html" / edition / f"{page}.html").read_text("utf8")

    def run_id(self) -> str:
        """Another value at each execution of the page."""
        return re.search(r"run ([0-9a-f]{32})", self.html("en", "page"))[1]

    def record(self, edition: str) -> dict:
        path = self.root / "_build" / "html" / edition / "notebooks" / "page.ipynb"
        return json.loads(path.read_text("utf8"))["metadata"]["execution_record"]
