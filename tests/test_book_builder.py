"""The builder: what it must refuse, and what it must and must not do again. On a book of two pages."""

import json
import shutil
import sys

import nbformat
import polib
import pytest
from book_fixture import ROOT, TinyBook

sys.path.insert(0, str(ROOT / "book"))
import notebooks

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def finished_book(tmp_path_factory):
    """A complete, translated and built book, made where a kernel that is not ours bears the name python3."""
    book = TinyBook(tmp_path_factory.mktemp("book") / "tiny")
    foreign = book.root / "elsewhere" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"}))
    book.translate()
    result = book.run(JUPYTER_DATA_DIR=str(book.root / "elsewhere"))
    assert result.returncode == 0, result.stderr
    return book


@pytest.fixture
def book(finished_book, tmp_path):
    """A copy of it, to break."""
    shutil.copytree(finished_book.root, tmp_path / "tiny")
    copy = TinyBook.__new__(TinyBook)
    copy.root = tmp_path / "tiny"
    return copy


def refusal(book) -> str:
    """What the builder says; it has to refuse, in words and not with a traceback."""
    result = book.run()
    assert result.returncode == 1, result.stdout + result.stderr
    assert 'build.py", line' not in result.stderr
    assert "book: FAILED" in result.stderr
    return result.stderr


def test_both_editions_from_one_execution(finished_book):
    english, chinese = (finished_book.html(edition, "page") for edition in ("en", "zh"))
    assert finished_book.run_id() in chinese
    assert "A paragraph about" in english and "一段关于" in chinese
    assert "A paragraph about" not in chinese
    assert '<html lang="en"' in english and '<html lang="zh-CN"' in chinese


def test_pages_run_in_this_python_with_one_thread(finished_book):
    page = finished_book.html("en", "page")
    assert f"python {sys.executable}" in page
    assert "threads 1" in page


def test_page_says_where_and_when_it_was_executed(finished_book):
    from perflab import machine

    known, record = machine.describe(), finished_book.record("en")
    assert record["machine"]["cpu"] == known["cpu"]
    date = record["machine"]["date"][:10]
    for edition in ("en", "zh"):
        line = finished_book.html(edition, "page").split('class="executed-on">')[1].split("</p>")[0]
        for part in (date, known["cpu"]["name"], known["python"], known["versions"]["torch"]):
            assert part in line
        assert 'class="executed-on">' not in finished_book.html(edition, "index")  # nothing was executed there


def test_notebooks_to_download(finished_book):
    for edition, word in (("en", "A paragraph about cache line"), ("zh", "一段关于缓存行的话")):
        path = finished_book.root / "_build" / "html" / edition / "notebooks" / "page.ipynb"
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert word in text and "{term}" not in text and ":::" not in text
        assert {"en": "> **Note**", "zh": "> **注意**"}[edition] in text
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert finished_book.run_id() in code[0].outputs[0].text


def test_unchanged_book_is_not_built_again(book):
    built = (book.root / "_build" / "html" / "en" / "page.html").stat().st_mtime_ns
    result = book.run()
    assert result.returncode == 0 and "nothing changed" in result.stdout
    assert (book.root / "_build" / "html" / "en" / "page.html").stat().st_mtime_ns == built


def test_changed_prose_is_rendered_and_not_executed(book):
    before, record = book.run_id(), book.record("en")
    book.edit("page", "What memory moves.", "What memory really moves.")
    catalog = book.catalog("page")
    entry = next(e for e in catalog if e.msgid == "What memory moves.")
    entry.msgid, entry.msgstr = "What memory really moves.", "内存真正搬运的单位。"
    catalog.save()
    result = book.run()
    assert result.returncode == 0 and "executing" not in result.stdout, result.stderr
    assert "really moves" in book.html("en", "page") and "真正搬运" in book.html("zh", "page")
    assert book.run_id() == before and book.record("zh") == record  # the date is that of the execution


def test_changed_helper_executes_the_pages_again(book):
    before = book.run_id()
    (book.root / "src" / "perflab" / "helper.py").write_text("VALUE = 2\n")
    result = book.run()
    assert result.returncode == 0 and "executing page" in result.stdout, result.stderr
    assert book.run_id() != before
    assert book.run_id() in book.html("zh", "page")


def test_failed_cell(book):
    book.edit("page", "import os, sys, uuid", "import os, sys, uuid\n1 / 0")
    line = 2 + (book.root / "book" / "page.md").read_text("utf8").split("```{code-cell} python")[0].count("\n")
    said = refusal(book)
    assert f"book/page.md:{line} failed: ZeroDivisionError" in said and "1 / 0" in said


def test_cell_that_writes_to_stderr(book):
    book.edit("page", "import os, sys, uuid", 'import os, sys, uuid\nprint("a library complains", file=sys.stderr)')
    assert "page.md" in refusal(book)
    assert "page.md" in refusal(book)  # not forgotten by the second build


def test_untranslated_string(book):
    catalog = book.catalog("page")
    next(e for e in catalog if e.msgid == "The memory bandwidth is a note.").msgstr = ""
    catalog.save()
    assert "page: untranslated: 'The memory bandwidth is a note.'" in refusal(book)


def test_string_that_the_catalog_lacks(book):
    book.edit("index", "Welcome.", "A new sentence.\n\nWelcome.")
    assert "index: untranslated (not in the catalog): 'A new sentence.'" in refusal(book)


