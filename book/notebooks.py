"""A page of the book as a notebook to download: plain Markdown and the stored outputs, in either language.

JupyterLab without extensions shows no MyST directives and roles, so what the pages use of them is turned into
Markdown that any notebook program shows. What can't be turned raises ValueError: better no notebook than one with
markup in its text.
"""

import re
from pathlib import Path

import nbformat
import polib

# What may stand before the text of a block of Markdown: marks of lists, headings, quotations, tables.
_LEAD = r"(?:^[ \t]*(?:(?:[-*+]|\d+\.|[#>|:]+)[ \t]+)*|(?<=\|)[ \t]*)"
_ADMONITION = re.compile(
    r"^(?P<fence>:{3,}|`{3,})\{(?P<kind>note|tip|warning|important|seealso|admonition|dropdown|hint)\}[ \t]*"
    r"(?P<title>[^\n]*)\n(?P<options>(?::\w+:[^\n]*\n)*)(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.M | re.S,
)
_STUDENT = re.compile(r"^(`{3,}|:{3,})\{student-notebook\}[ \t]*(\S+)\s*^\1[ \t]*$", re.M)
_MATH = re.compile(r"^(`{3,}|:{3,})\{math\}[^\n]*\n(?::\w+:[^\n]*\n)*(.*?)^\1[ \t]*$", re.M | re.S)
_GLOSSARY = re.compile(r"^(`{3,}|:{3,})\{glossary\}[^\n]*\n(.*?)^\1[ \t]*$", re.M | re.S)
_TARGET = re.compile(r"^\([\w.:-]+\)=[ \t]*\n", re.M)
_LINK = re.compile(r"\[([^\]]*)\]\(([\w.-]+)\.md(?:#[^)]*)?\)")
_ROLE_WITH_TEXT = re.compile(r"\{[\w:-]+\}`([^`<]+?)\s*<[^`>]+>`")
_ROLE = re.compile(r"\{[\w:-]+\}`([^`]+)`")
_ATTRIBUTES = re.compile(r"^\{[.#][^}\n]*\}[ \t]*\n|(?<=[\])`])\{[.#][^}\n]*\}", re.M)
_LEFT = re.compile(r"^(?:> ?)*(?:`{3,}|:{3,})\{[\w-]+\}|\{[\w:-]+\}`", re.M)
_TITLES = {
    "en": {"note": "Note", "tip": "Tip", "warning": "Warning", "important": "Important", "seealso": "See also", "hint": "Hint"},
    "zh": {"note": "注意", "tip": "提示", "warning": "警告", "important": "重要", "seealso": "参见", "hint": "提示"},
}  # fmt: skip


def page_notebook(executed: Path, catalogs: Path | None) -> str:
    """The executed page as the text of an .ipynb; in Chinese where `catalogs` (the folder of the .po files) is given.

    Raises ValueError for MyST markup that has no plain form here.
    """
    notebook = nbformat.read(executed, as_version=4)
    language = "zh" if catalogs else "en"
    catalog = catalogs / f"{executed.stem}.po" if catalogs else None
    po = polib.pofile(str(catalog)) if catalog and catalog.is_file() else []
    chinese = {entry.msgid: entry.msgstr for entry in po if entry.msgstr and not entry.fuzzy}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            cell.source = plain_markdown(translate(cell.source, po), language)
            cell.source = _LINK.sub(lambda m: _link(m[1] or m[2], executed.with_name(f"{m[2]}.ipynb")), cell.source)
            if left := _LEFT.search(cell.source):
                raise ValueError(f"{executed.stem}, cell {number}: no plain form for {left.group()!r} (book/notebooks.py)")
        cell["id"] = f"cell-{number}"
        for output in cell.get("outputs", []):
            _choose_language(output, chinese)
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        **{k: v for k, v in notebook.metadata.items() if k in ("widgets", "execution_record")},
    }
    notebook.nbformat_minor = 5
    return nbformat.writes(notebook)


def _link(text: str, notebook: Path) -> str:
    """To the other page's notebook, which lies beside this one; a page without code has none."""
    return f"[{text}]({notebook.name})" if notebook.is_file() else text


def _choose_language(output, chinese: dict[str, str]) -> None:
    """A figure carries its Chinese version beside it (perflab.plot.show); keep one, and its text alternative."""
    for mime, extra in output.get("metadata", {}).items():
        if isinstance(extra, dict) and "alt" in extra:
            picture, alt = extra.pop("zh", None), chinese.get(extra["alt"])
            if alt:
                output.data[mime] = picture or output.data[mime]
                output.data["text/plain"] = extra["alt"] = alt


def translate(text: str, entries) -> str:
    """Replace each translated block of a Markdown text. A catalog's string is a block with its line breaks lost."""
    for entry in sorted(entries, key=lambda e: -len(e.msgid)):
        if not entry.msgstr or entry.fuzzy or entry.obsolete:
            continue
        words = r"(?:[ \t]*\n[ \t>]*|[ \t]+)".join(map(re.escape, entry.msgid.split()))
        block = re.compile(rf"({_LEAD})({words})(?=[ \t]*(?:$|\|))", re.M)
        text = block.sub(lambda m, new=entry.msgstr: m.group(1) + new, text)
    return text


def plain_markdown(text: str, language: str = "en") -> str:
    """MyST Markdown without directives, roles, targets and attributes."""

    def quote(match):
        # Of these two the first line is the title; of the others it is the beginning of their text.
        titled = match["kind"] in ("admonition", "dropdown")
        title = match["title"].strip() if titled else _TITLES[language][match["kind"]]
        body = match["body"] if titled else match["title"].strip() + "\n" + match["body"]
        lines = [f"**{title}**", "", *body.strip().splitlines()]
        return "\n".join(f"> {line}".rstrip() for line in lines)

    while _ADMONITION.search(text):  # from the outside in
        text = _ADMONITION.sub(quote, text)
    text = _STUDENT.sub(lambda m: f"[{m[2]}.ipynb]({m[2]}.ipynb)", text)
    text = _MATH.sub(lambda m: f"$$\n{m[2].strip()}\n$$", text)
    text = _GLOSSARY.sub(lambda m: m[2], text)
    text = _ATTRIBUTES.sub("", _TARGET.sub("", text))
    return _ROLE.sub(r"\1", _ROLE_WITH_TEXT.sub(r"\1", text))
