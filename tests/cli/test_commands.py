"""The commands that start nothing, and every way to use `fedpfl run` wrongly."""

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
from in_process import call_fedpfl as fedpfl
from typer.main import get_command

from fedpfl.cli import app, doctor
from fedpfl.cli.catalogue import methods_command
from fedpfl.core.errors import ConfigError, one_of
from fedpfl.data import federated_data, table
from fedpfl.data.datasets.client_files import own_data
from fedpfl.methods import methods
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup import reference
from fedpfl.setup.all_settings import check, check_keys
from fedpfl.setup.config import Config
from fedpfl.version import __version__

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def stored_run(elsewhere):
    folder = RunFolder.create(Config.parse({"run-name": "first", "output-dir": str(elsewhere / ".fedpfl/runs")}))
    lines = [
        {
            "round": n, "seconds": 1.5, "bytes_up": 1_000_000, "bytes_down": 2_000_000, "train_loss": 1 / n,
            "personalised": {"accuracy": n / 50, "std": 0.1, "each": {"0": n / 50, "3": n / 60}},
            "global": {"accuracy": 0.25},
        }
        for n in range(1, 46)
    ]  # fmt: skip
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


WRONG = [
    (["run", "-c", "learning-rte=1"], "learning-rte = 1: there is no such setting; did you mean learning-rate"),
    (["run", "-c", "learning-rate=-1.0"], "learning-rate = -1.0: must be > 0"),
    (["run", "-c", "method='fedpr'"], "method = 'fedpr': must be one of"),
    (
        ["run", "-c", "split='mixd'"],
        "split = 'mixd': must be one of auto, mixed, given, stratified, time; did you mean mixed?",
    ),
    (["compare", "fedavg", "fedper", "-c", "batch-size=1.5"], "batch-size = 1.5: must be a whole number"),
    (["sweep", "-c", "local-epochs=0", "--seeds", "2"], "local-epochs = 0: must be at least 1"),
    (["sweep", "--grid", "learning-rte=0.1,0.2"], "learning-rte = '0.1,0.2': there is no such setting; did you"),
    (["compare", "fedavg", "fedper", "--tune", "learning-rte=0.1"], "learning-rte = '0.1': there is no such sett"),
]
ONE_BY_ONE = """
import json, sys
from fedpfl.cli import main
assert not {"torch", "flwr", "numpy", "rich.table"} & {*sys.modules}
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, (words, end)
    assert "torch" not in sys.modules, words
"""


