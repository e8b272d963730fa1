"""Pictures that a reader flips through with a slider or a list, on a page that has no kernel behind it.

    pictures = {n: widgets.picture(draw(n), alt=f"… {n} …", alt_zh=f"…{n}…") for n in (1, 2, 4)}
    widgets.frames(pictures, controls=[("Queue depth", "队列深度")])

All pictures are made when the cell runs and are stored in the page; the browser's half of ipywidgets switches
between them (`jsdlink`), so it works in the built book, offline, and in a notebook. A Python callback would
be dead there. Both languages are in each picture, as the editions share one run of the cell; CSS shows one.
"""

import html
import itertools
import zlib
from collections.abc import Mapping, Sequence

# What all frames of one widget may add to a page, compressed as a server sends it. A page's budget is 600 kB,
# and the widget library takes most of that.
LIMIT_BYTES = 120_000

_STYLE = """<style>
.perflab-zh{display:none}
html[lang^=zh] .perflab-zh{display:revert}
html[lang^=zh] .perflab-en{display:none}
.perflab-picture svg{height:auto;display:block;margin:auto}
</style>"""


def bilingual(en: str, zh: str | None) -> str:
    """HTML that reads `en` in the English edition and `zh` in the Chinese one; `en` in both without `zh`."""
    if zh is None:
        return en
    return f'<span class="perflab-en" lang="en">{en}</span><span class="perflab-zh" lang="zh-CN">{zh}</span>'


def picture(fig, alt: str, alt_zh: str | None = None, *, zh: dict[str, str] | None = None) -> str:
    """A figure of perflab.plot as HTML for `frames`, with its text alternative in both languages.

    `zh` maps the figure's own texts to Chinese, as for `perflab.plot.show`.
    """
    from perflab import plot

    def one(language, text):
        label = html.escape(text, quote=True)
        head = f'<div class="perflab-picture perflab-{language}" role="img" aria-label="{label}">'
        return f"{head}{plot.svg(fig, inline=True)}</div>"

    if alt_zh is None:
        return one("both", alt)
    english = one("en", alt)
    with plot.chinese(fig, zh or {}):
        return english + one("zh", alt_zh)


def frames(pictures: Mapping, *, controls: Sequence[tuple[str, str]]):
    """The widget: one control for each part of the pictures' keys, and under them the picture they select.

    pictures: {key: HTML}, as `picture` returns it or any other; keys are single values, or tuples of as many
    values as there are controls, with every combination present. Numbers get a slider, strings a list to
    choose from (both editions show them as they are: write "each · 逐个"). controls: their (English,
    Chinese) names. Both kinds of control work with the keyboard.
    Raises ValueError for a missing combination, or when all of it would exceed LIMIT_BYTES.
    """
    import ipywidgets as w

    by_key = {key if isinstance(key, tuple) else (key,): content for key, content in pictures.items()}
    if not by_key or {len(key) for key in by_key} != {len(controls)}:
        raise ValueError(
            f"expected keys of {len(controls)} parts, one for each control, and at least one picture; "
            f"got the keys {list(pictures)!r}"
        )
    options = [list(dict.fromkeys(key[part] for key in by_key)) for part in range(len(controls))]
    if missing := set(itertools.product(*options)) - set(by_key):
        raise ValueError(f"no picture for {sorted(missing, key=str)!r}: every combination needs one")
    size = len(zlib.compress("".join(by_key.values()).encode(), 6))
    if size > LIMIT_BYTES:
        raise ValueError(
            f"{len(by_key)} pictures, {size / 1000:.0f} kB when compressed, exceed the "
            f"{LIMIT_BYTES / 1000:.0f} kB that a widget may add to a page: use fewer, or draw less in each"
        )
    selectors = [_control(w, name, values) for name, values in zip(controls, options, strict=True)]

    def stack(prefix):
        part = len(prefix)
        if part == len(options):
            return w.HTML(by_key[prefix], layout=w.Layout(width="100%"))
        inner = w.Stack([stack((*prefix, value)) for value in options[part]], selected_index=0)
        inner.layout.width = "100%"
        w.jsdlink((selectors[part], "index"), (inner, "selected_index"))
        return inner

    row = w.HBox([w.HTML(_STYLE), *selectors], layout=w.Layout(flex_flow="row wrap", width="100%"))
    return w.VBox([row, stack(())], layout=w.Layout(width="100%"))


def _control(w, name: tuple[str, str], values: list):
    numbers = all(isinstance(value, int | float) for value in values)
    kind = w.SelectionSlider if numbers else w.Dropdown
    shown = [str(value) for value in values]
    # A list is as wide as its longest entry, up to the whole of a phone's screen.
    min_width = "22em" if numbers else f"min(100%, {10 + 0.7 * max(map(len, shown)):.0f}em)"
    return kind(
        options=shown,
        index=0,
        description=bilingual(*(html.escape(text) for text in name)),
        description_allow_html=True,
        style={"description_width": "auto"},
        layout=w.Layout(width="auto", min_width=min_width, max_width="100%", margin="2px 1.5em 2px 0"),
    )