def test_stale_string(book):
    book.edit("page", ":::{note}\nThe memory bandwidth is a note.\n:::\n", "")
    assert "page: stale (no longer in the English page): 'The memory bandwidth is a note.'" in refusal(book)


def test_changed_string_is_fuzzy_until_somebody_looks(book):
    book.edit("page", "The memory bandwidth is a note.", "The memory bandwidth is a short note.")
    assert book.run("--update-po").returncode == 0
    entry = next(e for e in book.catalog("page") if "short note" in e.msgid)
    assert entry.fuzzy and entry.msgstr == "内存带宽是一条注记。"
    assert "page: fuzzy (the English changed; check the Chinese): 'The memory bandwidth is a short note.'" in refusal(book)


def test_updating_catalogs_that_are_up_to_date_changes_no_byte(book):
    folder = book.root / "book" / "locale" / "zh_CN" / "LC_MESSAGES"
    assert book.run("--update-po").returncode == 0
    before = {path.name: path.read_bytes() for path in folder.glob("*.po")}
    assert book.run("--update-po").returncode == 0
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.po")}


def test_page_without_catalog(book):
    (book.root / "book" / "locale" / "zh_CN" / "LC_MESSAGES" / "index.po").unlink()
    assert "index: no catalog" in refusal(book)


def test_broken_link(book):
    book.edit("index", "(page.md)", "(pages.md)")
    catalog = book.catalog("index")
    entry = next(e for e in catalog if "page.md" in e.msgid)
    entry.msgid, entry.msgstr = entry.msgid.replace("page.md", "pages.md"), entry.msgstr.replace("page.md", "pages.md")
    catalog.save()
    for _ in range(2):  # a second build without a change must not forget it
        assert "index.md:3: WARNING" in refusal(book)


def test_link_lost_in_translation(book):
    catalog = book.catalog("index")
    next(e for e in catalog if "page.md" in e.msgid).msgstr = "欢迎。请读这一页。"
    catalog.save()
    said = refusal(book)
    assert "index.md:3" in said and "references in translated message" in said


def test_page_that_does_not_exist(book):
    (book.root / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n  - file: page\n  - file: nowhere\n")
    assert "there is no page book/nowhere.md" in refusal(book)


def test_assignment_that_does_not_exist(book):
    book.edit("page", "```{glossary}", "```{student-notebook} 12-9\n```\n\n```{glossary}")
    assert "there is no assignment '12-9' to download" in refusal(book)


def test_plain_markdown_for_notebooks():
    text = "(a-target)=\n## A title\n\nA {term}`cache line` and {ref}`that <a-target>`.\n\n:::{tip}\nTry.\n\nTwice.\n:::\n"
    assert notebooks.plain_markdown(text) == (
        "## A title\n\nA cache line and that.\n\n> **Tip**\n>\n> Try.\n>\n> Twice.\n"
    )
    titled = "````{admonition} Rule\nOne.\n````"
    assert notebooks.plain_markdown(titled, "zh") == "> **Rule**\n>\n> One."
    assert notebooks.plain_markdown("```{math}\n:label: a\nx^2\n```") == "$$\nx^2\n$$"
    code = "```python\nx = 1\n```"
    assert notebooks.plain_markdown(code) == code


def test_translation_of_markdown_blocks():
    entries = [polib.POEntry(msgid=en, msgstr=zh) for en, zh in (
        ("A page", "一页"), ("A page of the book is long.", "书中的一页很长。"), ("cell", "格"), ("Said **twice**.", "说了**两遍**。"),
    )]  # fmt: skip
    text = "# A page\n\nA page of\nthe book is long.\n\n| cell | 2 |\n|---|---|\n| cell | cell |\n\n> Said\n> **twice**.\n\n1. cell"
    assert notebooks.translate(text, entries) == (
        "# 一页\n\n书中的一页很长。\n\n| 格 | 2 |\n|---|---|\n| 格 | 格 |\n\n> 说了**两遍**。\n\n1. 格"
    )


def test_links_between_notebooks(tmp_path):
    text = "See [the other](other.md#part) and [the glossary](glossary.md)."
    for name, source in (("page", text), ("other", "x")):
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source)])
        nbformat.write(page, tmp_path / f"{name}.ipynb")
    made = nbformat.reads(notebooks.page_notebook(tmp_path / "page.ipynb", None), as_version=4)
    assert made.cells[0].source == "See [the other](other.ipynb) and the glossary."


def test_markup_that_a_notebook_cannot_show(tmp_path):
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("```{mermaid}\na --> b\n```")])
    nbformat.write(page, tmp_path / "page.ipynb")
    with pytest.raises(ValueError, match=r"page, cell 0: no plain form for '```\{mermaid\}'"):
        notebooks.page_notebook(tmp_path / "page.ipynb", None)


def test_a_failed_build_leaves_the_last_site_in_place(book):
    before = book.html("en", "page")
    book.edit("index", "(page.md)", "(pages.md)")
    refusal(book)
    assert book.html("en", "page") == before


def test_preview_shows_an_unfinished_page(book):
    book.write("draft", "# A draft\n\nNot translated.\n")
    result = book.run("--page", "draft")
    assert result.returncode == 0 and "draft: no catalog" in result.stderr
    assert "Not translated." in (book.root / "_build" / "preview" / "draft" / "zh" / "draft.html").read_text("utf8")
    assert "executing" not in result.stdout