def test_the_commands_import_nothing_slow_and_answer_a_wrong_setting_without_torch():
    commands = json.dumps([command for command, _ in WRONG])
    done = subprocess.run([sys.executable, "-c", ONE_BY_ONE, commands], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for (command, message), line in zip(WRONG, done.stderr.splitlines(), strict=True):
        assert message in line, command


def test_the_early_check_says_what_the_whole_one_says():
    for settings in ({"learning-rate": -1.0}, {"method": "fedpr"}, {"split": "mixd"}, {"dataset": "digts"},
                  {"learning-rte": 1}, {"batch-size": 1.5}, {"augmentation": "flp-crop"}):  # fmt: skip
        said = []
        for checked in (
            lambda values: check(values, {}),
            lambda values: (check_keys(values), Config.parse(values)),
        ):
            with pytest.raises(ConfigError) as error:
                checked(settings)
            said.append(str(error.value))
        assert said[0] == said[1]
    # Settings of the user's own methods are known once these are imported.
    check({"method": "parts:Mine", "mine-mu": 1}, {})
    check({"mine-mu": 1}, {"mine-mu": 2})


def test_the_list_of_commands_is_whole_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = fedpfl("--help").stdout
    assert not re.search(r"[\w,;]\.\.\.$", text, re.M) and max(map(len, text.splitlines())) <= 80
    assert "`fedpfl run`" in text and fedpfl("--version").stdout == f"fedpfl {__version__}\n"


def test_the_example_of_a_command_has_options_that_exist():
    examples = 0
    for name, command in get_command(app).commands.items():
        for example in re.findall(r"^Example: (.+)$", command.help or "", re.M):
            program, verb, *arguments = shlex.split(example.partition(" -- ")[0])  # another command follows
            options = {option for param in command.params for option in param.opts}
            assert (program, verb) == ("fedpfl", name)
            assert {word for word in arguments if word.startswith("-")} <= options, example
            examples += 1
    assert examples >= 17


@pytest.mark.parametrize(
    ("command", "choices"),
    [("export", "[state-dict|torchscript|onnx]"), ("personalise", "[local-train|fine-tune|ensemble]"),
     ("report", "[smoke|small|paper]"), ("sweep", "[test|validation]"), ("compare", "[local|flower]"),
     ("compare", "[markdown|csv|latex]"), ("up", "[nano]")],
)  # fmt: skip
def test_help_shows_the_choices_of_an_option(command, choices):
    assert choices in fedpfl(command, "--help").stdout


def test_of_many_names_an_error_lists_those_that_are_like_the_wrong_one():
    assert one_of("fedpr", list(methods())) == (
        f"must be one of {len(methods())} names; did you mean fedper or fedprox or fedcp?"
    )
    assert one_of("x", ["a", "b"], "MODULE:NAME") == "must be one of a, b, or MODULE:NAME"
    assert "apfl, " in one_of("nothing-like-it", list(methods()))


def test_help_is_in_words():
    text = fedpfl("run", "--help").stdout
    assert "[at least 1]" in text
    assert text.count("\n  [APP_DIR]  ") == 1  # explained, and once
    watch = fedpfl("watch", "--help").stdout
    assert "--port NUMBER" in watch and "[0 to 65,535]" in watch
    text += watch + fedpfl("keys", "--help").stdout + fedpfl("experiment", "run", "--help").stdout
    assert not {word for word in ("\\", "RANGE", "x>=", "<=x") if word in text}


@pytest.mark.parametrize(("path", "message"), [(None, ""), ("/full/file", "/full/file: ")])
def test_a_full_disk_is_one_line(stored_run, monkeypatch, path, message):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr("fedpfl.results.export.export_personal", full)
    done = fedpfl("export", "first")
    assert (done.exit_code, done.stderr) == (1, f"error: {message}No space left on device\n")


def test_methods():
    rows = json.loads(fedpfl("methods", "--json").stdout)
    assert [row["name"] for row in rows] == list(methods())
    feddecomp = next(row for row in rows if row["name"] == "feddecomp")
    assert feddecomp["aliases"] == ["fedlora"]
    assert feddecomp["settings"]["feddecomp-rank-conv"] == 0.6
    listed = fedpfl("methods", "feddecomp").stdout
    assert "feddecomp-rank-conv = 0.6" in listed
    assert 'feddecomp-init = "paper"' in listed
    advice = json.loads(fedpfl("methods", "--choose", "--json").stdout)
    assert all(f"{row['situation']}:" in fedpfl("methods", "--choose").stdout for row in advice)
    assert "must be left out" in fedpfl("methods", "fedper", "--choose").output


@pytest.mark.parametrize(
    "arguments, line",
    [
        ({"choose": True}, "  local and fedavg"),
        ({"name": "fedrep"}, "head-layers = 1  # Number of last linear layers that form the head. (at least 1)"),
        ({"name": None}, "local               no federation: the baseline of every personalised-FL paper"),
    ],
)
def test_methods_fit_a_narrow_terminal(arguments, line, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    methods_command(**arguments)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and line in lines


def test_datasets():
    rows = json.loads(fedpfl("datasets", "--json").stdout)
    assert [row["name"] for row in rows] == [info.name for info in table()]
    assert "tiny-imagenet" in fedpfl("datasets").stdout


def test_models():
    rows = {row["name"]: row for row in json.loads(fedpfl("models", "--json").stdout)}
    assert rows["convnet"]["takes"] == "images of at least 16×16" and rows["convnet"]["parameters"] == 797_962
    assert rows["convnet"]["source"].startswith("The network of FedReG, section 4.1")
    assert all(row["what"] and row["takes"] and row["source"] and row["parameters"] for row in rows.values())
    assert "797,962" in fedpfl("models").stdout and "small-cnn" in fedpfl("models").stdout.split()


def test_without_a_command_there_is_help_in_groups():
    done = fedpfl()
    assert done.exit_code == 0 and done.stdout == fedpfl("--help").stdout
    text = done.stdout
    places = [text.index(f"{title}:\n") for title in ("Run", "Results", "Data, methods and settings", "Devices")]
    assert places == sorted(places) and text.index("  run ") < places[1] < text.index("  show ") < places[2]
    assert "More:" not in text, "each command has its group"
    assert "--install-completion" in text


def test_an_unknown_command_is_one_line_that_says_it_once():
    done = fedpfl("rnu")
    assert (done.exit_code, done.stderr) == (2, "error: there is no command rnu; did you mean run?\n")
    assert fedpfl("xyzzy").stderr == "error: there is no command xyzzy; `fedpfl --help` lists all\n"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("re", ["register", "report", "resume"]),
        ("show fi", ["first"]),
        ("show x", []),
        ("compare fedavg fedp", ["fedpac", "fedper", "fedphp", "fedproto", "fedprox"]),
    ],
)
def test_the_shell_completes_commands_and_names(stored_run, monkeypatch, line, names):
    monkeypatch.setenv("_FEDPFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fedpfl {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    assert fedpfl().stdout.split() == names


def test_a_table_with_a_mistake_is_one_line_and_no_run(elsewhere):
    (elsewhere / "people.csv").write_text("age,label\n31,0\nold,1\n")
    settings = 'dataset="table" data="people.csv" model="mlp"'
    for command in ("run", "partition"):
        done = fedpfl(command, "-c", settings)
        message = f"error: {elsewhere}/people.csv, line 3, column 'age': 'old' is not a number"
        assert done.exit_code == 1 and message in done.stderr.replace("error: people", f"error: {elsewhere}/people")
        assert done.stderr.count("\n") == 1
    assert not (elsewhere / ".fedpfl" / "runs").exists()


def test_config(elsewhere):
    assert fedpfl("config").stdout.strip() == reference.pyproject_block(explained=True)
    refused = fedpfl("config", "--update")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    (elsewhere / "pyproject.toml").write_text(f"{reference.BEGIN}\n{reference.END}\n")
    # An app of a user's own has the settings alone; the pages are the package's.
    assert "wrote pyproject.toml" in fedpfl("config", "--update").stdout
    assert not (elsewhere / "docs").exists()  # an app of a user's own has no pages
    (elsewhere / "fedpfl").mkdir()
    assert "wrote docs/reference/configuration.md" in fedpfl("config", "--update").stdout
    assert (elsewhere / "docs" / "reference" / "configuration.md").is_file()
    assert "nothing to change" in fedpfl("config", "--update").stdout


def test_show(stored_run):
    shown = fedpfl("show", "first").stdout
    assert "not finished" in shown
    assert "90.00 %" in shown  # the last round's accuracy
    assert "0: 90.00 %  3: 75.00 %" in shown
    rounds = [line for line in shown.splitlines() if line[:8].strip().isdigit()]
    assert 15 <= len(rounds) <= 21
    assert rounds[-1].split()[0] == "45"
    assert fedpfl("show", stored_run.path).stdout == shown
    stored_run.note(client_names=["anna", "ben", "chloe", "dev"])
    assert "anna: 90.00 %  dev: 75.00 %" in fedpfl("show", "first").stdout
    refused = fedpfl("compare", "first", "fedavg").stderr
    assert "METHOD... = 'first': is a run; `fedpfl report RUN RUN`" in refused and refused.count("\n") == 1


def test_show_has_some_of_very_many_clients(stored_run):
    each = {str(client): 0.5 for client in range(20_000)}
    line = {"round": 1, "seconds": 1.5, "bytes_up": 1, "bytes_down": 1, "personalised": {"accuracy": 0.5, "each": each}}
    (stored_run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    shown = fedpfl("show", "first").stdout
    assert "clients, round 1, 200 of 20,000, evenly spaced" in shown
    assert shown.count(": 50.00 %") == 200
    assert "19900: 50.00 %" in shown


def test_show_lists_runs(stored_run):
    assert "first" in fedpfl("show").stdout and "45/5" in fedpfl("show").stdout
    shutil.rmtree(stored_run.path)
    assert "no runs in" in fedpfl("show").stdout


def test_an_exported_partition_is_the_one_of_a_simulation(elsewhere):
    done = fedpfl("partition", "-c", 'num-clients=3 seed=4 split="mixed" permute-labels=true', "--export", "parts")
    assert (done.exit_code, done.stderr) == (0, "wrote 3 files to parts\n")
    settings = Config.parse({"num-clients": 3, "seed": 4, "split": "mixed", "permute-labels": True}).data
    whole = federated_data(settings, 3, 4)
    for client in range(3):
        exported = own_data(settings, f"parts/client-{client}.npz", client, 4, 10)
        for part in ("train", "test"):
            expected, actual = getattr(whole, part)(client), getattr(exported, part)(0)
            assert torch.equal(expected.x, actual.x)
            assert torch.equal(expected.y, actual.y)
    # Two clients' files would stand beside the third one's of another division.
    for place, why in (("parts", "must be a new or an empty folder"), ("parts/client-0.npz", "is there already")):
        done = fedpfl("partition", "-c", "num-clients=2", "--export", place)
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: export = '{place}': {why}\n")
    done = fedpfl("partition", "--output", "chart.txt")
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_division_is_written_to_a_file_and_used_by_a_run(elsewhere):
    done = fedpfl("partition", "-c", "num-clients=3 seed=4", "--export", "division.npz")
    checksum = federated_data(Config.parse({"seed": 4}).data, 3, 4).checksum
    assert (done.exit_code, done.stderr) == (0, f"wrote division.npz, division {checksum}\n")
    assert "is there already" in fedpfl("partition", "--export", "division.npz").stderr
    settings = "division-file='division.npz' num-server-rounds=1 seed=9 local-epochs=2 run-name='first'"
    assert fedpfl("run", "--quiet", "--workers", 0, "-c", settings).exit_code == 0
    task = json.loads((elsewhere / ".fedpfl/runs/first/task.json").read_text())
    assert (task["clients"], task["division"]) == (3, checksum)


def test_partition(elsewhere):
    done = fedpfl("partition", "-c", "num-clients=4", "--plot")
    assert done.exit_code == 0
    rows = done.stdout.splitlines()
    assert len(rows) == 5
    assert done.stderr == f"wrote {elsewhere / 'partition.png'}\n"
    assert (elsewhere / "partition.png").stat().st_size > 1000
    assert fedpfl("partition", "--output", "charts/mine.svg").exit_code == 0
    assert (elsewhere / "charts" / "mine.svg").is_file()
    assert len(fedpfl("partition", "--num-supernodes", 3).stdout.splitlines()) == 4


def test_doctor_reports_every_check():
    done = fedpfl("doctor", "--json")
    findings = json.loads(done.stdout)
    checks = [finding["check"] for finding in findings]
    assert checks == ["flower", "torch", "output-dir", "state-dir", "data-dir", "superlink"]
    assert (done.exit_code == 1) == any(finding["state"] == "problem" for finding in findings)
    assert "state-dir: /there" in fedpfl("doctor", "-c", 'state-dir="/there"').stdout


@pytest.mark.parametrize(
    ("version", "state"),
    [("1.21.9", "problem"), ("1.22.0", "warning"), ("1.41.0", "ok"), ("1.42.1", "ok"), ("1.43.0", "warning")],
)
def test_doctor_accepts_the_flower_that_the_package_asks_for(monkeypatch, version, state):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert doctor._flower().state == state


def test_doctor_finds_problems(elsewhere, monkeypatch):
    (elsewhere / "file").write_text("")
    monkeypatch.setattr(doctor, "FLOWER", "flwr>=1.99")
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    folders = {"output-dir": elsewhere / "file" / "runs", "state-dir": elsewhere / "new", "data-dir": elsewhere}
    findings = {finding.check: finding for finding in doctor.examine(folders)}
    assert findings["output-dir"].state == findings["flower"].state == findings["torch"].state == "problem"
    assert findings["state-dir"].state == "ok"
    assert not (elsewhere / "new").exists()


@pytest.mark.parametrize("command", ["export", "personalise"])
def test_a_run_without_a_round_has_no_models(stored_run, command):
    done = fedpfl(command, "first")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "not reached its first round" in done.stderr


IN_TURN = """
import sys
from fedpfl.cli import main
for words in sys.argv[1:]:
    sys.argv[1:] = words.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end)
    print("\\f", end="", flush=True)
"""


def test_a_terminal_that_lacks_characters_gets_the_rest(stored_run):
    settings = stored_run.path / "metrics.jsonl"  # no global accuracy, which is shown as a dash
    settings.write_text("".join(line.replace('"global"', '"other"') for line in settings.open()))
    commands = ["show", "show first", "config", "datasets --json"]
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, *commands],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert done.returncode == 0 and b"rror" not in done.stderr
    texts = done.stdout.decode("latin-1").split("\f")
    assert [bool(text) for text in texts] == [True] * len(commands) + [False]
    assert json.loads(texts[-2])


@pytest.mark.parametrize("key", ["output-dir", "data-dir", "run-name"])
def test_a_path_that_is_not_utf_8_is_one_line(elsewhere, key):
    done = fedpfl(
        "run", "--workers", "0", "-q", "-c", f'{key}="{os.fsdecode(bytes(elsewhere) + b"/caf" + bytes([233]))}"'
    )
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith(f"error: {key} = ")


def test_damaged_files_of_a_run_are_one_line(stored_run):
    for name in ("metrics.jsonl", "config.toml"):
        path = stored_run.path / name
        path.write_bytes(b"\xff\n" + path.read_bytes())
        done = fedpfl("show", "first")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert name in done.stderr
    listed = fedpfl("show")
    assert listed.exit_code == 0
    assert "config.toml: is damaged" in listed.stderr
