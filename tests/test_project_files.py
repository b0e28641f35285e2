"""What stands around the code: workflows call make targets that exist, hooks call tools that are installed."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_make_targets_and_nothing_else(path):
    for name, job in read(path)["jobs"].items():
        runs = [step["run"] for step in job["steps"] if "run" in step]
        made = [run.split()[-1] for run in runs if re.fullmatch(r"(sudo )?make( TORCH=cpu)? [a-z-]+", run)]
        assert made and set(made) <= TARGETS, name
        assert len(made) + runs.count("sudo apt-get update") == len(runs), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_actions_by_commit_and_version(path):
    uses = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    pinned = re.compile(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert uses and [line for line in uses if not pinned.search(line)] == []


def test_continuous_integration_and_the_workflow_run_the_same_tests():
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert {"run": "make test"} in read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["test"]["steps"]


def test_hooks_call_what_make_install_installs():
    scripts = set(PROJECT["project"]["scripts"])
    extras = " ".join(PROJECT["project"]["optional-dependencies"]["dev"])
    (repo,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert tool in scripts or re.search(rf"\b{tool}>=", extras), hook["id"]
        assert hook["language"] == "system"


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.name)
def test_an_issue_template_has_what_github_asks_for(path):
    form = read(path)
    assert form["name"] and form["description"]
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(field["type"] in {"input", "textarea"} and field["attributes"]["label"] for field in form["body"])


def test_the_citation_has_what_the_format_needs():
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version"} <= set(citation)
    assert citation["license"] == "Apache-2.0"


def test_flower_s_target_version_is_one_that_the_app_takes():
    app = PROJECT["tool"]["flwr"]["app"]
    (flower,) = (text for text in PROJECT["project"]["dependencies"] if text.startswith("flwr"))
    low, high = re.fullmatch(r"flwr\[simulation\]>=([\d.]+),<([\d.]+)", flower).groups()
    assert app["fab-format-version"] == 1
    assert Version(low) <= Version(app["flwr-version-target"]) < Version(high)


@pytest.mark.parametrize(("torch", "asked"), [("cpu", True), ("default", False)])
def test_torch_without_cuda_is_installed_first_where_it_is_asked_for(tmp_path, torch, asked):
    command = ["make", "--dry-run", f"TORCH={torch}", f"VENV={tmp_path / 'none'}", "install"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    cpu = [
        number for number, line in enumerate(lines) if line.endswith("--index-url https://download.pytorch.org/whl/cpu")
    ]
    everything = next(number for number, line in enumerate(lines) if "--editable" in line)
    assert [number < everything for number in cpu] == [True] * asked
    # The two are of different indexes where one of them is not reached; then models of torchvision fail much later.
    assert any("'import torchvision'" in line for line in lines[everything:])
