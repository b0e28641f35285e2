"""The wheel: installed into an environment that knows no checkout, every kind of command works elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from installed import clean, environment

import fedpfl
from fedpfl.launch import shipped

ROOT = Path(__file__).resolve().parents[1]
TINY = ["num-server-rounds=1 local-epochs=1 num-clients=2 threads=1", 'method="fedper" model="mlp" batch-size=100']
SECONDS = 300


def carry_out(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    carry_out(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def fedpfl_command(wheel, tmp_path_factory):
    """Return what carries out `fedpfl …` from the installed wheel, in an empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    commands = environment(folder / "venv")
    carry_out(
        sys.executable, "-m", "pip", "--python", commands / "python", "install", "--quiet", "--no-deps", "--no-index",
        "--no-compile", "--disable-pip-version-check", wheel, cwd=folder,
    )  # fmt: skip
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    variables = clean(dict(os.environ), commands, elsewhere)

    def fedpfl_command(*arguments):
        return carry_out(commands / "fedpfl", *arguments, cwd=elsewhere, env=variables)

    fedpfl_command.folder, fedpfl_command.commands, fedpfl_command.variables = elsewhere, commands, variables
    return fedpfl_command


def test_the_wheel_has_what_is_not_code(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = carry_out("git", "ls-files", "configs", "experiments", "fedpfl", cwd=ROOT).split()
    assert {name if name.startswith("fedpfl/") else f"fedpfl/shipped/{name}" for name in tracked} <= names
    assert {"fedpfl/study/report/page.html", "fedpfl/study/report/page.js", "fedpfl/py.typed"} <= names


@pytest.mark.thorough
def test_an_installed_wheel_runs_reports_and_makes_outside_a_checkout(fedpfl_command):
    folder = fedpfl_command.folder
    code = "import fedpfl; print(fedpfl.__file__)"
    seen = carry_out(fedpfl_command.commands / "python", "-c", code, cwd=folder, env=fedpfl_command.variables)
    assert Path(seen.strip()).is_relative_to(fedpfl_command.commands.parent)

    # One of the package's own files of settings first, though there is none of that name here.
    fedpfl_command(
        "run", "--quiet", "--workers", 0, "-c", "configs/fedreg-emnist.toml", "-c",
        'dataset="digits" fraction-train=1.0 partitioner="iid" split="mixed" num-classes=0', *("-c", TINY[0]),
        "-c", TINY[1], "-c", 'run-name="one" output-dir="runs"',
    )  # fmt: skip
    assert (folder / "runs" / "one" / "summary.md").is_file()

    fedpfl_command("report", "runs/one", "--output", "one.html")
    assert "<style>" in (folder / "one.html").read_text(encoding="utf-8")

    assert "feddecomp-table-1" in fedpfl_command("experiment", "list")
    done = fedpfl_command(
        "experiment", "run", "feddecomp-table-1", "--scale", "smoke", "--seeds", 1, "--row", "FedAvg", "--column",
        "CIFAR-10, α 0.5", "--quiet", "-c", TINY[0],
    )  # fmt: skip
    assert "FedAvg" in done

    fedpfl_command("new", "my-app")
    assert (folder / "my-app" / "pyproject.toml").is_file()


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Return the dist/ that `make release` makes of a copy of this checkout, signed by the key beside it."""
    if not (Path(sys.prefix) / "bin" / "cyclonedx-py").exists():
        pytest.skip("cyclonedx-bom is not installed (make install)")
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed (Debian: apt-get install openssh-client)")
    folder = tmp_path_factory.mktemp("release")
    for name in carry_out("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "checkout" / name)
    carry_out("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
    (folder / "signers").write_text(f"releases {(folder / 'key.pub').read_text()}", encoding="utf-8")
    make = ["make", "--silent", "--old-file=install", f"VENV={sys.prefix}", "release"]
    assert "dist/SHA256SUMS is not signed; make dist SIGNING_KEY=" in carry_out(*make, "--dry-run", cwd=ROOT)
    carry_out(*make, f"SIGNING_KEY={folder / 'key'}", cwd=folder / "checkout")
    return folder / "checkout" / "dist"


def test_a_release_is_signed_and_whole(release):
    done = carry_out(ROOT / "jetson" / "verify.sh", release, release.parents[1] / "signers")
    hub = [path for path in (release / "hub").rglob("*") if path.is_file()]
    assert done == f"ok: {5 + len(hub)} files, signed by releases\n"
    kinds = sorted(path.suffix for path in release.iterdir())
    assert kinds == ["", "", ".fab", ".gz", ".json", ".json", ".sig", ".whl"]
    notes = (release.parent / "build" / "notes.md").read_text(encoding="utf-8")
    assert notes.startswith(f"## {fedpfl.__version__}") and notes.count("\n## ") == 0


def test_flower_hub_s_folder_has_a_page_of_its_own_and_an_app_that_flower_loads(release):
    folder = release / "hub" / "fedpfl"
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "flwr new @fedpfl/fedpfl\n" in page and "@REPOSITORY@" not in page
    # No link into a repository that is not there.
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert [link for link in links if not link.startswith("https://")] == []
    whole, hub = (tomllib.loads((place / "pyproject.toml").read_text(encoding="utf-8")) for place in (ROOT, folder))
    assert hub["tool"]["flwr"] == whole["tool"]["flwr"] and hub["project"]["readme"] == "README.md"
    assert hub["project"]["dependencies"] == whole["project"]["dependencies"]
    for name, content in (("client", "fedpfl.flower.client_app"), ("server", "fedpfl.flower.server_app")):
        assert content in (folder / f"{name}_app.py").read_text(encoding="utf-8")
    carry_out(
        sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "dist", cwd=folder
    )


@pytest.mark.parametrize(
    ("name", "lock"), [("server", "deploy/requirements-server.txt"), ("device", "jetson/requirements-nano.txt")]
)
def test_a_release_lists_its_packages_with_their_hashes(release, name, lock):
    listed = json.loads((release / f"fedpfl-{name}.cdx.json").read_text(encoding="utf-8"))
    assert listed["bomFormat"] == "CycloneDX"
    about = listed["metadata"]["component"]
    assert (about["name"], about["version"]) == ("fedpfl", fedpfl.__version__)
    pins = [line.split()[0] for line in (ROOT / lock).read_text(encoding="utf-8").splitlines() if line[:1].isalnum()]
    assert sorted(f"{part['name']}=={part['version']}" for part in listed["components"]) == sorted(pins)
    assert all(reference["hashes"] for part in listed["components"] for reference in part["externalReferences"])


def test_the_version_has_one_place(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == fedpfl.__version__
    assert f"\nversion: {fedpfl.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {fedpfl.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert wheel.name.startswith(f"fedpfl-{fedpfl.__version__}-")


def test_files_that_come_with_fedpfl_are_found_in_a_checkout_and_in_a_wheel_and_nowhere_else(tmp_path):
    assert shipped.folder(shipped.CONFIGS) == ROOT / "configs"
    package = tmp_path / "site-packages" / "fedpfl"
    (package.parent / "experiments").mkdir(parents=True)  # another package's
    assert shipped.folder(shipped.EXPERIMENTS, package) is None
    (package / "shipped" / "experiments").mkdir(parents=True)
    assert shipped.folder(shipped.EXPERIMENTS, package) == package / "shipped" / "experiments"


def test_a_file_of_settings_here_wins_over_the_one_that_comes_with_fedpfl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = Path("configs/fedreg-cifar10.toml")
    assert shipped.settings_file(name) == ROOT / name
    assert shipped.settings_file(Path("configs/none.toml")) == Path("configs/none.toml")
    assert shipped.settings_file(Path("fedreg-cifar10.toml")) == Path("fedreg-cifar10.toml")
    name.parent.mkdir()
    name.touch()
    assert shipped.settings_file(name) == name
