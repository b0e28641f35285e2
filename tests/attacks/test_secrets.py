"""Secrets of the one who runs it, planted and then looked for in everything that a run and what follows it write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import pytest
from waiting import HANG_SECONDS

from fedpfl.bench.superlink import script

SECRETS = {
    name: f"planted-{name.lower()}-8c1f0a"
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "BROKER_PASSWORD")
}
QUICK = 'dataset="digits" model="mlp" num-server-rounds=1 local-epochs=1 run-name="one"'
COMPARED = 'num-clients=2 dataset="digits" model="mlp" num-server-rounds=1 local-epochs=1'
COMMANDS = (
    ("run", "--num-clients", "2", "--json", "-c", QUICK),
    ("show", "one"),
    ("export", "one"),
    ("report", "one", "--output", "page.html"),
    ("run", "--resume", "nothing"),
    ("analyse", "confusion", "one"),
    ("doctor",),
    ("clean", "--json"),
    ("compare", "fedavg", "local", "--seeds", "1", "-c", COMPARED),
)  # fmt: skip
FEW = COMMANDS[:1]


def command_lines():
    """Return the command lines of all processes of this machine that can be read."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:  # it has ended
            continue
    return lines


def planted_in(content: bytes) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret.encode() in content]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize("commands", [FEW, pytest.param(COMMANDS, marks=pytest.mark.thorough)], ids=["few", "all"])
def test_no_secret_of_the_environment_is_written_or_shown(tmp_path, commands):
    environment = {**os.environ, **SECRETS, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir(mode=0o700)
    shown = []
    for command in commands:
        process = subprocess.Popen(
            [script("fedpfl"), *command], cwd=tmp_path / "work", env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while process.poll() is None:
            assert not [name for line in command_lines() for name in planted_in(line)]
            try:
                shown.append(process.communicate(timeout=0.2)[0])
            except subprocess.TimeoutExpired:
                continue
        assert command == ("doctor",) or (process.returncode == 0) == ("nothing" not in command), (command, shown[-1])
    page = [script("fedpfl"), "watch", "--web", "--port", "0"]
    with subprocess.Popen(page, cwd=tmp_path / "work", env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            address, _, token = process.stdout.readline().split()[-1].partition("/#token=")
            assert not [line for line in command_lines() if token.encode() in line or planted_in(line)]
            with httpx.Client(
                base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=HANG_SECONDS
            ) as web:
                told = [web.get(f"/api/{of}") for of in ("runs", "page?run=one&since=", "bench")]
            assert {answer.status_code for answer in told} == {200}
            shown += [answer.content + repr(answer.headers).encode() for answer in told]
        finally:
            process.terminate()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"metrics.jsonl", *(["page.html"] if commands is COMMANDS else [])} <= {path.name for path in files}
    assert not planted_in(b"".join(shown))
    assert not [(path, secret) for path in files if (secret := planted_in(path.read_bytes()))]
