"""Figures in the house style: readable on a light page and on a dark one, in English and in Chinese.

    fig, ax = plot.subplots()
    ax.plot(...); ax.set(xlabel="working set (bytes)", ylabel="latency (ns)")
    plot.show(fig, alt="Latency by working set: flat to 32 KiB, then three steps up.",
              zh={"working set (bytes)": "工作集（字节）", "latency (ns)": "延迟（纳秒）"})

`alt` is the text alternative. It must be constant text, because the book's translation is keyed by it: say
what the figure shows on every machine and leave the numbers to the cell's printed output. `zh` maps the
figure's own texts to Chinese; the Chinese edition shows the figure with those, from the same run of the cell.

matplotlib is imported by the first call, not by `import perflab.plot`. Figures made here are not registered
with pyplot, so no cell shows one twice and none stays in memory.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import re

# The middle grey that contrasts equally (about 4.3 to 1) with the book's white page and with its dark one.
TEXT = "#787878"
_TEXT_ON_LIGHT, _TEXT_ON_DARK = "#3c3c3c", "#d4d4d4"  # what the book puts in its place, theme by theme

# At least 3 to 1 against white and against #121212, and told apart with every kind of colour blindness
# (tests/test_plot.py computes both). The first two are the pair to use where there are two.
BLUE, ORANGE, GREEN, PINK, OCHRE, GREY = "#2c8eee", "#e0751b", "#206e4d", "#c01ca9", "#8d7437", "#929292"
PALETTE = (BLUE, ORANGE, GREEN, PINK, OCHRE, GREY)

# Wider than a phone's column, but so little that a figure scaled down to one is still readable.
WIDTH_IN, HEIGHT_IN = 5.8, 3.3

_SVG_LIMIT_BYTES = 250_000  # beyond this (a scatter of many points) a PNG is smaller and draws faster
_CJK_FONTS = (
    "Noto Sans CJK SC", "Source Han Sans SC", "Noto Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei",
    "PingFang SC", "Hiragino Sans GB", "Heiti SC", "Microsoft YaHei", "SimHei", "Noto Sans CJK JP",
)  # fmt: skip


@functools.cache
def _cjk_fonts() -> tuple[str, ...]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return tuple(name for name in _CJK_FONTS if name in installed)[:1]


@functools.cache
def _parameters() -> dict:
    from cycler import cycler

    return {
        "figure.figsize": (WIDTH_IN, HEIGHT_IN),
        "figure.facecolor": "none",
        "figure.constrained_layout.use": True,
        "savefig.facecolor": "none",
        "savefig.transparent": True,
        "axes.facecolor": "none",
        "axes.edgecolor": TEXT,
        "axes.labelcolor": TEXT,
        "axes.titlecolor": TEXT,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=PALETTE),
        "axes.unicode_minus": True,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": TEXT,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "text.color": TEXT,
        "xtick.color": TEXT,
        "ytick.color": TEXT,
        "lines.linewidth": 2.0,
        "lines.markersize": 5.0,
        "legend.frameon": False,
        "legend.labelcolor": TEXT,
        "font.size": 11,
        # A list: a glyph that the first font lacks is taken from the second.
        "font.family": ["DejaVu Sans", *_cjk_fonts()],
        "svg.fonttype": "path",  # an image on a page cannot use the page's fonts
        "svg.hashsalt": "perflab",  # the same figure gives the same bytes
    }


def style() -> None:
    """Set the house style for every figure that this process makes from here on (matplotlib's rcParams)."""
    import matplotlib

    matplotlib.rcParams.update(_parameters())


def subplots(rows=1, cols=1, *, width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN, **kwargs):
    """A figure in the house style and its axes, like `pyplot.subplots`; `kwargs` go to `Figure.subplots`."""
    from matplotlib.figure import Figure

    style()
    fig = Figure(figsize=(width_in, height_in))
    return fig, fig.subplots(rows, cols, **kwargs)


def legend(fig, *, columns: int = 4, **kwargs) -> None:
    """A legend above the axes, where it hides no data; `kwargs` go to `Figure.legend`."""
    n = len(kwargs["handles"]) if "handles" in kwargs else len(fig.axes[0].get_legend_handles_labels()[1])
    fig.legend(loc="outside upper left", ncols=min(max(n, 1), columns), fontsize=10, **kwargs)


def plain_log(axis, ticks=None) -> None:
    """Plain numbers in place of powers of ten on a logarithmic axis (`ax.xaxis` or `ax.yaxis`), after the data is drawn.

    They stand at `ticks`; without, at 1, 2 and 5 times each power of ten, or at the powers alone beyond three decades.
    """
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high <= 1000 * low else (1.0,)
    axis.set_major_locator(ticker.LogLocator(subs=steps) if ticks is None else ticker.FixedLocator(ticks))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    if ticks is not None or len(steps) > 1:
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_minor_formatter(ticker.NullFormatter())


def timeline(
    spans,
    *,
    lanes=None,
    kinds=None,
    title: str = "",
    colours: dict | None = None,
    end_s: float | None = None,
    width_in: float = WIDTH_IN,
):
    """What ran when: one lane a thread or device, one bar a span, time on the x axis. Returns the figure.

    spans: (lane, label, start_s, end_s) or (lane, label, start_s, end_s, kind). `lanes` gives the order from
    top to bottom, else it is that of first appearance. Spans of one `kind` have one colour, and a legend
    names the kinds (those of `kinds`, to make several timelines alike); without kinds the colour goes by
    lane. `colours` may fix {kind or lane: colour}. `end_s` is where the axis ends, to give several timelines
    one scale. A label is written into its bar where it fits and left out where it does not.
    Raises ValueError for no spans, a span that ends before it starts, or a lane that `lanes` lacks.
    """
    spans = [(*span, None)[:5] for span in spans]
    if not spans:
        raise ValueError("a timeline needs at least one span (lane, label, start_s, end_s)")
    for lane, label, start_s, stop_s, _ in spans:
        if not stop_s >= start_s:
            raise ValueError(f"span {label!r} on {lane!r} ends ({stop_s} s) before it starts ({start_s} s)")
    lanes = list(lanes or dict.fromkeys(span[0] for span in spans))
    if missing := {span[0] for span in spans} - set(lanes):
        raise ValueError(f"spans on lanes that `lanes` does not name: {sorted(map(str, missing))}")
    kinds = kinds or [kind for kind in dict.fromkeys(span[4] for span in spans) if kind is not None]
    palette = dict(zip(kinds or lanes, PALETTE * (1 + len(kinds or lanes) // len(PALETTE)), strict=False))
    palette.update(colours or {})

    height_in = 0.95 + 0.42 * len(lanes) + 0.3 * bool(title) + 0.3 * bool(kinds)
    fig, ax = subplots(width_in=width_in, height_in=height_in)
    last_s = end_s if end_s is not None else max(span[3] for span in spans)
    scale, unit = _time_unit(last_s - min(span[2] for span in spans))
    origin_s = min(0.0, min(span[2] for span in spans))
    written = []
    for lane, label, start_s, stop_s, kind in spans:
        y = len(lanes) - 1 - lanes.index(lane)
        colour = palette.get(kind if kinds else lane, GREY)
        left, width = start_s * scale, (stop_s - start_s) * scale
        bar = ax.barh(y, width, left=left, height=0.68, color=colour, edgecolor="none", linewidth=0)[0]
        if label:
            middle = left + width / 2
            ink = _ink_on(colour)
            text = ax.text(middle, y, label, ha="center", va="center", color=ink, fontsize=9)
            written.append((bar, text))
    ax.set(
        xlabel=f"time ({unit})",
        title=title,
        xlim=(origin_s * scale, None if end_s is None else end_s * scale),
        yticks=range(len(lanes)),
        yticklabels=lanes[::-1],
        ylim=(-0.5, len(lanes) - 0.5),
    )
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)
    if kinds:
        from matplotlib.patches import Patch

        legend(fig, handles=[Patch(color=palette[kind], label=kind) for kind in kinds])
    _drop_labels_that_do_not_fit(fig, written)
    return fig


def _time_unit(length_s: float) -> tuple[float, str]:
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if length_s * scale >= 2:
            return scale, unit
    return 1e9, "ns"


def _ink_on(colour) -> str:
    """Black or white, whichever contrasts more (WCAG's relative luminance; they break even at 0.18)."""
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return (
        "black"
        if sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) > 0.18
        else "white"
    )


def _drop_labels_that_do_not_fit(fig, written) -> None:
    if not written:
        return
    fig.draw_without_rendering()
    for bar, text in written:
        if text.get_window_extent().width > bar.get_window_extent().width - 2:
            text.remove()


def show(fig, alt: str, *, zh: dict[str, str] | None = None) -> None:
    """Put a figure on the page as SVG (PNG when that would be large), with `alt` as its text alternative.

    alt: what the figure shows, in constant English (the book's .po translates it). zh: {text in the figure:
    its Chinese}; a text that the figure lacks raises ValueError, as it would otherwise stay English unseen.
    """
    from IPython.display import display

    data, extra = _encode(fig), {}
    if zh:
        with chinese(fig, zh):
            extra["zh"] = _encode(fig)[1]
    mime, picture = data
    display({mime: picture, "text/plain": alt}, raw=True, metadata={mime: {"alt": alt, **extra}})


def _encode(fig) -> tuple[str, str]:
    """(MIME type, content as a notebook stores it)."""
    import base64

    picture = svg(fig)
    if len(picture) <= _SVG_LIMIT_BYTES:
        return "image/svg+xml", picture
    return "image/png", base64.b64encode(png(fig)).decode()


def svg(fig, *, inline: bool = False) -> str:
    """The figure as an SVG document; with `inline`, as an element to put into HTML.

    Inline, the texts take the reader's font and the page's colour (so they follow its theme), and the size
    follows the column.
    """
    import matplotlib

    style()
    buffer = io.StringIO()
    as_text = {"svg.fonttype": "none" if inline or not _cjk_fonts() else "path"}
    with matplotlib.rc_context(as_text), _no_glyph_alarm():
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    # A hundredth of a point is finer than any screen; numbers below 1 may be scales, which need their digits.
    text = re.sub(r"([1-9]\d*\.\d{2})\d+", r"\1", text)
    if not inline:
        return text
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" stroke-linejoin="round" stroke-linecap="butt" '
        f'style="width:100%;max-width:{float(width) / 11:.1f}rem">'
    )
    # Several such figures share one page, and with it one namespace of ids.
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'\bid="|href="#|url\(#', rf"\g<0>{own}", text)
    text = re.sub(r".*?<svg [^>]*>", head, text, count=1, flags=re.DOTALL)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)  # it would rule the whole page
    return text.replace(TEXT, "currentColor")


