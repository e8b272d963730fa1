"""Build the book: one English source, two sites, every page executed once.

    python book/build.py                      all of it, strictly, into _build/html/{en,zh}
    python book/build.py --page NAME …        a quick look at some pages, into _build/preview/NAME/{en,zh}; not strict
    python book/build.py --update-po          bring the translators' files up to date with the English source
    python book/build.py --serve [PORT]       look at what is built, on localhost

The steps, in this order: execute the pages that need it, one at a time; compare the Chinese catalogs with the source
(the figures' text alternatives are strings to translate, so execution comes first); let Sphinx render both languages
from the stored outputs. A build of a book that has not changed does nothing. book/README.md is the authors' guide.
"""

import argparse
import copy
import fcntl
import functools
import hashlib
import http.server
import json
import os
import pprint
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ASSETS = HERE / "assets"

# What differs between the two editions and isn't in the pages. Keys are Sphinx's.
EDITIONS = {
    "en": {"language": "en"},
    "zh": {
        "language": "zh_CN",
        "html_title": "计算性能",
        "project": "计算性能",
        "author": "《计算性能》作者",
        "nb_code_prompt_show": "展开单元格",
        "nb_code_prompt_hide": "收起单元格",
    },
}

# The theme's own Chinese lacks these: titles and labels of its buttons.
INTERFACE_ZH = {
    "Color mode": "明暗模式",
    "Dark": "暗色",
    "Light": "亮色",
    "Link to this code": "代码链接",
    "Link to this definition": "定义链接",
    "Link to this equation": "公式链接",
    "Link to this heading": "本节链接",
    "Link to this image": "图片链接",
    "Link to this table": "表格链接",
    "Link to this term": "术语链接",
    "Main": "主要区域",
    "Page": "本页",
    "Search...": "搜索…",
    "System Settings": "跟随系统",
    "Toggle hidden content": "展开或收起",
    "Toggle primary sidebar": "展开或收起全书目录",
    "Toggle secondary sidebar": "展开或收起本页目录",
}

# Chapters time things: what runs in parallel is what a page asks for, on every machine alike.
KERNEL_ENV = {
    name: "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
} | {
    "PYTHONNOUSERSITE": "1",  # a package in the author's home is not in requirements.txt
    "PYTHONHASHSEED": "0",
}


class BuildError(Exception):
    """The book can't be built. The message says where, what was expected and what to do."""


class Book:
    """The folders of one book: `root` holds _config.yml, _toc.yml, book/, src/perflab and solutions/."""

    def __init__(self, root: Path, pages: list[str] | None = None):
        self.root = root
        self.source = root / "book"
        self.locale = self.source / "locale"
        self.build = root / "_build"
        self.preview = pages is not None
        self.site = self.build / "preview" / pages[0] if pages else self.build / "html"
        self.work = self.build / "work" / (pages[0] if pages else "book")
        self.config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
        self.toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
        self.pages = list(_files_of_toc(self.toc))
        for page in pages or self.pages:
            if not (self.source / f"{page}.md").is_file():
                raise BuildError(f"there is no page book/{page}.md (named in _toc.yml or by --page)")
        self.asked_for = pages or self.pages
        if self.preview:  # beside the pages asked for, those that need no execution: home page, glossary
            free = [p for p in self.pages if p not in pages and not _has_code(read_page(self.source / f"{p}.md"))]
            self.pages = free + pages
            self.toc = {"format": "jb-book", "root": free[0], "chapters": [{"file": p} for p in self.pages[1:]]}
        self.executed = self.work / "executed"
        self.student_notebooks = self.work / "student"
        # An imported helper is as much a part of a page's code as its cells are, and so are the versions.
        helpers = [f for f in (root / "src" / "perflab").rglob("*") if "__pycache__" not in f.parts]
        recorded = _digest((ASSETS / "recorded").glob("*.json"), ASSETS)
        key = _digest([*helpers, root / "requirements.txt"], root, recorded, sys.version, json.dumps(KERNEL_ENV))
        self.cache = self.build / "jupyter-cache" / key

    def digest(self) -> str:
        """Of everything that the site is made of."""
        builder = [*HERE.glob("*.py"), *(HERE / "_ext").rglob("*.*"), *ASSETS.rglob("*")]
        files = [self.root / "_config.yml", self.root / "_toc.yml", *self.locale.rglob("*.po")]
        files += [self.source / f"{page}.md" for page in self.pages]
        files += [*(self.root / "solutions").glob("*.md"), *(self.root / "grader").glob("*.py")]
        return _digest(files, self.root, self.cache.name, _digest((f for f in builder if f.suffix != ".pyc"), HERE))


