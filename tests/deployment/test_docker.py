"""The files in deploy/docker, as far as they can be checked without a container daemon."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
SCRIPTS = sorted(FOLDER.glob("*.sh"))
INSTRUCTIONS = {
    "FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR", "ENV", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT",
}  # fmt: skip
COMPOSE = yaml.safe_load((FOLDER / "compose.yml").read_text(encoding="utf-8"))
OURS = re.compile(r"^\s*(?:\w+=\S+ )*((?:fedpfl|flower)-?[a-z-]*(?: (?:keys|register|direct))?) (.*)$", re.MULTILINE)


def joined(path):
    return path.read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(path):
    lines = [line for line in joined(path).splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def of_kind(path, kind):
    return [rest for word, rest in instructions(path) if word == kind]


def used():
    """Return what scripts start of Flower's and this project's commands, and the options that they give."""
    options = {}
    for path in SCRIPTS:
        for command, rest in OURS.findall(joined(path)):
            options.setdefault(command, set()).update(re.findall(r"(?<!\S)--[a-z-]+", rest))
    return options


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_docker_file_copies_and_starts_what_there_is(path):
    assert {word for word, _ in instructions(path)} <= INSTRUCTIONS
    assert all(re.fullmatch(r"[\w.:/-]+:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in of_kind(path, "FROM"))
    for command in re.findall(r"pip install.*", joined(path)):
        assert "--require-hashes" in command or {"--no-index", "--no-deps", "--no-build-isolation"} <= set(
            command.split()
        )
    assert next(word for word, _ in instructions(path)) == "FROM"
    targets = {}
    for copied in of_kind(path, "COPY"):
        *sources, target = copied.split()
        assert all((ROOT / source).exists() for source in sources)
        targets.update(dict.fromkeys([target], ROOT / sources[0]))
    for line in of_kind(path, "RUN"):
        for part in re.split(r"&&", line):
            assert shlex.split(part)[0] in {"pip", "useradd", "install", "chmod"}
    for requirements in re.findall(r"--requirement (\S+)", joined(path)):
        assert targets[requirements].is_file()
    (entry,) = map(json.loads, of_kind(path, "ENTRYPOINT"))
    assert targets[entry[0]].name == path.stem + ".sh" and targets[entry[0]].stat().st_mode & 0o111
    assert of_kind(path, "USER") == ["fedpfl"], "nothing runs as root"
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "runs"} <= set(ignored) and not {"fedpfl", "jetson", "deploy"} & set(ignored)


def test_scripts_are_sound():
    for path in SCRIPTS:
        subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", *SCRIPTS], check=True)


def test_every_command_and_option_of_the_scripts_exists(monkeypatch, capsys):
    commands = used()
    assert set(commands) == {
        "fedpfl keys", "fedpfl register", "fedpfl-bridge direct", "fedpfl-worker", "fedpfl-forkserver",
        "flower-superlink", "flower-superexec", "flower-supernode",
    }  # fmt: skip
    programs = entry_points(group="console_scripts")
    for command, options in commands.items():
        monkeypatch.setattr("sys.argv", [*command.split(), "--help"])
        with pytest.raises(SystemExit) as ended:
            programs[command.split()[0]].load()()
        assert ended.value.code in (0, None), command
        assert options <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out)), command


def test_the_compose_file_fits_the_scripts():
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    read = {path.stem: set(re.findall(r"\$\{(FEDPFL_\w+)", path.read_text(encoding="utf-8"))) for path in SCRIPTS}
    must = {path.stem: set(re.findall(r"\$\{(FEDPFL_\w+):\?", path.read_text(encoding="utf-8"))) for path in SCRIPTS}
    clients = []
    for name, service in services.items():
        build = service["build"]
        file = (FOLDER / build["context"]).resolve() / build["dockerfile"]
        assert (FOLDER / build["context"]).resolve() == ROOT and file in DOCKERFILES
        kind = file.stem
        assert must[kind] <= set(service["environment"]) <= read[kind], name
        assert all(volume.split(":")[0] in volumes for volume in service["volumes"])
        assert set(service.get("depends_on", {})) <= set(services)
        log, environment = service["logging"], service["environment"]
        assert log["driver"] == "json-file" and {"max-size", "max-file"} <= log["options"].keys(), "it rotates"
        assert environment["FEDPFL_NODES"] == services["server"]["environment"]["FEDPFL_NODES"]
        if kind == "device":
            first = int(environment["FEDPFL_FIRST"])
            clients += range(first, first + int(environment["FEDPFL_CLIENTS"]))
    assert clients == list(range(int(services["server"]["environment"]["FEDPFL_NODES"])))
    # A device connects to the server by the name that its certificate has.
    assert "${FEDPFL_SUPERLINK:-" + services["server"]["environment"]["FEDPFL_SERVER"] + ":9092}" in (
        FOLDER / "device.sh"
    ).read_text(encoding="utf-8")
