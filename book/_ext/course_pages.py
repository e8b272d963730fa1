"""What this course adds to every page: the other language, the page as a notebook, and where its outputs were made.

It keeps a formula and the punctuation mark behind it on one line. It also adds the directive ``student-notebook``: ```` ```{student-notebook} 12-2 ``` ```` puts the download of an
assignment's notebook on a page. book/build.py has written the files it needs before Sphinx starts:

- ``<book_executed>/<page>.ipynb``: the executed page; ``metadata.execution_record`` says when and where;
- ``<book_student_notebooks>/<assignment>.ipynb``: the notebook a student gets.
"""

import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from myst_nb.core.execute import cache as myst_nb_cache
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)

TEXT = {
    "en": {
        "switch": ("zh", "zh-CN", "中文", "本页中文版"),
        "notebook": "This page as a Jupyter notebook",
        "executed": "Outputs computed on {date}, in {seconds:.0f} s, on: {machine}.",
        "cores": "{} cores",
        "memory": "{:.0f} GiB memory",
        "no_gpu": "no GPU",
        "comma": ", ",
        "exercises": "Exercise notebook",
        "exercises_note": "Download it, open it in JupyterLab, and hand in the same file.",
    },
    "zh_CN": {
        "switch": ("en", "en", "English", "This page in English"),
        "notebook": "下载本页的 Jupyter 笔记本",
        "executed": "本页输出于 {date} 运行得到，用时 {seconds:.0f} 秒。运行环境：{machine}。",
        "cores": "{} 核",
        "memory": "{:.0f} GiB 内存",
        "no_gpu": "无 GPU",
        "comma": "，",
        "exercises": "练习笔记本",
        "exercises_note": "下载后用 JupyterLab 打开，完成后提交同一个文件。",
    },
}


def refuse_to_execute(*args, **kwargs):
    """Takes the place of MyST-NB's execution: book/build.py alone executes, once, in its kernel, with a record."""
    raise ExtensionError("a page is not in the execution cache: was it edited during this build? Build again.")


def execution_record(app, page: str) -> dict | None:
    """The record of the page's execution, or None for a page without code."""
    path = Path(app.config.book_executed, f"{page}.ipynb")
    if not path.is_file():
        return None
    return json.loads(path.read_text("utf8"))["metadata"].get("execution_record")


def machine_line(machine: dict, text: dict) -> str:
    """One line of `perflab.machine.describe()`, in the page's language."""
    cpu = machine["cpu"]
    parts = [cpu["name"] or cpu["architecture"], text["cores"].format(cpu["usable"])]
    if machine["memory_bytes"]:
        parts.append(text["memory"].format(machine["memory_bytes"] / 2**30))
    parts += [gpu["name"] for gpu in machine["gpus"]] or [text["no_gpu"]]
    parts += [" / ".join(filter(None, (machine["os"], machine["virtual"]))), f"Python {machine['python']}"]
    parts += [f"{package} {version}" for package, version in machine["versions"].items()]
    return text["comma"].join(parts)


def say_where_executed(app, doctree, docname):
    """Put the line under the title. Done on the resolved tree, so that no translation of it is ever asked for."""
    record = execution_record(app, docname)
    if app.builder.format != "html" or record is None:
        return
    text = TEXT[app.config.language]
    line = text["executed"].format(
        date=record["machine"]["date"].replace("T", " ")[:16] + " UTC",
        seconds=record["execution_seconds"],
        machine=machine_line(record["machine"], text),
    )
    title = next(doctree.findall(nodes.title))
    title.parent.insert(title.parent.index(title) + 1, nodes.paragraph("", line, classes=["executed-on"]))


def keep_marks_with_formulas(app, doctree, docname):
    """A browser may break the line behind a formula; a punctuation mark would then begin the next one."""
    for formula in list(doctree.findall(nodes.math)):
        after = formula.next_node(descend=False, siblings=True)
        marks = re.match(r"[,.;:!?)，。；：！？、）」”]+", after) if isinstance(after, nodes.Text) else None
        if marks:
            parent = formula.parent
            parent.replace(after, nodes.Text(after[marks.end():]))
            together = nodes.inline("", "", classes=["together"])
            parent.replace(formula, together)
            together += [formula, nodes.Text(marks[0])]


def add_page_tools(app, pagename, templatename, context, doctree):
    """Give page-tools.html the address of this page in the other language and as a notebook."""
    text = TEXT[app.config.language]
    folder, code, name, tooltip = text["switch"]
    root = context["pathto"]("", 1)  # from this page to the top of this language's site
    context["other_language"] = {
        "url": f"{root}../{folder}/{pagename}.html", "code": code, "name": name, "tooltip": tooltip
    }  # fmt: skip
    if execution_record(app, pagename):
        context["page_notebook"] = {
            "url": f"{root}notebooks/{pagename}.ipynb", "tooltip": text["notebook"]
        }  # fmt: skip


class StudentNotebook(SphinxDirective):
    """``{student-notebook} ASSIGNMENT``: a card with the download of that assignment's notebook."""

    required_arguments = 1

    def run(self):
        if self.env.app.builder.name == "gettext":
            return []  # nothing here to translate, and the notebook need not be there yet
        name = self.arguments[0]
        path = Path(self.config.book_student_notebooks, f"{name}.ipynb")
        if not path.is_file():
            logger.warning(
                "there is no assignment %r to download: expected solutions/%s.md", name, name,
                location=self.get_location(),
            )  # fmt: skip
            return []
        self.env.note_dependency(str(path))
        text = TEXT.get(self.config.language, TEXT["en"])
        size_kb = max(1, round(path.stat().st_size / 1000))
        up = "../" * self.env.docname.count("/")
        # No attribute of a docutils reference becomes `download`, without which a browser shows the file as text.
        html = (
            f'<div class="student-notebook"><a href="{up}notebooks/{escape(name)}.ipynb" download>'
            f"<strong>{text['exercises']} {escape(name)}.ipynb</strong> <span>({size_kb} kB)</span></a>"
            f"<p>{text['exercises_note']}</p></div>"
        )
        return [nodes.raw("", html, format="html")]


def setup(app):
    app.add_config_value("book_executed", "", "env", str)
    app.add_config_value("book_student_notebooks", "", "env", str)
    myst_nb_cache.single_nb_execution = refuse_to_execute
    app.add_directive("student-notebook", StudentNotebook)
    app.connect("doctree-resolved", say_where_executed)
    app.connect("doctree-resolved", keep_marks_with_formulas)
    app.connect("html-page-context", add_page_tools)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