def _digest(files, root: Path, *more: str) -> str:
    """Of the names (below `root`) and contents of these files, and of `more`."""
    total = hashlib.sha256("\0".join(more).encode())
    for file in sorted(f for f in files if f.is_file()):
        total.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _files_of_toc(entry):
    """The pages of a _toc.yml, in reading order."""
    if "root" in entry:
        yield entry["root"]
    if "file" in entry:
        yield entry["file"]
    for key in ("parts", "chapters", "sections"):
        for child in entry.get(key, []):
            yield from _files_of_toc(child)


# ── executing ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_page(path: Path):
    """The page as a notebook, read exactly as Sphinx will read it (so that the cache is found), or None."""
    from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook

    text = path.read_text("utf8")
    if not is_myst_markdown_notebook(text):
        return None
    return read_myst_markdown_notebook(text, add_source_map=True, path=path)


def _has_code(notebook) -> bool:
    return notebook is not None and any(cell.cell_type == "code" for cell in notebook.cells)


def execute_pages(book: Book, force: bool) -> None:
    """Execute each page whose code, helpers or versions changed; leave `<page>.ipynb` in book.executed."""
    import nbformat
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    cache = get_cache(str(book.cache))
    book.executed.mkdir(parents=True, exist_ok=True)
    for page in book.pages:
        source, out = book.source / f"{page}.md", book.executed / f"{page}.ipynb"
        notebook = read_page(source)
        if not _has_code(notebook):
            out.unlink(missing_ok=True)
            continue
        try:
            record = None if force else cache.match_cache_notebook(notebook)
        except KeyError:
            record = None
        if record is None:
            print(f"book: executing {page} …", end="", flush=True)
            executed, facts = _execute(notebook, source, book)
            print(f" {facts['execution_seconds']:.0f} s", flush=True)
            record = cache.cache_notebook_bundle(
                CacheBundleIn(executed, str(source), data=facts), check_validity=False, overwrite=True
            )
        _, merged = cache.merge_match_into_notebook(notebook)
        merged.metadata["execution_record"] = record.data
        text = nbformat.writes(merged)
        if not out.is_file() or out.read_text("utf8") != text:
            out.write_text(text, "utf8")


