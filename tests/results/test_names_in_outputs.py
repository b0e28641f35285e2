"""Names that are HTML, formulas, markup or control sequences, in everything that shows them."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from in_process import call_fedpfl
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.cli.common import print_json, stdout
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import FORMATS, Table
from fedpfl.study.report.page import write_page, write_plots
from fedpfl.study.report.sections import sections

NAMES = (
    "<script>alert(1)</script>", '=HYPERLINK("http://x","y")', "[red]boo[/red]", "[/nope]", "\x1b[31mred\x1b]0;t\x07",
    "a|b\n\nc\rd", "\\input{/etc/passwd}", "@SUM(1)", "+1+1", "-1+1", "\u202eabc", "\t=1", ":smile:", "${x}", "\x9b31m",
)  # fmt: skip
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    count, folder = len(NAMES), tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    data = fedpfl.Dataset.of(
        "mine", rng.normal(size=(count * 16, 3)).astype(np.float32), np.tile(np.arange(count), 16),
        client_train=np.repeat(np.arange(count), 16), client_names=NAMES, class_names=NAMES, num_classes=count,
    )  # fmt: skip
    done = fedpfl.run(
        method="fedavg", dataset=data, model="mlp", num_clients=count, partitioner="natural", num_server_rounds=1,
        output_dir=str(folder), run_name="named", quiet=True, workers=0,
    )  # fmt: skip
    return RunFolder(done.path)


def table() -> Table:
    return Table("Names", ["name", "n"], [[name, 1] for name in NAMES])


def test_a_page_and_its_drawings_hold_names_as_text(run, tmp_path):
    made, labels = sections([run])
    write_page(tmp_path / "page.html", NAMES[0], made, labels)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == 2 and r"\u003cscript>alert(1)" in page and "<title>&lt;script&gt;" in page
    assert not STEERS.search(page)
    for path in write_plots(tmp_path / "plots", "svg", made, labels):
        ET.parse(path)  # a control character is no XML


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_holds_names_as_text(form):
    text = table().write(form)
    assert not STEERS.search(text)
    if form == "markdown":
        assert "<script" not in text and len(text.splitlines()) == 4 + len(NAMES)
    if form == "latex":
        assert r"\input" not in text and r"\textbackslash{}input" in text


def test_a_spreadsheet_takes_no_name_for_a_formula_and_every_number_for_a_number():
    names = [row[0] for row in csv.reader(io.StringIO(table().csv()))]
    assert not [name for name in names if name.startswith(("=", "+", "-", "@", "\t", "\r"))]
    values = [["-0.5", 1], ["-1e-05", -2], ["+3", -0.25]]
    assert list(csv.reader(io.StringIO(Table("", ["a", "b"], values).csv())))[1:] == [[a, str(b)] for a, b in values]


def test_a_terminal_gets_names_without_control_sequences_or_markup(capsys):
    from rich.table import Table as Lines

    lines = Lines("name", *NAMES)
    for name in NAMES:
        lines.add_row(name)
        stdout().print(name)
    stdout().print(lines)
    shown = capsys.readouterr().out
    assert "[red]boo[/red]" in shown and "[/nope]" in shown and ":smile:" in shown
    assert not STEERS.search(shown)


def test_json_holds_the_names_and_no_control_characters(capsys):
    print_json({"names": NAMES, "broken": "\udc80"})
    shown = capsys.readouterr().out
    assert not STEERS.search(shown) and json.loads(shown) == {"names": [*NAMES], "broken": "\udc80"}


def test_a_folder_of_such_a_name_is_listed_and_an_error_names_it(run, monkeypatch, tmp_path):
    root = tmp_path / "runs"
    for name in ("[red]x", "e\x1b[31mvil", "[nope]"):
        (root / name).mkdir(parents=True)
        for file in ("config.toml", "metrics.jsonl", "task.json", "summary.md"):
            (root / name / file).write_bytes((run.path / file).read_bytes())
    monkeypatch.setattr("fedpfl.cli.stored_runs.output_dir", lambda: root)
    shown = call_fedpfl("show")
    assert shown.exit_code == 0 and "[red]x" in shown.output and "[nope]" in shown.output
    assert not STEERS.search(shown.output)
    (root / "[nope]" / "config.toml").write_text("# sha256 none\n")
    assert not STEERS.search(CliRunner().invoke(app, ["show", "e\x1b[31m"]).output)


def test_why_a_run_failed_steers_no_terminal(tmp_path):
    RunFolder(tmp_path).fail("\x1b[31mno\x07\nsecond line")
    assert (tmp_path / "failed.txt").read_text() == " [31mno \nsecond line\n"
