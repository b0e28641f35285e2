"""The live page in a real browser: a run from start to end, a board that dies, and what others send."""

from __future__ import annotations

import json
import signal
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import PROGRAM, Browser
from live_parts import add_round, make_run, served
from mqtt_parts import MOSQUITTO, Broker, Side
from waiting import wait_until

from fedpfl.bench.mqtt import topics
from fedpfl.bench.mqtt.account import Account, read_password
from fedpfl.core.files import locked
from fedpfl.study.live import run_data

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (apt-get install chromium)"),
    pytest.mark.xdist_group("chromium"),
]

PHONE = 390


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


def text(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")


def shows(browser, selector, expected):
    """Wait until a part of the page says something."""
    wait_until(lambda: expected in text(browser, selector), hint=lambda: text(browser, selector))


def rows(browser, title):
    """Return the texts of a table's rows."""
    tables = "[...document.querySelectorAll('table')].find(table => table.caption?.textContent.startsWith(%s))"
    return browser.evaluate(
        f"[...{tables % json.dumps(title)}.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_a_run_is_watched_from_its_start_to_its_end(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(run_data, "PAUSE", 0)
    other = make_run(tmp_path, "other", rounds=4, seed=2, about={"division": 7})
    (other / "summary.md").touch()
    folder = make_run(tmp_path, "one", about={"division": 7})
    with served(tmp_path) as page, locked(folder / ".lock") as lock:
        assert browser.open(page.address("one")) == []
        shows(browser, "#status", "one is running.")
        assert "token" not in browser.evaluate("location.href")
        shows(browser, "#progress", "one: running0 of 5 rounds")
        assert "one: nothing is personal" in text(browser, "#sections")
        add_round(folder, 1)
        shows(browser, "#progress", "1 of 5 rounds")
        browser.evaluate("document.querySelector('#sections button').focus()")
        add_round(folder, 2, failed={1: "out of memory"})
        shows(browser, "#progress", "2 of 5 rounds in 2 s, about 2 s left")
        assert browser.evaluate("document.activeElement.tagName") == "BUTTON", "what is drawn again keeps the focus"
        last = ["2", "4.50", "1.40", "50.00", "0.500", "3.00", "0.75", "2", "1"]
        assert rows(browser, "Last rounds of one")[0] == last
        assert rows(browser, "Clients that failed") == [["one", "2", "1", "out of memory"]]
        assert browser.evaluate("document.querySelectorAll('figure svg').length") > 4

        browser.evaluate("[...document.querySelectorAll('#runs input')].find(box => !box.checked).click()")
        shows(browser, "#title", "one, other")
        assert "other" in browser.evaluate("location.hash")
        assert rows(browser, "Runs")[0][:3] == ["fedavg", "1, 2", "2–4"]

        (folder / "summary.md").touch()
        lock.close()
        shows(browser, "#status", "one is finished. other is finished.")
        shows(browser, "#contents", "Fairness")
        assert browser.troubles() == []
    shows(browser, "#status", "this page is no longer updated")


def test_runs_are_filtered_and_tables_sorted(browser, tmp_path):
    for name, seed in (("other", 2), ("one", 1)):
        make_run(tmp_path, name, rounds=2, seed=seed, about={"division": seed})
    with served(tmp_path) as page:
        browser.open(page.address("one"))
        shows(browser, "#title", "one")
        browser.evaluate("filter.value = 'fedavg other'; filter.dispatchEvent(new Event('input'))")
        names = "[...document.querySelectorAll('#runs tbody th')].map(cell => cell.textContent)"
        assert browser.evaluate(names) == ["other"]
        title = "Samples of each client"
        table = (
            f"[...document.querySelectorAll('table')].find(table => table.caption?.textContent.startsWith('{title}'))"
        )
        for order in (["2", "1", "0"], ["0", "1", "2"]):
            browser.evaluate(f"{table}.tHead.rows[0].cells[1].firstChild.click()")
            assert [row[0] for row in rows(browser, title)] == order


def test_without_the_token_the_page_says_what_to_do(browser, tmp_path):
    make_run(tmp_path, "one", rounds=1)
    with served(tmp_path) as page:
        browser.open(page.address().partition("token=")[0] + "token=wrong")
        shows(browser, "#status", "open the address that the command has printed")
        assert browser.evaluate("document.body.innerText.includes('one ')") is False


EVIL, SCRIPT = "<img src=x onerror=alert(1)>", "<script>alert(1)"


def test_what_others_wrote_is_text(browser, tmp_path):
    folder = make_run(tmp_path, EVIL, about={"client_names": [EVIL, "b", "c"], "class_names": [EVIL, "</script>"]})
    add_round(folder, 1, failed={0: EVIL})
    make_run(tmp_path, SCRIPT, method="local", rounds=1)
    with served(tmp_path) as page:
        assert browser.open(page.address(EVIL)) == []
        shows(browser, "#title", EVIL)
        shows(browser, "#sections", "fedavg")
        assert EVIL in text(browser, "#sections")
        shows(browser, "#runs", SCRIPT)
        browser.evaluate("[...document.querySelectorAll('#runs input')].find(box => !box.checked).click()")
        shows(browser, "#title", f"{EVIL}, {SCRIPT}")
        assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert browser.troubles() == []


def test_a_page_of_another_origin_gets_nothing(browser, tmp_path):
    make_run(tmp_path / "runs", "one", rounds=1)
    elsewhere = tmp_path / "site"
    elsewhere.mkdir()
    (elsewhere / "index.html").write_text("<!DOCTYPE html><title>waiting</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=elsewhere)
    with served(tmp_path / "runs") as page, ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        browser.open(f"http://127.0.0.1:{site.server_address[1]}/index.html")
        where = page.address().partition("#")[0] + "api/runs"
        told = {"headers": {"Authorization": f"Bearer {page.token}"}}
        for options in ({}, told, {"mode": "no-cors"}):
            asked = f"fetch({json.dumps(where)}, {json.dumps(options)}).then(a => a.text(), () => 'refused')"
            assert browser.evaluate(asked) in ("refused", "")
        site.shutdown()


def test_a_hundred_clients_and_five_hundred_rounds_stay_light(browser, tmp_path):
    make_run(tmp_path, "long", clients=100, rounds=500, num_server_rounds=501)
    with served(tmp_path) as page:
        assert browser.open(page.address("long")) == []
        shows(browser, "#progress", "500 of 501 rounds")
        assert browser.evaluate("JSON.stringify(shown.page).length") < 2e6
        timed = "(() => { const from = performance.now(); draw(shown.page); return performance.now() - from; })()"
        times = sorted(browser.evaluate(timed) for _ in range(5))
        assert times[2] < 100, "smooth, also where other programs take most of the processor"


def test_it_fits_a_telephone_and_follows_the_reader_s_colours(browser, tmp_path):
    make_run(tmp_path, "20261125-022103-0a1b-feddecomp-a-long-name", clients=12, rounds=5)
    with served(tmp_path) as page:
        for dark in (False, True):
            assert browser.open(page.address(), width=PHONE, height=844, dark=dark) == []
            shows(browser, "#progress", "5 of 5 rounds")
            browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
            assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE
            assert browser.evaluate("innerWidth") == PHONE
            background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, background[4:-1].split(","))) < 384) is dark