def _execute(notebook, source: Path, book: Book):
    """Run all cells in a fresh kernel of *this* Python. Returns the notebook and the record of its execution."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from perflab import machine

    # The machine may have other kernels under the name python3; the book's is the one that has requirements.txt.
    # Jupyter looks in JUPYTER_PATH before it looks anywhere else.
    kernel = book.work / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"],
        "display_name": "Python 3",
        "language": "python",
        "env": KERNEL_ENV,
    }
    (kernel / "kernel.json").write_text(json.dumps(spec), "utf8")
    os.environ["JUPYTER_PATH"] = str(book.work / "jupyter")
    with tempfile.TemporaryDirectory() as folder:
        # Pages write files; they find recorded runs as a reader of the repository does, under assets/.
        os.symlink(ASSETS, Path(folder, "assets"))
        client = NotebookClient(
            notebook,
            timeout=book.config.get("execute", {}).get("timeout", 600),
            kernel_name="python3",
            record_timing=False,  # it is metadata of the cells, by which the cache would no longer know them
            resources={"metadata": {"path": folder}},
        )
        described, began = machine.describe(), time.time()
        try:
            client.execute()
        except CellExecutionError:
            print()  # the error is in the notebook; below it is said which cell it was
        except (CellTimeoutError, DeadKernelError) as error:
            raise BuildError(
                f"page {source.stem}: a cell did not finish: {str(error).strip().splitlines()[0]}\n"
                "A cell has to end within execute.timeout seconds (_config.yml) and within the machine's memory."
            ) from error
        seconds = round(time.time() - began, 1)
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or "raises-exception" in cell.metadata.get("tags", []):
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
                line = notebook.metadata.source_map[number] + 1
                raise BuildError(
                    f"page {source.stem}: the cell at book/{source.name}:{line} failed: {output.ename}: {output.evalue}\n"
                    + "\n".join(trace.splitlines()[-25:])
                )
    return notebook, {"execution_seconds": seconds, "machine": described}


def release_student_notebooks(book: Book) -> None:
    """Make the notebook of each assignment that a page offers, as the grader releases it, in a course of our own."""
    shutil.rmtree(book.student_notebooks, ignore_errors=True)
    book.student_notebooks.mkdir(parents=True)
    offers = (re.findall(r"\{student-notebook\}[ \t]*(\S+)", (book.source / f"{p}.md").read_text("utf8")) for p in book.pages)
    names = sorted({name for names in offers for name in names if (book.root / "solutions" / f"{name}.md").is_file()})
    if not names:
        return
    course = book.build / "course"
    course.mkdir(exist_ok=True)
    _run(
        [sys.executable, "-m", "grader", "release", *names, "--course-dir", str(course)],
        f"the students' notebooks of {', '.join(names)} can't be made from solutions/", cwd=book.root, quiet=True,
    )  # fmt: skip
    for name in names:
        shutil.copyfile(course / "release" / name / f"{name}.ipynb", book.student_notebooks / f"{name}.ipynb")


# ── translating ───────────────────────────────────────────────────────────────────────────────────────────────


def make_templates(book: Book, strict: bool = True) -> Path:
    """Extract the English strings: one `<page>.pot` a page, in the folder returned."""
    folder = book.work / "gettext"
    shutil.rmtree(folder, ignore_errors=True)
    sphinx(book, "en", builder="gettext", out=folder, strict=strict)
    return folder


def check_translations(book: Book, templates: Path) -> list[str]:
    """What keeps the Chinese edition from being complete, a line each, with page and string."""
    import polib

    problems = []
    catalogs = book.locale / "zh_CN" / "LC_MESSAGES"
    for page in book.asked_for:
        wanted = {e.msgid for e in polib.pofile(str(templates / f"{page}.pot"))} - {""}
        path = catalogs / f"{page}.po"
        if not path.is_file():
            problems.append(f"{page}: no catalog: expected book/locale/zh_CN/LC_MESSAGES/{page}.po")
            continue
        entries = [e for e in polib.pofile(str(path)) if not e.obsolete]
        for entry in entries:
            if entry.msgid not in wanted:
                problems.append(f"{page}: stale (no longer in the English page): {_short(entry.msgid)}")
            elif entry.fuzzy:
                problems.append(f"{page}: fuzzy (the English changed; check the Chinese): {_short(entry.msgid)}")
            elif not entry.msgstr.strip():
                problems.append(f"{page}: untranslated: {_short(entry.msgid)}")
        known = {e.msgid for e in entries}
        problems += [f"{page}: untranslated (not in the catalog): {_short(m)}" for m in wanted if m not in known]
    if not book.preview:
        for path in sorted(catalogs.glob("*.po")):
            if path.stem not in book.pages and not (book.source / f"{path.stem}.md").is_file():
                problems.append(f"{path.stem}: stale catalog: there is no page book/{path.stem}.md")
    return problems


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 90 else text[:87] + "…")


def update_po(book: Book) -> None:
    """Bring the .po files up to date: translations are kept, changed strings marked fuzzy, lost ones removed."""
    from babel.messages import pofile

    execute_pages(book, force=False)
    templates = make_templates(book, strict=False)  # a link may wait for its page, the translation need not
    folder = book.locale / "zh_CN" / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    for page in book.asked_for:
        with (templates / f"{page}.pot").open("rb") as file:
            template = pofile.read_po(file)
        path = folder / f"{page}.po"
        if path.is_file():
            with path.open("rb") as file:
                catalog = pofile.read_po(file, locale="zh_CN")
            catalog.update(template)
        else:
            catalog = template
            catalog.locale = "zh_CN"
        catalog.fuzzy = False
        catalog.header_comment = f"# The Chinese edition of book/{page}.md."
        # Neither dates nor places in the file: a catalog changes when a translation does, and only then.
        with path.open("wb") as file:
            pofile.write_po(file, catalog, width=110, no_location=True, omit_header=False, ignore_obsolete=True)
        text = re.sub(r'^"(?!Language:|MIME|Content).*\n', "", path.read_text("utf8").split("\n\n", 1)[0] + "\n", flags=re.M)
        path.write_text(text + "\n" + path.read_text("utf8").split("\n\n", 1)[1], "utf8")
        left = sum(1 for m in catalog if m.id and (m.fuzzy or not m.string))
        print(f"book: {os.path.relpath(path, book.root)}: {left} to translate" if left else f"book: {path.name}: complete")


# ── rendering ─────────────────────────────────────────────────────────────────────────────────────────────────


def write_conf(book: Book, edition: str) -> Path:
    """Jupyter Book's settings for one edition, as the conf.py that Sphinx reads. Returns its folder."""
    from jupyter_book.config import get_final_config

    folder = book.work / "conf" / edition
    folder.mkdir(parents=True, exist_ok=True)
    toc = folder / "_toc.yml"
    toc.write_text(yaml.safe_dump(_translated_toc(book, edition), allow_unicode=True, sort_keys=False), "utf8")
    settings, _ = get_final_config(
        user_yaml=book.root / "_config.yml",
        sourcedir=book.source,
        cli_config={"latex_individualpages": False},
        raise_on_invalid=True,
    )
    # No live kernels and no comments: their scripts would only add weight and messages to every page.
    unused = {"sphinx_thebe", "sphinx_comments", "sphinx_jupyterbook_latex"}
    settings["extensions"] = [e for e in settings["extensions"] if e not in unused]
    settings |= {
        "external_toc_path": str(toc),
        "html_static_path": [str(ASSETS / "site")],
        "html_favicon": str(ASSETS / "site" / "favicon.svg"),
        "html_extra_path": [str(unpack_vendor(book))],
        "templates_path": [str(HERE / "_ext" / "templates")],
        "locale_dirs": [str(book.locale)],
        "nb_execution_cache_path": str(book.cache),
        "book_executed": str(book.executed),
        "book_student_notebooks": str(book.student_notebooks),
    } | EDITIONS[edition]
    text = f"import sys\nsys.path.insert(0, {str(HERE / '_ext')!r})\n"
    text += "".join(f"{key} = {pprint.pformat(settings[key])}\n" for key in sorted(settings))
    (folder / "conf.py").write_text(text, "utf8")
    return folder


