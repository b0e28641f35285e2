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
LOCK = ROOT / "requirements-dev.txt"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_no_file_of_the_package_has_a_name_that_flower_leaves_out_of_a_bundle():
    names = [path.name for path in (ROOT / "fedpfl").rglob("*.py")]
    assert len(names) > 300 and not [name for name in names if re.fullmatch(r"test_.*|.*_test\.py", name)]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_make_targets_and_nothing_else(path):
    for name, job in read(path)["jobs"].items():
        runs = [step["run"] for step in job["steps"] if "run" in step]
        made = [run.split()[-1] for run in runs if re.fullmatch(r"(sudo )?make( TORCH=cpu)? [a-z-]+", run)]
        assert set(made) <= TARGETS, name
        assert len(made) + runs.count("sudo apt-get update") == len(runs), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_actions_by_commit_and_version(path):
    uses = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    pinned = re.compile(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert uses and [line for line in uses if not pinned.search(line)] == []


def test_the_workflow_runs_the_same_tests_as_continuous_integration():
    assert {"run": "make test"} in read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["test"]["steps"]


def test_flower_s_target_version_is_one_that_the_app_takes():
    app = PROJECT["tool"]["flwr"]["app"]
    (flower,) = (text for text in PROJECT["project"]["dependencies"] if text.startswith("flwr"))
    low = re.fullmatch(r"flwr>=([\d.]+)", flower)[1]  # no cap: the library and the strategies take what comes
    assert app["fab-format-version"] == 1
    assert Version(low) <= Version(app["flwr-version-target"])


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe, project = read(ROOT / "deploy" / "conda" / "recipe.yaml"), PROJECT["project"]
    name = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = [re.sub("^[a-z-]+", lambda of: f"{name.get(of[0], of[0])} ", text) for text in project["dependencies"]]
    assert recipe["requirements"]["run"] == ["python >=3.11", *wanted]
    commands = [f"{command} = {place}" for command, place in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}


def dry_run(folder, *targets):
    command = ["make", "--dry-run", f"VENV={folder / 'none'}", *targets]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/how-to/install.md"])
def test_the_two_commands_of_a_page_set_up_everything_and_are_those_of_continuous_integration(page, tmp_path):
    text = (ROOT / page).read_text(encoding="utf-8")
    block = re.search(r"^```sh\ngit clone \S+ && cd fedpfl\n(make .*)\n(make .*)\n```$", text, re.MULTILINE)
    main, tests = (line.partition("#")[0].split() for line in block.groups())
    assert (main, tests) == (["make", "simulate"], ["make", "test"])
    if page != "docs/index.md":
        assert block.start() < text.index("make install") < text.index("source .venv/bin/activate")
    for command, job in ((main, "/bin/fedpfl run"), (tests, "-m pytest -n 2 --dist loadgroup")):
        lines = dry_run(tmp_path, *command[1:])
        installed = next(number for number, line in enumerate(lines) if line.startswith("touch "))
        assert [number > installed for number, line in enumerate(lines) if line.endswith(job)] == [True]
    assert f"\n{' '.join(tests)}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("torch", ["cpu", "default"])
def test_make_install_takes_the_lock_s_files_and_those_of_cuda_only_where_it_is_wanted(torch, tmp_path):
    lines = dry_run(tmp_path, f"TORCH={torch}", "install")
    packages = [
        line for line in lines if " install " in line and "--editable" not in line and "--index-url" not in line
    ]
    assert packages and all("--no-deps --require-hashes" in line for line in packages)
    assert not [line for line in lines if "--upgrade" in line]
    made = next(line for line in lines if line.endswith("/packages.txt")).replace(str(tmp_path / "none"), str(tmp_path))
    subprocess.run(made, shell=True, cwd=ROOT, check=True)
    names = set(re.findall(r"^([a-z0-9-]+)==", (tmp_path / "packages.txt").read_text(encoding="utf-8"), re.MULTILINE))
    everything = set(re.findall(r"^([a-z0-9-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    left_out = {name for name in everything if re.match("(torch|torchvision|triton)$|nvidia-|cuda-", name)}
    assert len(left_out) > 10 and names == everything - (left_out if torch == "cpu" else set())
    cpu = [line for line in lines if "--index-url https://download.pytorch.org/whl/cpu" in line]
    assert bool(cpu) == (torch == "cpu")
    if cpu:
        asked = subprocess.run(f"echo {cpu[0][cpu[0].index('$(') : cpu[0].rindex('||')]}", shell=True, cwd=ROOT,
                               capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
        assert [package.partition("==")[0] for package in asked] == ["torch", "torchvision"]
        assert set(asked) <= set(re.findall(r"^\S+==[^ ;]+", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
        assert "make install, without TORCH=cpu, does not need it" in lines[lines.index(cpu[0]) + 1]
