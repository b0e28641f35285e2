"""Listeners of a user's own that the setting ``listeners`` names, by the commands as in Python."""

from __future__ import annotations

import textwrap

import pytest
from in_process import call_fedpfl

import fedpfl

FEW = {
    "num_server_rounds": 2, "local_epochs": 1, "batch_size": 32, "num_clients": 2, "partitioner": "dirichlet-client",
    "train_samples": 64, "test_samples": 32, "model": "mlp", "output_dir": "runs", "method": "fedavg",
}  # fmt: skip
CODE = """
    import fedpfl

    class Notes(fedpfl.Listener):
        def run_started(self, folder, remarks):
            self.file = folder.path / "notes.txt"

        def round_ended(self, rule, done, state):
            with self.file.open("a") as file:
                file.write(f"{done.number} {done.line['train_loss']}\\n")
            return False

    class Ends(fedpfl.Listener):
        def round_ended(self, rule, done, state):
            return True

    class Needs(fedpfl.Listener):
        def __init__(self, address):
            self.address = address

    ends = Ends()
    other = 3
"""


@pytest.fixture(autouse=True)
def elsewhere(elsewhere):
    (elsewhere / "mine.py").write_text(textwrap.dedent(CODE))
    return elsewhere


def test_a_class_and_an_object_follow_a_run(elsewhere):
    run = fedpfl.run(listeners="mine:Notes, mine:ends", workers=0, quiet=True, **FEW)
    assert run.summary["rounds"] == 1, "the second one ends it"
    number, loss = (run.path / "notes.txt").read_text().split()
    assert (number, float(loss)) == ("1", run.rounds["train_loss"].iloc[0])


def test_a_command_finds_them_and_a_resumed_run_may_have_others(elsewhere):
    settings = " ".join(
        f"{key.replace('_', '-')}={repr(value) if not isinstance(value, str) else chr(34) + value + chr(34)}"
        for key, value in FEW.items()
    )
    command = ["run", "--quiet", "--workers", "0"]
    named = call_fedpfl(*command, "-c", settings, "-c", 'run-name="one" listeners="mine:ends"')
    assert named.exit_code == 0, named.output
    again = call_fedpfl(*command, "--resume", "runs/one", "-c", 'listeners="mine:Notes"')
    assert again.exit_code == 0, again.output
    assert (elsewhere / "runs" / "one" / "notes.txt").read_text().startswith("2 ")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("notes", "listeners = 'notes': must be MODULE:NAME for one of your own"),
        ("mine:Missing", "listeners = 'mine:Missing': there is no Missing in"),
        ("mine:other", "listeners = 'mine:other': is .*, and must be a subclass of fedpfl.Listener"),
        ("mine:Needs", "listeners = 'mine:Needs': needs an argument 'address'"),
    ],
)
def test_what_is_no_listener_is_refused_before_round_1(names, message):
    with pytest.raises(fedpfl.ConfigError, match=message):
        fedpfl.run(listeners=names, workers=0, quiet=True, **FEW)