def png(fig, *, dpi: int = 144) -> bytes:
    """The figure as PNG bytes: a transparent background, sharp on a screen of twice the usual density."""
    style()
    buffer = io.BytesIO()
    with _no_glyph_alarm():
        fig.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


@contextlib.contextmanager
def chinese(fig, zh: dict[str, str]):
    """While the context lasts, the figure has the texts of `zh` ({English: Chinese}).

    Raises ValueError for a key that is not a text of this figure.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    fig.draw_without_rendering()  # tick labels exist only once they have been drawn
    texts = [(text, text.get_text()) for text in fig.findobj(Text) if text.get_text() in zh]
    if absent := set(zh) - {old for _, old in texts}:
        raise ValueError(f"the figure has no text {sorted(absent)!r}: correct the keys of `zh`")
    # A tick's text is written anew at each draw, by its axis's formatter: translate what that returns.
    axes = [(axis, axis.get_major_formatter()) for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)]
    named = [(axis, f) for axis, f in axes if any(t.get_text() in zh for t in axis.get_ticklabels())]
    try:
        for text, old in texts:
            text.set_text(zh[old])
        for axis, formatter in named:
            axis.set_major_formatter(
                FuncFormatter(lambda value, at, english=formatter: zh.get(old := english(value, at), old))
            )
        yield fig
    finally:
        for text, old in texts:
            text.set_text(old)
        for axis, formatter in named:
            axis.set_major_formatter(formatter)


@contextlib.contextmanager
def _no_glyph_alarm():
    """Without a Chinese font here the reader's own writes the texts, and a warning a glyph tells nothing."""
    import warnings

    with warnings.catch_warnings():
        if not _cjk_fonts():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


