"""perflab.plot: colours anybody can tell apart on either theme, two languages, alternative texts."""

import io
import itertools
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from perflab import plot

LIGHT, DARK = "#ffffff", "#121212"  # the book's two backgrounds


def linear_rgb(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG 2.2's contrast ratio."""
    bright, dim = sorted((linear_rgb(c) @ [0.2126, 0.7152, 0.0722] for c in (a, b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, white D65."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    t = (np.array(to_xyz) @ rgb) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0519]],
    "deuteranopia": [[0.3673, 0.8606, -0.2279], [0.2801, 0.6726, 0.0473], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


@pytest.mark.parametrize("background", [LIGHT, DARK])
def test_every_colour_contrasts_with_either_theme(background):
    assert contrast(plot.TEXT, background) >= 4
    for colour in plot.PALETTE:
        assert contrast(colour, background) >= 3, colour
    on_theme = plot._TEXT_ON_LIGHT if background == LIGHT else plot._TEXT_ON_DARK
    assert contrast(on_theme, background) >= 7


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart(vision):
    seen = {c: lab(np.clip(np.array(VISION[vision]) @ linear_rgb(c), 0, 1)) for c in plot.PALETTE}
    distance = {
        pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in itertools.combinations(seen, 2)
    }
    assert min(distance.values()) >= 20, min(distance, key=distance.get)
    assert distance[plot.BLUE, plot.ORANGE] >= 60


def example():
    fig, ax = plot.subplots()
    ax.plot([1, 2, 3], [1, 3, 2], label="measured")
    ax.set(xlabel="size (bytes)", ylabel="time (s)", yticks=[1, 2, 3], yticklabels=["one", "two", "three"])
    plot.legend(fig)
    return fig


ZH = {"size (bytes)": "大小（字节）", "time (s)": "时间（秒）", "measured": "实测", "two": "二"}


def test_importing_plot_imports_no_matplotlib():
    code = (
        "import sys; from perflab import plot, widgets; "
        "print('matplotlib' in sys.modules, 'ipywidgets' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_chinese_texts_come_and_go():
    fig = example()
    before = plot.svg(fig, inline=True)
    with plot.chinese(fig, ZH):
        text = plot.svg(fig, inline=True)
    assert all(zh in text and f">{en}<" not in text for en, zh in ZH.items())
    assert ">one<" in text  # what has no translation stays
    after = plot.svg(fig, inline=True)
    assert all(f">{en}<" in after and f">{en}<" in before and zh not in after for en, zh in ZH.items())


def test_a_translation_of_a_text_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="no text.*tiem"), plot.chinese(example(), {"tiem (s)": "时间"}):
        pass


def test_inline_svg_follows_the_page():
    text = plot.svg(example(), inline=True)
    assert "currentColor" in text and plot.TEXT not in text
    assert "<style" not in text and 'width="' not in text.split(">", 1)[0]
    other = plot.svg(plot.timeline([("a", "b", 0, 1)]), inline=True)
    ids = [set(re.findall(r'\bid="([^"]+)"', t)) for t in (text, other)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert reference in ids[0]


def test_show_displays_alternative_text_and_both_languages(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **kwargs: shown.append((data, kwargs["metadata"]))
    )
    plot.show(example(), alt="A line that rises and falls.", zh=ZH)
    ((data, metadata),) = shown
    assert data["text/plain"] == "A line that rises and falls."
    about = metadata["image/svg+xml"]
    assert about["alt"] == "A line that rises and falls."
    assert about["zh"].startswith("<?xml") and about["zh"] != data["image/svg+xml"]


def book_images(language, builder, metadata):
    """What MyST-NB is given for an output, in an edition of the book."""
    from docutils import nodes
    from myst_nb.core.render import MimeData

    written = []

    def render_image(data):
        written.append(data.content)
        return [nodes.image(uri=f"{len(written)}.svg")]

    env = SimpleNamespace(
        config=SimpleNamespace(language=language),
        app=SimpleNamespace(builder=SimpleNamespace(name=builder)),
    )
    renderer = SimpleNamespace(renderer=SimpleNamespace(sphinx_env=env), render_image=render_image)
    data = MimeData("image/svg+xml", plot.svg(example()), output_metadata={"image/svg+xml": metadata})
    return plot.BookImages.handle_mime(renderer, data, False), written


def test_the_book_shows_one_version_a_theme_with_the_alternative_text():
    images, written = book_images("en", "html", {"alt": "A line."})
    assert [image["alt"] for image in images] == ["A line.", "A line."]
    assert [image["classes"] for image in images] == [["only-light"], ["only-dark"]]
    for colour, content in zip((plot._TEXT_ON_LIGHT, plot._TEXT_ON_DARK), written, strict=True):
        assert colour in content and plot.TEXT not in content


def test_the_chinese_edition_shows_the_chinese_figure():
    _, written = book_images("zh_CN", "html", {"alt": "A line.", "zh": '<svg viewBox="0 0 2 1">图</svg>'})
    assert all("图" in content for content in written)
    _, written = book_images("en", "html", {"alt": "A line.", "zh": '<svg viewBox="0 0 2 1">图</svg>'})
    assert not any("图" in content for content in written)


def test_translators_see_an_alternative_text_once():
    images, _ = book_images("en", "gettext", {"alt": "A line."})
    assert [image["alt"] for image in images] == ["A line."]


def test_other_images_are_left_to_the_book():
    assert book_images("en", "html", {})[0] is None


def test_a_heavy_figure_becomes_a_png(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **kwargs: shown.append(data))
    fig, ax = plot.subplots()
    ax.scatter(*np.random.default_rng(0).normal(size=(2, 20_000)))
    plot.show(fig, alt="Many points.")
    assert set(shown[0]) == {"image/png", "text/plain"}


def test_png_is_a_transparent_png():
    image = Image.open(io.BytesIO(plot.png(example())))
    assert image.mode == "RGBA" and image.getpixel((1, 1))[3] == 0


def test_timelines_can_share_scale_and_legend():
    fig = plot.timeline([("a", "", 0, 1, "work")], kinds=["work", "wait"], end_s=4)
    assert fig.axes[0].get_xlim() == (0, 4)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["work", "wait"]


def test_timeline_draws_each_span_in_its_lane():
    fig = plot.timeline(
        [
            ("front", "go", 0.0, 0.001, "launch"),
            ("back", "a long label", 0.001, 0.0012, "work"),
            ("back", "b", 0.002, 0.01, "work"),
        ],
    )
    (ax,) = fig.axes
    assert [
        (round(p.get_x(), 3), round(p.get_width(), 3), round(p.get_y() + p.get_height() / 2))
        for p in ax.patches
    ] == [(0.0, 1.0, 1), (1.0, 0.2, 0), (2.0, 8.0, 0)]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["back", "front"]
    assert ax.get_xlabel() == "time (ms)"
    texts = [t.get_text() for t in ax.texts]
    assert "b" in texts and "a long label" not in texts  # it would not fit into 0.2 ms


@pytest.mark.parametrize(
    ("spans", "lanes", "message"),
    [
        ([], None, "at least one"),
        ([("a", "x", 2, 1)], None, "before it starts"),
        ([("a", "x", 0, 1)], ["b"], "not name"),
    ],
)
def test_timeline_refuses_what_it_cannot_draw(spans, lanes, message):
    with pytest.raises(ValueError, match=message):
        plot.timeline(spans, lanes=lanes)


@pytest.mark.parametrize(
    ("length_s", "unit"), [(3, "s"), (1.5, "ms"), (0.003, "ms"), (0.0015, "µs"), (1e-6, "ns")]
)
def test_time_unit(length_s, unit):
    assert plot._time_unit(length_s)[1] == unit


@pytest.mark.parametrize(
    ("values", "ticks", "expected"),
    [
        ([1.5, 30], None, ["2", "5", "10", "20"]),
        ([1, 3e5], None, ["1", "10", "100", "1000", "10000", "100000"]),
        ([1, 3e5], [3, 700], ["3", "700"]),
    ],
)
def test_plain_numbers_on_a_logarithmic_axis(values, ticks, expected):
    fig, ax = plot.subplots()
    ax.plot(values, values)
    ax.set(yscale="log")
    plot.plain_log(ax.yaxis, ticks)
    fig.draw_without_rendering()
    low, high = ax.get_ylim()
    shown = [t.get_text() for t in ax.yaxis.get_ticklabels(which="both") if low <= t.get_position()[1] <= high and t.get_text()]
    assert shown == expected
