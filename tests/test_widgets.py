"""perflab.widgets: each control is linked to its pictures in the browser, sizes are bounded, two languages.

That the widget moves in a page without a kernel is tested in a browser, with the built book.
"""

import random
import re
import string

import ipywidgets
import pytest

from perflab import plot, widgets


def small(text):
    return f'<div role="img" aria-label="{text}">{text}</div>'


@pytest.fixture
def links(monkeypatch):
    """The links made: (source widget, its trait, target widget, its trait)."""
    made = []
    monkeypatch.setattr(ipywidgets, "jsdlink", lambda source, target: made.append((*source, *target)))
    return made


def test_one_slider_over_its_pictures(links):
    box = widgets.frames({n: small(n) for n in (1, 2, 4)}, controls=[("Depth", "深度")])
    row, stack = box.children
    slider = row.children[1]
    assert isinstance(slider, ipywidgets.SelectionSlider) and slider.options == ("1", "2", "4")
    assert isinstance(stack, ipywidgets.Stack)
    assert [child.value for child in stack.children] == [small(n) for n in (1, 2, 4)]
    assert links == [(slider, "index", stack, "selected_index")]


def test_two_controls_select_one_of_the_product(links):
    pictures = {(mode, n): small(f"{mode}{n}") for mode in ("each", "once") for n in (1, 2, 4)}
    box = widgets.frames(pictures, controls=[("Wait", "等待"), ("Depth", "深度")])
    row, outer = box.children
    mode, depth = row.children[1:]
    assert isinstance(mode, ipywidgets.Dropdown) and isinstance(depth, ipywidgets.SelectionSlider)
    assert [[leaf.value for leaf in inner.children] for inner in outer.children] == [
        [small(f"{m}{n}") for n in (1, 2, 4)] for m in ("each", "once")
    ]
    expected = [(depth, "index", inner, "selected_index") for inner in outer.children]
    assert len(links) == 3
    assert (mode, "index", outer, "selected_index") in links and all(link in links for link in expected)


@pytest.mark.parametrize(
    ("pictures", "controls", "message"),
    [
        ({}, 1, "at least one picture"),
        ({1: "a", 2: "b"}, 2, "expected keys of 2 parts"),
        ({(1, 1): "a", (2, 2): "b"}, 2, "no picture for"),
    ],
)
def test_pictures_and_controls_must_match(pictures, controls, message):
    with pytest.raises(ValueError, match=message):
        widgets.frames(pictures, controls=[("A", "甲"), ("B", "乙")][:controls])


def test_too_much_for_a_page_is_refused():
    noise = random.Random(0)
    pictures = {n: "".join(noise.choices(string.printable, k=20_000)) for n in range(10)}
    with pytest.raises(ValueError, match="10 pictures, 1.. kB when compressed"):
        widgets.frames(pictures, controls=[("N", "数")])


def test_picture_has_both_languages_each_with_its_text_alternative():
    fig = plot.timeline([("front end", "go", 0, 1)])
    content = widgets.picture(fig, 'A "go" bar.', "一段。", zh={"front end": "前端"})
    english, chinese = re.findall(
        r'<div class="perflab-picture perflab-(?:en|zh)".*?</div>', content, re.DOTALL
    )
    assert 'role="img" aria-label="A &quot;go&quot; bar."' in english and "front end" in english
    assert 'role="img" aria-label="一段。"' in chinese and "前端" in chinese and "front end" not in chinese


def test_picture_without_chinese_is_for_both():
    content = widgets.picture(plot.timeline([("a", "b", 0, 1)]), "A bar.")
    assert content.count("<svg") == 1 and "perflab-zh" not in content
