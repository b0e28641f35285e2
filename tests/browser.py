"""A headless Chromium, spoken to over its DevTools protocol: opens a page, says what went wrong, measures, pictures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG_SECONDS

# Debian calls it chromium; others' names for the same program.
PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """A browser of its own, with an empty profile and one tab.

    Parameters
    ----------
    profile : Path
        Folder for its files.
    """

    def __init__(self, profile: Path) -> None:
        # The browser reads commands from its descriptor 3 and writes answers to its descriptor 4.
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        command = f'exec "$0" "$@" 3<&{read} 4>&{write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(PROGRAM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._number, self._rest, self.events = 0, b"", []
        self._session = self._url = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def open(self, page: Path | str, width: int = 1280, height: int = 800, dark: bool = False) -> list[str]:
        """Open a file or an address and return what went wrong: see :meth:`troubles`."""
        self._url = page if isinstance(page, str) else page.as_uri()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 500)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._load("about:blank")  # else another part of the same address loads nothing
        self.events.clear()
        self._load(self._url)
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        return self.troubles()

    def troubles(self) -> list[str]:
        """Return errors of scripts and of the console, refusals, and requests to others, since the page was opened."""
        return [*filter(None, map(_trouble, self.events)), *self._requests()]

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"].get(
            "value"
        )

    def broken_rules(self) -> list[str]:
        """Return the rules of axe-core that the page breaks, with the first place of each; skip without axe-core."""
        spec = find_spec("axe_playwright_python")
        if spec is None or spec.submodule_search_locations is None:
            pytest.skip("needs axe-core (pip install --no-deps axe-playwright-python)")
        axe = Path(spec.submodule_search_locations[0]) / "axe.min.js"
        self.evaluate(f"{axe.read_text(encoding='utf-8')}\n;0")
        # Without the preload: the page's content security policy forbids to fetch what is there already.
        return self.evaluate(
            "axe.run({preload: false}).then(found => found.violations.map(rule => `${rule.id} "
            "(${rule.nodes.length}): ${rule.nodes[0].html.slice(0, 200)} ${rule.nodes[0].failureSummary}`))"
        )

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save what the page looks like as PNG, all of it or what is in view."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """Give a command of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _load(self, url: str) -> None:
        # The event names its document: that of the page before can come late.
        loader = self.call("Page.navigate", url=url)["loaderId"]
        deadline = time.monotonic() + HANG_SECONDS
        while not any(_loaded(event, loader) for event in self.events):
            self._receive(deadline)

    def _receive(self, deadline: float) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser ended"
            self._rest += received
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def _requests(self) -> list[str]:
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        page = self._url.partition("#")[0]
        # A page that is no file may ask its own server.
        prefixes = (page, "data:") if page.startswith("http") else "data:"
        return [f"requested {url}" for url in urls if url != page and not url.startswith(prefixes)]


def _loaded(event: dict[str, Any], loader: str) -> bool:
    parameters = event["params"]
    return (
        event["method"] == "Page.lifecycleEvent" and parameters["name"] == "load" and parameters["loaderId"] == loader
    )


def _trouble(event: dict[str, Any]) -> str | None:
    parameters = event["params"]
    if event["method"] == "Runtime.exceptionThrown":
        return str(parameters["exceptionDetails"].get("exception", {}).get("description", parameters))
    if event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert", "warning"):
        return " ".join(str(argument.get("value")) for argument in parameters["args"])
    if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
        return str(parameters["entry"]["text"])
    return None
