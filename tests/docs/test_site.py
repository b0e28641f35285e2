"""The documentation's site: built without a warning, all its links lead somewhere, and what a browser says to it."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import PROGRAM, Browser
from waiting import wait_until

pytest.importorskip("mkdocstrings")
pytest.importorskip("material")
pytest.importorskip("latex2mathml")

from mkdocs.config.defaults import MkDocsConfig

from fedpfl.setup import reference
from fedpfl.version import __version__

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("chromium")]
# Asks the search for WORDS, and returns the links that it shows by now.
SEARCH = """
(() => {
  const field = document.querySelector("[data-md-component=search-query]");
  if (!field) return [];
  if (field.value !== "WORDS") {
    document.querySelector("#__search").click();  // with which a page that is opened as a file loads the index
    field.focus();
    field.value = "WORDS";
  }
  field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
  return [...document.querySelectorAll(".md-search-result__link")].map((link) => link.href);
})()
"""
ROOT = Path(__file__).parents[2]
PHONE = 390
WIDTH = "document.documentElement.scrollWidth"
# Its menus have the same name at two widths, its buttons for code have none, and where there is no mouse, as here, code
# is not scrolled by keys.
THEMES_OWN = re.compile(r"landmark-unique|scrollable-region-focusable \(\d+\): <code")
# One of each kind: pictures, numbers, tables with long words, equations, code, signatures, a notebook.
SHOWN = (
    "index", "methods/index", "methods/fedfac", "results/leaderboard", "reference/commands", "reference/api",
    "contributing/architecture", "tutorial/compare", "notebooks/compare",
)  # fmt: skip


class Page(HTMLParser):
    """What a page links to, and which places it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loads, self.places = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.places |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.loads.append(values["src"])
        if tag == "link" and "canonical" not in values.get("rel", ""):
            self.loads.append(values["href"])


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    return importlib.import_module("hooks")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_link_leads_somewhere(pages, site):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            lost = not target.is_file() or (target in pages and unquote(parts.fragment) not in pages[target].places)
            dead += [f"{path.relative_to(site)}: {link}"] if lost else []
    assert not dead


def test_each_page_names_version_and_licence(site):
    made = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    named = [path for path, text in made.items() if f"fedpfl {__version__}, Apache License 2.0" in text]
    assert len(named) > 90
    assert made.keys() == {*named}


def test_pages_load_nothing_from_the_network(pages):
    links = {link for page in pages.values() for link in page.loads}
    assert not {link for link in links if urlsplit(link).netloc or link.startswith("//")}


def test_no_role_of_a_docstring_is_left(site):
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert not {name: roles for name, text in pages.items() if (roles := re.findall(r":\w+:<code>[^<]*", text))}
    for name in ("ConfigError", "Method.schedule"):
        assert f'<a href="#fedpfl.{name}"><code>{name.rpartition(".")[2]}</code></a>' in pages["api.html"]


def test_every_command_and_every_public_name_has_its_place(pages, site):
    from typer.main import get_command

    import fedpfl
    from fedpfl.cli import app

    commands = {f"fedpfl-{name}" for name, command in get_command(app).commands.items() if not command.hidden}
    assert commands <= pages[site / "reference" / "commands.html"].places
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = set(fedpfl.__all__) - {"__version__"}
    assert not {name for name in names if f"::: fedpfl.{name}\n" not in text + "\n"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if PROGRAM is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as started:
        # The theme would keep the colours of the first page that the browser has shown.
        started.call("Page.addScriptToEvaluateOnNewDocument", source="try { localStorage.clear() } catch {}")
        yield started


def trouble(said, site):
    """Return what went wrong; a page loads its own files."""
    return [complaint for complaint in said if not complaint.startswith(f"requested {site.as_uri()}/")]


def test_the_button_that_copies_a_command_covers_none_of_it(browser, site):
    browser.open(site / "index.html")
    covered = """[...document.querySelectorAll('pre')].filter(pre => {
        const button = pre.querySelector('.md-code__nav'), code = pre.querySelector('code');
        return button && button.getBoundingClientRect().left < code.getBoundingClientRect().right;
    }).length"""
    assert browser.evaluate("document.querySelectorAll('pre .md-code__nav').length") > 0
    assert browser.evaluate(covered) == 0


def test_pages_link_to_each_other_by_title(site, hooks):
    named = {path.name: re.findall(r">[^<>\s]+\.(?:md|ipynb)</a>", path.read_text()) for path in site.rglob("*.html")}
    assert not {name: links for name, links in named.items() if links}
    title = (ROOT / "docs" / "how-to" / "live.md").read_text().partition("\n")[0].removeprefix("# ")
    link = hooks._LINK.search("see [docs/how-to/live.md](how-to/live.md#who-can-see-it).")
    assert hooks._link(link, ROOT / "docs" / "index.md") == f"[{title}](how-to/live.md#who-can-see-it)"
    broken = hooks._LINK.search("[A\nplaybook](../../deploy/ansible/README.md) does this.")
    assert hooks._link(broken, ROOT / "docs" / "devices" / "jetson.md") == "[A\nplaybook](ansible.md)"


def test_the_repository_s_address_is_filled_in_once(hooks, monkeypatch, tmp_path):
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# First steps"]}]}
    config = hooks.on_config(MkDocsConfig())
    assert not config.repo_url and not config.site_url and "version" not in config.extra
    assert hooks.notebook_page(notebook, "notebooks/first-steps.ipynb") == "# First steps\n"
    monkeypatch.setattr(hooks.version, "REPOSITORY", "https://github.com/Someone/fedpfl")
    monkeypatch.setenv("MIKE_DOCS_VERSION", "0.1")
    config = hooks.on_config(MkDocsConfig())
    assert (config.repo_name, config.site_url) == ("Someone/fedpfl", "https://someone.github.io/fedpfl/")
    assert config.extra["version"] == {"provider": "mike"}
    where = "https://colab.research.google.com/github/Someone/fedpfl/blob/main/docs/notebooks/first-steps.ipynb"
    assert f"]({where})" in hooks.notebook_page(notebook, "notebooks/first-steps.ipynb")
    for file in ("pyproject.toml", "CITATION.cff", *reference.PAGES_THAT_CLONE):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "fedpfl").mkdir()
    for address in (hooks.version.REPOSITORY, ""):
        monkeypatch.setattr(reference, "REPOSITORY", address)
        monkeypatch.setattr(hooks.version, "REPOSITORY", address)
        reference.update(tmp_path)
        urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
        assert list(urls) == (["Homepage", "Documentation", "Repository", "Issues", "Changelog"] if address else [])
        assert all("omeone" in url for url in urls.values()) and urls.get("Homepage", "") == address
        for page in reference.PAGES_THAT_CLONE:
            cloned = re.findall(r"git clone (\S+) && cd fedpfl", (tmp_path / page).read_text())
            assert cloned == [address or reference.NO_ADDRESS], page
        assert (tmp_path / "CITATION.cff").read_text().count("\nrepository-code: ") == bool(address)
    for file in ("pyproject.toml", "CITATION.cff", *reference.PAGES_THAT_CLONE):
        assert (tmp_path / file).read_text() == (ROOT / file).read_text()


