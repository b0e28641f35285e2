"""The README, and code that pages show: it runs, and its commands exist with these options."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import mean

import pytest
from typer.main import get_command

import fedpfl
from fedpfl.cli import app

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

SHOWN = [
    "README.md",
    "docs/index.md",
    "docs/how-to/gpu.md",
    "docs/how-to/cluster.md",
    *(f"docs/tutorial/{path.name}" for path in sorted((ROOT / "docs/tutorial").glob("*.md"))),
]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def test_the_landing_page_says_of_the_picture_what_the_readme_says():
    first = r"(In federated learning, .*?own\s+model\.)"
    picture = r"!\[(.*?)\]\(.*?methods\.png\)\n\n(.*?)\n\n"
    said = []
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text(encoding="utf-8").replace("](docs/", "](")
        said.append([re.search(part, text, re.S).groups() for part in (first, picture)])
    assert said[0] == said[1]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-run.md", "Makefile"])
def test_what_the_default_run_gains_is_that_of_its_record(page):
    record = json.loads((ROOT / "docs/records/grids/default-run-small.json").read_text(encoding="utf-8"))
    means = {row: f"{mean(cells['Digits']):.1f}" for row, cells in record["values"]["personalised-last"].items()}
    line = r"FedPer reaches (\S+) % here, local training (\S+) %\s+and FedAvg(?:'s one model for all)? (\S+) %"
    said = re.search(f"Over three seeds {line}", (ROOT / page).read_text(encoding="utf-8"))
    assert said.groups() == (means["FedPer"], means["Local"], means["FedAvg"])


def test_the_code_of_the_readme_runs(elsewhere, capsys):
    (code,) = blocks("README.md", "python")
    exec(code, {"__name__": "readme"})
    assert re.search(r"\d\.\d", capsys.readouterr().out)


def test_the_commands_of_a_page_exist_with_these_options():
    commands = get_command(app).commands
    for page in SHOWN:
        for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
            name, *arguments = shlex.split(line, comments=True) or [""]
            if name == "fedpfl":
                commands[arguments[0]].make_context(arguments[0], arguments[1:])


def test_the_callbacks_of_the_page_work(elsewhere, monkeypatch, capsys):
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    monkeypatch.setattr(fedpfl, "run", functools.partial(fedpfl.run, num_clients=2, local_epochs=1, workers=0))
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("NOTICE_URL", f"http://127.0.0.1:{server.server_port}/")
        exec("".join(blocks("docs/how-to/callbacks.md", "python")), {"__name__": "page"})
        server.shutdown()
    assert "smallest loss with a learning rate of" in capsys.readouterr().out
    assert len(posted) == 1 and re.search(r"-fedavg-digits: accuracy 0\.\d{3}$", posted[0]["text"])