def _translated_toc(book: Book, edition: str) -> dict:
    """The table of contents with its captions in the edition's language; Sphinx's own translation comes too early."""
    import polib

    catalog = book.locale / "zh_CN" / "LC_MESSAGES" / f"{book.toc['root']}.po"
    toc = copy.deepcopy(book.toc)
    if edition == "zh" and catalog.is_file():
        chinese = {e.msgid: e.msgstr for e in polib.pofile(str(catalog)) if e.msgstr}
        for part in toc.get("parts", []):
            part["caption"] = chinese.get(part["caption"], part["caption"])
    return toc


def unpack_vendor(book: Book) -> Path:
    """Unpack the scripts and fonts of others (book/assets/README.md); the site gets them beside its pages."""
    folder = book.build / "vendor" / _digest((ASSETS / "vendor").glob("*.xz"), ASSETS)
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        for archive in sorted((ASSETS / "vendor").glob("*.tar.xz")):
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
        part.rename(folder)
    return folder


def sphinx(book: Book, edition: str, *, builder: str, out: Path, strict: bool = True) -> None:
    """Run Sphinx for one edition; every warning is an error (if not `strict`, or in a preview, a message)."""
    # Sphinx is silent about a page that it has stored: a strict run must not find what a lenient one left.
    doctrees = book.work / "doctrees" / f"{edition}-{builder}{'' if strict else '-lenient'}"
    # -a: navigation, titles and search on each page depend on all the others; writing is cheap, reading is cached.
    command = [sys.executable, "-m", "sphinx", "-q", "-a", "-b", builder, "-n", "--keep-going"]
    command += ["-c", str(write_conf(book, edition)), "-d", str(doctrees)]
    if strict and not book.preview:
        command += ["-W"]
    try:
        _run([*command, str(book.source), str(out)], f"Sphinx: the {builder} of the edition {edition!r} has warnings or errors")
    except BuildError:
        # Sphinx stores a page that it warned about, and would be silent about it next time.
        shutil.rmtree(doctrees, ignore_errors=True)
        raise


def _run(command: list[str], failure: str, cwd: Path | None = None, quiet: bool = False) -> None:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    said = (result.stderr + result.stdout).strip()
    if result.returncode:
        raise BuildError(f"{failure}:\n{said}")
    if said and not quiet:
        print(said, file=sys.stderr)


def finish(page: Path, edition: str) -> None:
    """Correct in a rendered page what no setting of the theme can."""
    # Without JavaScript nothing turns the theme's "auto" into one of the two themes that have colours.
    text = page.read_text("utf8").replace('data-theme="auto"', 'data-theme="light"', 1)
    if edition == "zh":
        label = re.compile(r'\b(title|aria-label|placeholder)="([^"]+)"')
        text = label.sub(lambda m: f'{m[1]}="{INTERFACE_ZH.get(m[2], m[2])}"', text)
    page.write_text(text, "utf8")


_ICON = re.compile(r'(?:"([a-z0-9-]+)"|\b(\w+)):\[\d+,\d+,\[([^\]]*)\],"[0-9a-f]+",(?:"[^"]*"|\["[^"]*","[^"]*"\])\],?')