def test_names_of_the_reference_lead_to_their_source(site, hooks, monkeypatch):
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    places = re.findall(r'<p class="source"><code>(fedpfl/[\w/]+\.py):(\d+)</code></p>', page)
    assert len(places) > 100
    for path, line in places:
        assert re.match(r"\s*(@|class |def )", (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1])
    assert hooks.source_link("fedpfl.PLAIN_SGD") == ""
    monkeypatch.setattr(hooks.version, "REPOSITORY", "https://github.com/Someone/fedpfl")
    link = r'<p class="source"><a href="https://github.com/Someone/fedpfl/blob/main/(.+)#L(\d+)"><code>\1:\2</code></a>'
    assert re.match(link, hooks.source_link("fedpfl.Run.rounds")).group(1) == "fedpfl/api/runs.py"


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_has_no_errors_and_keeps_the_rules_of_accessibility_and_fits_a_telephone(browser, site, name):
    assert (site / f"{name}.html").is_file()
    assert trouble(browser.open(site / f"{name}.html", width=PHONE, height=844), site) == []
    assert browser.evaluate(WIDTH) <= PHONE
    for dark in (False, True):
        assert trouble(browser.open(site / f"{name}.html", dark=dark), site) == []
        assert browser.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
        assert [complaint for complaint in browser.broken_rules() if not THEMES_OWN.match(complaint)] == []


FIRST_FOUND = {
    "methods/index": ("cite", "BibTeX", "choose a method"),
    "learn/": ("label skew", "feature skew", "client drift", "statistical significance", "convergence",
               "hyperparameter", "non-IID"),
    "learn/glossary": ("Byzantine",),
    "how-to/install": ("Docker",),
    "tutorial/own-data": ("my own data",),
    "how-to/troubleshooting": ("troubleshooting", "missing values", "out of memory", "port in use"),
    "how-to/faq": ("windows", "why do my numbers differ", "learning rate", "regression"),
    "how-to/from-pfllib": ("pfllib",),
}  # fmt: skip


def test_the_field_s_words_find_the_right_page_first(browser, site):
    for query, page in ((query, page) for page, queries in FIRST_FOUND.items() for query in queries):
        browser.open(site / "index.html")
        links = wait_until(lambda query=query: browser.evaluate(SEARCH.replace("WORDS", query)))
        assert page in links[0], (query, links[:4])


# Boxes of tables that are narrower than these: on a desktop none, on a telephone those that scroll by themselves alone.
CUT = """
[...document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset__table, .doc-contents table")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .filter((box) => innerWidth > 500 || getComputedStyle(box).overflowX != "auto")
  .map((box) => box.textContent.trim().slice(0, 60))
"""
DESKTOP = 1280


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_no_column_of_a_table_is_out_of_sight(browser, site, width):
    cut = {}
    for path in sorted(site.rglob("*.html")):
        browser.open(path, width=width, height=900)
        if boxes := browser.evaluate(CUT):
            cut[str(path.relative_to(site))] = boxes
    assert not cut


VISIBLE = """
[...document.querySelectorAll("a[href]")].filter((link) => link.checkVisibility() && link.protocol == location.protocol)
  .map((link) => link.href.split("#")[0])
"""
GOALS = ("how-to/data", "methods/index", "methods/fedrep", "devices/testbed", "results/leaderboard", "how-to/faq")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_two_clicks_lead_to_six_goals(browser, site, width):
    goals = {(site / f"{goal}.html").as_uri() for goal in GOALS}
    browser.open(site / "index.html", width=width, height=900)
    first = list(dict.fromkeys(browser.evaluate(VISIBLE)))
    missing = goals - {*first}
    for link in first:
        if not missing:
            break
        browser.open(Path(unquote(urlsplit(link).path)), width=width, height=900)
        missing -= {*browser.evaluate(VISIBLE)}
    assert not missing
