"""The README, and code that pages show: it runs, and its commands exist with these options."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import mean

import pytest
from typer.main import get_command

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


def test_the_code_of_the_readme_runs(tmp_path):
    (code,) = blocks("README.md", "python")
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\.\d", done.stdout)


@pytest.mark.parametrize("page", SHOWN)
def test_the_commands_of_a_page_exist_with_these_options(page):
    commands = get_command(app).commands
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        name, *arguments = shlex.split(line, comments=True) or [""]
        if name == "fedpfl":
            commands[arguments[0]].make_context(arguments[0], arguments[1:])


def test_the_callbacks_of_the_page_work(tmp_path):
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    few = "import functools, fedpfl; fedpfl.run = functools.partial(fedpfl.run, num_clients=2, local_epochs=1)\n"
    code = few + "".join(blocks("docs/how-to/callbacks.md", "python"))
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment["NOTICE_URL"] = f"http://127.0.0.1:{server.server_port}/"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert "smallest loss with a learning rate of" in done.stdout
    assert len(posted) == 1 and re.search(r"-fedavg-digits: accuracy 0\.\d{3}$", posted[0]["text"])