class BookImages:
    """MyST-NB's rendering of what `show` displayed: an entry point of the group `myst_nb.mime_renderers`.

    MyST-NB takes an alternative text from a cell's metadata only, so two figures of one cell would share it;
    here each output brings its own, as an attribute of the image node, where gettext finds and translates it.
    The Chinese edition takes the figure with the Chinese texts, and the grey of the texts becomes darker on
    the light theme and lighter on the dark one (two files, of which a page shows and reads out one).
    """

    # gettext has no use for images otherwise, and would not see their alternative texts
    mime_priority_overrides = (("gettext", "image/svg+xml", 1), ("gettext", "image/png", 2))

    @staticmethod
    def handle_mime(renderer, data, inline):
        extra = data.output_metadata.get(data.mime_type, {})
        if not (data.mime_type.startswith("image/") and extra.get("alt")):
            return None
        env = renderer.renderer.sphinx_env
        language = env.config.language or "en"
        content = extra["zh"] if "zh" in extra and language.startswith("zh") else data.content
        versions = {"dark-light": content}  # the theme's class for: good on both, change nothing
        if data.mime_type == "image/svg+xml" and env.app.builder.name != "gettext":
            versions = {
                "only-light": content.replace(TEXT, _TEXT_ON_LIGHT),
                "only-dark": content.replace(TEXT, _TEXT_ON_DARK),
            }
        nodes = []
        for css_class, version in versions.items():
            (node,) = renderer.render_image(dataclasses.replace(data, content=version, output_metadata={}))
            node["alt"], node["classes"] = extra["alt"], [*node["classes"], css_class]
            if len(versions) > 1:
                # Of the two the browser shall fetch the one it shows, and reserve its place on the page until
                # then. docutils copies `height` into the style as it is; it has no attribute for a ratio.
                width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', version).groups()
                node["loading"], node["height"] = "lazy", f"auto; aspect-ratio: {width} / {height}"
            nodes.append(node)
        return nodes
