"""The built site in a real browser: both languages, both themes, both sizes, over HTTP and from files, with no network."""

import contextlib
import functools
import gzip
import http.server
import json
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
EDITIONS = ("en", "zh")

# Building includes executing every chapter when src/perflab has changed.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def site():
    """The folder of the site, up to date."""
    result = subprocess.run([sys.executable, str(ROOT / "book" / "build.py")], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return SITE


@pytest.fixture(scope="session")
def pages(site):
    """The names of the book's pages, from what was built."""
    names = sorted(path.stem for path in (site / "en").glob("*.html") if path.stem != "search")
    assert {"index", "glossary", "about-this-machine"} <= set(names)
    return names


@pytest.fixture(scope="session")
def server(site):
    """The site over HTTP on a free port of localhost; the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            """Say nothing: the browser's view is what is tested."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


@contextlib.contextmanager
def tab(browser, *, width=1280, **options):
    """A page whose `.troubles` collects requests to other places, failed requests and console errors."""
    context = browser.new_context(viewport={"width": width, "height": 844}, **options)
    context.set_default_timeout(120_000)  # ms; a second test runs beside
    page = context.new_page()
    page.troubles = []

    def route(route):
        parts = urlsplit(route.request.url)
        if parts.scheme in ("file", "data", "blob") or parts.hostname == "127.0.0.1":
            route.continue_()
        else:
            page.troubles.append(f"request to another site: {route.request.url}")
            route.abort()

    context.route("**/*", route)
    page.on("console", lambda m: page.troubles.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: page.troubles.append(f"exception: {error}"))
    # What is aborted was still loading when the test went on to the next page.
    page.on("requestfailed", lambda r: None if "ABORTED" in (r.failure or "") else page.troubles.append(f"failed: {r.url}"))
    page.on("response", lambda r: page.troubles.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
    try:
        yield page
    finally:
        context.close()


@pytest.fixture(params=["http", "file"])
def base(request, site, server):
    return server if request.param == "http" else site.as_uri()


def settle(page):
    """Wait until formulas and widgets have been drawn."""
    page.wait_for_load_state("load")
    page.evaluate("() => window.MathJax && MathJax.startup ? MathJax.startup.promise : null")
    if page.locator("script[type='application/vnd.jupyter.widget-view+json']").count():
        page.wait_for_selector(".jupyter-widgets", state="attached")


@pytest.mark.parametrize("edition", EDITIONS)
def test_pages_ask_nothing_of_other_sites_and_report_no_error(browser, base, pages, edition):
    for name in [*pages, "search"]:
        with tab(browser) as page:
            page.goto(f"{base}/{edition}/{name}.html")
            settle(page)
            page.evaluate("() => scrollTo(0, document.body.scrollHeight)")  # pictures are loaded when they are near
            page.wait_for_timeout(150)
            assert page.troubles == [], f"{edition}/{name}"
            formulas = page.locator("article .math").count()
            assert page.locator("article .math mjx-container").count() >= formulas, f"{edition}/{name}"


@pytest.mark.parametrize(("base", "edition"), [("http", "zh"), ("file", "en")], indirect=["base"])
def test_language_switch_stays_on_the_page(browser, base, pages, edition):
    other = {"en": "zh", "zh": "en"}[edition]
    with tab(browser) as page:
        for name in [*pages, "search"]:
            page.goto(f"{base}/{edition}/{name}.html")
            page.click("a.language-switch")
            page.wait_for_url(f"**/{other}/{name}.html")
            assert page.locator("html").get_attribute("lang").startswith(other)
            page.click("a.language-switch")
            page.wait_for_url(f"**/{edition}/{name}.html")
        page.goto(f"{base}/{edition}/glossary.html#term-roofline")  # and on the place on that page
        page.click("a.language-switch")
        page.wait_for_url(f"**/{other}/glossary.html#term-roofline")


@pytest.mark.parametrize(("locale", "edition"), [("zh-CN", "zh"), ("zh-TW", "zh"), ("en-GB", "en"), ("de-DE", "en")])
def test_front_door_goes_to_the_readers_language(browser, base, locale, edition):
    with tab(browser, locale=locale) as page:
        page.goto(f"{base}/index.html")
        page.wait_for_url(f"**/{edition}/index.html")


def test_front_door_without_javascript_shows_both(browser, base):
    with tab(browser, java_script_enabled=False) as page:
        for edition in EDITIONS:
            page.goto(f"{base}/index.html")
            page.click(f"a[href='{edition}/index.html']")
            assert page.locator("article h1").inner_text()
        page.click("a.language-switch")
        page.wait_for_url("**/en/index.html")


@pytest.mark.parametrize("edition", EDITIONS)
def test_nothing_is_wider_than_a_phone(browser, server, pages, edition):
    with tab(browser, width=390) as page:
        for name in [*pages, "search"]:
            page.goto(f"{server}/{edition}/{name}.html")
            settle(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{edition}/{name}"


@pytest.mark.parametrize("edition", EDITIONS)
def test_menus_work_on_a_phone(browser, server, edition):
    with tab(browser, width=390, has_touch=True) as page:
        page.goto(f"{server}/{edition}/about-this-machine.html")
        link = page.locator(".bd-sidebar-primary a[href='glossary.html'], #pst-primary-sidebar-modal a[href='glossary.html']")
        assert not link.first.is_visible()
        page.locator("button.primary-toggle:visible").click()
        link.first.click()
        page.wait_for_url("**/glossary.html")
        page.locator("button.search-button:visible").first.click()
        page.keyboard.type("roofline")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=roofline*")
        assert page.troubles == []


# Contrast as WCAG 2 defines it, of an element's text against the first opaque background behind it.
CONTRAST = """
element => {
  const rgba = text => { const v = text.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const luminance = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 0.5) behind = behind.parentElement;
  const a = luminance(rgba(getComputedStyle(element).color));
  const b = luminance(rgba(getComputedStyle(behind || document.body).backgroundColor));
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), b];
}
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_in_both_themes(browser, server, pages, theme):
    texts = "article p, article li, article a:not(.headerlink), article code, article td, article th, article h1, article h2, "
    texts += ".highlight span, .highlight pre, .executed-on, .widget-label, .widget-readout, .language-switch, .nav-link"
    with tab(browser, color_scheme=theme) as page:
        for name in pages:
            page.goto(f"{server}/en/{name}.html")
            settle(page)
            assert page.locator("html").get_attribute("data-theme") == theme
            page.wait_for_timeout(400)  # the theme fades its colours in
            measured = page.eval_on_selector_all(
                texts, f"found => found.filter(e => e.offsetParent).map(e => [...({CONTRAST})(e), e.outerHTML.slice(0, 150)])"
            )
            assert all((background < 0.2) == (theme == "dark") for _, background, _ in measured)
            pale = [(round(ratio, 1), html) for ratio, _, html in measured if ratio < 4.5]
            assert pale == [], name


def test_reader_may_choose_the_theme(browser, server):
    with tab(browser, color_scheme="light") as page:
        page.goto(f"{server}/en/index.html")
        for _ in range(3):
            if page.locator("html").get_attribute("data-theme") == "dark":
                break
            page.locator(".theme-switch-button:visible").first.click()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        page.goto(f"{server}/zh/glossary.html")
        assert page.locator("html").get_attribute("data-theme") == "dark"


def results(page, base, edition, query):
    """The pages that the search finds, by file name."""
    page.goto(f"{base}/{edition}/search.html?q={query}")
    # The title over the results blinks and has dots until the last result is there.
    page.wait_for_function("() => typeof Search !== 'undefined' && Search._pulse_status < 0 && Search.status?.textContent")
    page.wait_for_load_state("networkidle")  # the passages that are quoted under each result
    links = page.eval_on_selector_all("#search-results li a", "found => found.map(a => a.getAttribute('href'))")
    return {re.sub(r"[.]html.*", "", link.rsplit("/", 1)[-1]) for link in links}


COMPOUNDS = ["内存带宽", "屋顶线", "参数服务器", "分布式训练", "缓存行", "流水线并行", "规约散播", "双向环", "键值存储", "末级缓存"]


def test_search_finds_chinese_compounds(browser, base, site):
    """Ten compounds; what is found contains the compound, and what contains it in its text is found."""
    from html import unescape

    with tab(browser) as page:
        hits = 0
        for word in COMPOUNDS:
            holders = set()
            for path in (site / "zh").glob("*.html"):
                article = path.read_text("utf8").partition("<article")[2].partition("</article>")[0]
                if word in re.sub(r"<[^>]+>|\s", "", unescape(article)):
                    holders.add(path.stem)
            found = results(page, base, "zh", word)
            assert holders <= found, (word, holders, found)
            hits += bool(holders)
        assert hits >= 9, "the book should use these words"
        assert results(page, base, "zh", "环") >= {"glossary"}  # a single character is a word
        assert results(page, base, "zh", "带缓环屋") == set()
        assert results(page, base, "zh", "latency") >= {"glossary"}
        assert page.troubles == []


def test_search_finds_english(browser, base):
    with tab(browser) as page:
        assert results(page, base, "en", "roofline") >= {"glossary"}
        assert results(page, base, "en", "overlapping") >= {"glossary"}  # by its stem
        assert results(page, base, "en", "zyzzyva") == set()
        assert page.troubles == []


# The pictures of a widget that can be seen now, as one string.
VISIBLE = "e => [...e.querySelectorAll('.widget-html')].filter(x => x.getClientRects().length).map(x => x.innerHTML).join()"


@pytest.mark.parametrize("edition", EDITIONS)
def test_widgets_move_without_a_kernel(browser, base, site, pages, edition):
    """Moving each control by keyboard changes what is shown."""
    moved = 0
    with tab(browser) as page:
        for name in pages:
            if "application/vnd.jupyter.widget-view+json" not in (site / edition / f"{name}.html").read_text("utf8"):
                continue
            page.goto(f"{base}/{edition}/{name}.html")
            settle(page)
            for area in page.locator(".cell_output:has(.jupyter-widgets)").all():
                pictures = {area.evaluate(VISIBLE)}
                controls = area.locator("[role=slider], select").all()
                for control in controls:
                    control.focus()
                    page.keyboard.press("ArrowRight")
                    page.wait_for_timeout(150)
                    pictures.add(area.evaluate(VISIBLE))
                assert controls and len(pictures) > 1, f"{edition}/{name}"
                moved += 1
        assert page.troubles == []
    assert moved, "no page has a widget; chapter 12.2 should"


class Links(HTMLParser):
    """All that a page refers to, its ids, its images' alternative texts and its headings."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids, self.images, self.h1 = [], [], set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.add(attrs["id"])
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        for name in ("src", "href"):
            if tag != "a" and attrs.get(name) and attrs.get("rel") not in ("canonical",):
                self.loads.append(attrs[name])
        if tag == "img":
            self.images.append(attrs)
        self.h1 += tag == "h1"

    def error(self, message):
        raise AssertionError(message)


@pytest.fixture(scope="session")
def parsed(site):
    return {path: Links(path.read_text("utf8")) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_every_link_inside_the_site_leads_somewhere(parsed):
    broken = []
    for path, html in parsed.items():
        for link in html.links + html.loads:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(SITE)} → {link}")
            elif parts.fragment and target in parsed and unquote(parts.fragment) not in parsed[target].ids:
                broken.append(f"{path.relative_to(SITE)} → {link} (no such place on that page)")
    assert broken == []


def test_no_page_loads_anything_from_another_site(parsed):
    for path, html in parsed.items():
        assert [load for load in html.loads if urlsplit(load).netloc] == [], path


def test_every_image_has_a_text_alternative_in_its_language(parsed):
    for path, html in parsed.items():
        for image in html.images:
            alt = image.get("alt", "").strip()
            assert len(alt) > 3, f"{path.relative_to(SITE)}: {image.get('src')}"
            if "zh" in path.relative_to(SITE).parts and "only-light" in image.get("class", ""):
                assert re.search("[\u4e00-\u9fff]", alt), f"{path.relative_to(SITE)}: {alt!r} is not translated"


def test_no_markup_is_left_in_the_text(site, pages):
    """In Chinese, Markdown takes `**词。**` for emphasis only when a space follows: without one the stars are shown."""
    from bs4 import BeautifulSoup

    shown = []
    for edition in EDITIONS:
        for name in pages:
            text = (site / edition / f"{name}.html").read_text("utf8").partition("<article")[2].partition("</article>")[0]
            article = BeautifulSoup("<article" + text, "html.parser")
            for part in article.select("pre, code, script, style, .math"):
                part.replace_with(" ")
            shown += [f"{edition}/{name}: …{m[0]}…" for m in re.finditer(r".{0,30}(\*\*|`|\]\(|\{\w+\}).{0,30}", article.get_text())]
    assert shown == []


def test_no_line_can_begin_with_the_mark_behind_a_formula(site, pages):
    from bs4 import BeautifulSoup

    loose, together = [], 0
    for edition in EDITIONS:
        for name in pages:
            html = BeautifulSoup((site / edition / f"{name}.html").read_text("utf8"), "html.parser")
            for formula in html.select("span.math"):
                if re.match("[,.;:!?，。；：！？、]", formula.next_sibling or ""):
                    kept = "together" in formula.parent.get("class", [])
                    together += kept
                    loose += [] if kept else [f"{edition}/{name}: {formula.text}{formula.next_sibling}"]
    assert loose == [] and together > 50


def test_pages_have_one_title(parsed, site, pages):
    for edition in EDITIONS:
        for name in pages:
            # The theme's print version repeats the title outside the article.
            article = (site / edition / f"{name}.html").read_text("utf8").partition("<article")[2].partition("</article>")[0]
            assert article.count("<h1") == 1, f"{edition}/{name}"


def test_executed_pages_say_where_and_when(site, pages):
    executed = 0
    for edition in EDITIONS:
        for name in pages:
            path = site / edition / "notebooks" / f"{name}.ipynb"
            text = (site / edition / f"{name}.html").read_text("utf8")
            assert ('class="executed-on"' in text) == path.is_file()
            if path.is_file():
                record = json.loads(path.read_text("utf8"))["metadata"]["execution_record"]
                line = text.split('class="executed-on">')[1].split("</p>")[0]
                assert record["machine"]["date"][:10] in line and record["machine"]["python"] in line
                assert f'notebooks/{name}.ipynb" download' in text
                executed += 1
    assert executed


def test_notebooks_to_download_are_plain_and_complete(site):
    for path in site.rglob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        where = path.relative_to(site)
        prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert not re.search(r"^(```|:::)+\{|\{[\w-]+\}`|^\([\w-]+\)=$", prose, re.M), where
        if "execution_record" in notebook.metadata:  # a page of the book
            code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            assert any(cell.outputs for cell in code), where
            if where.parts[0] == "zh":
                blocks = [b for b in re.split(r"\n\s*\n", prose) if len(b) > 120 and "$$" not in b and "```" not in b]
                english = [b for b in blocks if not re.search("[\u4e00-\u9fff]", b)]
                assert english == [], where
        else:  # an assignment: what a student gets
            text = path.read_text("utf8")
            assert "BEGIN SOLUTION" not in text and "raise NotImplementedError" in text, where


def test_chinese_pages_name_their_buttons_in_chinese(site):
    own_language = {"English", "This page in English", ".ipynb"}
    for path in (site / "zh").glob("*.html"):
        labels = re.findall(r'\b(?:title|aria-label|placeholder)="([^"<]+)"', path.read_text("utf8"))
        assert [text for text in labels if text.isascii() and text not in own_language] == [], path.name


def test_every_icon_is_there_and_no_other(site, pages):
    for edition in ("en", "zh"):
        script = (site / edition / "_static" / "scripts" / "fontawesome.js").read_text("utf8")
        named = {icon for page in pages for icon in re.findall(r"fa-solid fa-([a-z-]+)", (site / edition / f"{page}.html").read_text("utf8"))}
        assert named and [icon for icon in named if not re.search(rf'[{{,]"?{icon}"?:\[', script)] == []
        assert len(script) < 100_000  # with all two thousand it is fifteen times as long


def test_a_page_with_its_figures_and_widgets_is_light(site, pages):
    """At most 600 kB gzipped in 12.1 and 12.3, 700 elsewhere, the widgets' own script included; what all pages share (theme, formulas, search) is left out."""
    for edition in ("en", "zh"):
        for name in pages:
            page = site / edition / f"{name}.html"
            text = re.sub(r"<img[^>]*only-dark[^>]*>", "", page.read_text("utf8"))  # of each figure's two themes one is loaded
            files = {page} | {(page.parent / src).resolve() for src in re.findall(r'src="([^":?#]+)', text) if "_static/scripts" not in src}
            own = [f for f in files if f.suffix in (".html", ".svg", ".png") or f.name == "embed.js"]
            weight = sum(len(gzip.compress(f.read_bytes())) for f in own)
            assert weight < (600_000 if name[:4] in ("12-1", "12-3") else 700_000), (edition, name, weight)


def test_settings_are_those_of_a_book_that_asks_nothing_of_others():
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))["sphinx"]["config"]
    assert not config["mathjax_path"].startswith("http")
    assert all(not address.startswith("http") for address in config["nb_ipywidgets_js"])
