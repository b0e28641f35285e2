"""The page in a real browser: no errors, nothing loaded, no wider than a telephone."""

from __future__ import annotations

import pytest
from browser import PROGRAM, Browser

from fedpfl.study.report import sections, write_page

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (apt-get install chromium)"),
    pytest.mark.xdist_group("chromium"),
]

# Not compared with innerWidth, which a telephone's browser makes as wide as what does not fit.
WIDTH = "document.documentElement.scrollWidth"
PHONE = 390


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


@pytest.fixture(scope="module")
def page(folders, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, "Digits", *sections(list(folders.values())))
    return path


def test_the_page_has_no_errors_and_loads_nothing(browser, page):
    assert browser.open(page) == []
    assert browser.evaluate("document.querySelectorAll('section').length") > 5
    assert browser.evaluate("document.querySelectorAll('svg').length") > 8
    assert browser.evaluate("document.title") == "Digits"


def test_the_page_and_its_tables_fit_a_telephone(browser, page):
    assert browser.open(page, width=PHONE, height=844) == []
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.evaluate(WIDTH) <= PHONE
    assert browser.evaluate("innerWidth") == PHONE
    smallest = "Math.min(...[...document.querySelectorAll('svg')].map(plot => plot.getBoundingClientRect().width))"
    assert browser.evaluate(smallest) > 200
    assert browser.evaluate("document.querySelectorAll('table.many').length") > 2
    cut = (
        "[...document.querySelectorAll('table.many')].map(table => table.parentElement)"
        ".filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.getAttribute('aria-label'))"
    )
    assert browser.evaluate(f"JSON.stringify({cut})") == "[]"
    named = "[...document.querySelectorAll('table.many td')].every(cell => cell.dataset.label)"
    assert browser.evaluate(named), "the head is hidden there: each cell says its column"


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_follows_the_reader_s_colours_and_keeps_the_rules_of_accessibility(browser, page, dark):
    def style(of, name):
        return browser.evaluate(f"getComputedStyle({of}).{name}")

    def brightness(colour):
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    assert browser.open(page, dark=dark) == []
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    text, body = "document.querySelector('svg text')", "document.body"
    assert style(text, "fill") == style(body, "color"), "words of plots have the page's colour"
    assert (brightness(style(text, "color")) > brightness(style(body, "backgroundColor"))) is dark
    assert browser.broken_rules() == []