# Of the parts of a page, those that have to have a name.
NAMED = {"link", "combobox", "region", "img", "image", "heading", "checkbox", "button"}


def test_everything_has_a_name_and_can_be_reached_and_keeps_the_rules_of_accessibility(browser, tmp_path):
    make_run(tmp_path, "other", rounds=2, seed=2, about={"division": 7})
    folder = make_run(tmp_path, "one", rounds=2, about={"division": 7})
    add_round(folder, 3, failed={1: "out of memory"})
    with served(tmp_path) as page:
        for dark in (False, True):
            browser.open(page.address("one") + "&run=other", dark=dark)
            shows(browser, "#title", "one, other")
            browser.evaluate("bench.hidden = false")
            browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
            nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
            told = [node for node in nodes if not node.get("ignored")]
            names = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in told]
            assert {"link", "combobox", "table", "region", "heading", "status"} <= {role for role, _ in names}
            assert [role for role, name in names if role in NAMED and not name] == []
            scrolled = "[...document.querySelectorAll('.scroll')].every(box => box.tabIndex === 0)"
            assert browser.evaluate(scrolled), "what scrolls can be scrolled by keys"
            assert browser.broken_rules() == []


@pytest.mark.xdist_group("mqtt")
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed (Debian: apt-get install mosquitto)")
def test_a_board_that_dies_is_shown(browser, tmp_path):
    broker = Broker(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    try:
        board, device = broker.client("nano-2"), Side.device(broker, tmp_path, "nano-1")
        account = Account("127.0.0.1", broker.port, "watch", read_password(broker.files.passwords["watch"]))
        with served(runs, account=account) as page:
            assert browser.open(page.address()) == []
            shows(browser, "#devices", "nano-1online")
            telemetry = {"temperature_c": {"cpu": 51.4}, "memory_mib": {"available": 900}, "power_mw": {"all": 2500}}
            board.publish(topics.telemetry("nano-2"), json.dumps(telemetry), 1)
            shows(browser, "#devices", "51 °C900 MiB2500 mW")
            board.publish(topics.log("nano-2"), json.dumps({"level": "warning", "message": EVIL}), 1)
            shows(browser, "#log", f"nano-2warning {EVIL}")
            device.end(signal.SIGKILL)
            shows(browser, "#devices tbody tr.bad", "nano-1offline")
            assert "offline since" in text(browser, "#devices tbody tr.bad")
            assert browser.evaluate("document.querySelectorAll('img').length") == 0
            board.disconnect()
            board.loop_stop()
            broker.end()
            shows(browser, "#headline", "broker: not connected")
            assert browser.troubles() == []
    finally:
        broker.end()