def keep_used_icons(out: Path) -> None:
    """Take the icons that nothing names out of the theme's script: two thousand of them, half a megabyte on every page."""
    script = out / "_static" / "scripts" / "fontawesome.js"
    texts = [*out.glob("*.html"), *(f for f in out.rglob("_static/**/*.js") if f != script)]
    used = {name for text in texts for name in re.findall(r"\bfa-([a-z0-9-]+)", text.read_text("utf8"))}

    def kept(icon: re.Match) -> str:
        name, aliases = icon[1] or icon[2], re.findall(r'"([a-z0-9-]+)"', icon[3])
        return icon[0] if used & {name, *aliases} else ""

    script.write_text(_ICON.sub(kept, script.read_text("utf8")), "utf8")


def publish_notebooks(book: Book, edition: str, folder: Path) -> None:
    """The pages and the students' notebooks, to download."""
    from notebooks import page_notebook

    shutil.copytree(book.student_notebooks, folder)
    catalogs = book.locale / "zh_CN" / "LC_MESSAGES" if edition == "zh" else None
    for page in book.pages:
        executed = book.executed / f"{page}.ipynb"
        if executed.is_file():
            try:
                (folder / f"{page}.ipynb").write_text(page_notebook(executed, catalogs), "utf8")
            except ValueError as error:
                raise BuildError(f"page {error}") from error


def build(book: Book, force: bool = False) -> None:
    """Everything; raises BuildError with all that is wrong in the first step that finds something wrong."""
    stamp = book.site / ".built"
    digest = book.digest()
    if not force and not book.preview and stamp.is_file() and stamp.read_text() == digest:
        print(f"book: nothing changed: {os.path.relpath(book.site / 'index.html')}")
        return
    stamp.unlink(missing_ok=True)
    release_student_notebooks(book)
    execute_pages(book, force)
    problems = check_translations(book, make_templates(book))
    if problems:
        report = "\n".join(["the Chinese edition is incomplete:", *(f"  {p}" for p in problems)])
        report += "\nRun `make po`, then edit book/locale/zh_CN/LC_MESSAGES/<page>.po (book/README.md)."
        if not book.preview:
            raise BuildError(report)
        print(f"book: {report}", file=sys.stderr)
    rendered = {edition: book.work / "out" / edition / "html" for edition in EDITIONS}

    def render(edition: str) -> None:
        if force:
            shutil.rmtree(book.work / "doctrees" / f"{edition}-html", ignore_errors=True)
        shutil.rmtree(rendered[edition], ignore_errors=True)  # a page that is no longer in the book
        sphinx(book, edition, builder="html", out=rendered[edition])
        for page in rendered[edition].glob("*.html"):
            finish(page, edition)
        keep_used_icons(rendered[edition])
        publish_notebooks(book, edition, rendered[edition] / "notebooks")

    with ThreadPoolExecutor() as pool:  # nothing is timed any more
        list(pool.map(render, EDITIONS))
    # Only a complete site takes the place of the old one.
    book.site.mkdir(parents=True, exist_ok=True)
    for edition, out in rendered.items():
        shutil.rmtree(book.site / edition, ignore_errors=True)
        shutil.copytree(out, book.site / edition, ignore=shutil.ignore_patterns(".buildinfo*"))
    shutil.copyfile(ASSETS / "choose-language.html", book.site / "index.html")
    shutil.copyfile(ASSETS / "site" / "favicon.svg", book.site / "favicon.svg")
    stamp.write_text(digest)
    print(f"book: built {os.path.relpath(book.site / 'index.html')}")


def serve(folder: Path, port: int) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"book: http://127.0.0.1:{server.server_port}/ (Ctrl+C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", nargs="+", metavar="NAME", help="only these pages, as a preview; in no _toc.yml yet")
    parser.add_argument("--update-po", action="store_true")
    parser.add_argument("--force", action="store_true", help="execute and render everything again")
    parser.add_argument("--serve", nargs="?", type=int, const=8000, metavar="PORT")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the folder with _config.yml and _toc.yml")
    args = parser.parse_args()
    try:
        pages = [p.removesuffix(".md").removeprefix("book/") for p in args.page] if args.page else None
        book = Book(args.root.resolve(), pages)
        if args.serve is not None:
            serve(book.site, args.serve)
            return 0
        book.build.mkdir(exist_ok=True)
        with (book.build / "lock").open("w") as lock:
            try:  # two builds at once would time each other's cells
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("book: another build is running; waiting for its end", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            update_po(book) if args.update_po else build(book, args.force)
    except BuildError as error:
        print(f"book: FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
