"""What `fedpfl run` decides before it starts anything, and what it reads while a run goes on."""

import re

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from support import edit_settings

from fedpfl.bench.superlink import copy_app, reason_in
from fedpfl.cli.common import overrides, prepare
from fedpfl.core.checksummed_files import write_arrays
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.core.files import Rounds
from fedpfl.launch.progress import Display
from fedpfl.results.round_line import in_words
from fedpfl.setup import reference

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("text", ['seed=3 method="fedavg" resume=true', "dirichlet-alpha=0.1  data='my data'", ""])
def test_overrides_are_read_as_flower_reads_them(text):
    assert overrides([text]) == parse_config_args([text])


def test_overrides_mix_files_and_pairs_and_the_last_wins(elsewhere):
    (elsewhere / "my.toml").write_text("seed = 5\nlocal-epochs = 2\n")
    assert overrides(["seed=4 num-clients=3", "my.toml", "local-epochs=9"]) == {
        "seed": 5, "num-clients": 3, "local-epochs": 9,
    }  # fmt: skip


def test_plan_of_the_installed_package(elsewhere):
    plan = prepare(None, ['output-dir="runs"'], None, None)
    values = plan.run_config()
    assert plan.app is None
    assert values["num-clients"] == 10
    assert values["output-dir"] == str(elsewhere / "runs")
    assert values["state-dir"] == str(elsewhere / ".fedpfl" / "state")
    assert values["run-name"].endswith("-fedper-digits")
    assert plan.folder.path == elsewhere / "runs" / values["run-name"]


def test_plan_takes_the_apps_settings(elsewhere):
    (elsewhere / "pyproject.toml").write_text("[tool.flwr.app]\n[tool.flwr.app.config]\nseed = 7\nnum-clients = 3\n")
    plan = prepare(None, ["local-epochs=3"], None, None)
    values = plan.run_config()
    assert plan.app == elsewhere
    assert (values["seed"], values["local-epochs"], values["num-clients"]) == (7, 3, 3)


def test_plan_counts_clients():
    assert prepare(None, None, 4, None).run_config()["num-clients"] == 4
    assert prepare(None, ["num-clients=4"], 4, None).run_config()["num-clients"] == 4
    with pytest.raises(ConfigError, match="--num-clients = 4: the setting num-clients is"):
        prepare(None, ["num-clients=5"], 4, None)


@pytest.mark.parametrize("text", ['method="fedavg" ditto-pull=0.5', "foreign.toml", "foreign-named.toml"])
def test_a_setting_of_another_method_is_refused(elsewhere, text):
    (elsewhere / "foreign.toml").write_text("ditto-pull = 0.5\n")
    (elsewhere / "foreign-named.toml").write_text('method = "fedavg"\nditto-pull = 0.5\n')
    with pytest.raises(ConfigError, match=r"^ditto-pull = 0.5: is a setting of ditto, and the method is fedavg$"):
        prepare(None, [text, 'method="fedavg"'], None, None)


def test_settings_that_stand_in_the_app_are_not_taken_for_given_ones(elsewhere):
    settings = '[tool.flwr.app]\n[tool.flwr.app.config]\nmethod = "fedavg"\nditto-pull = 0.5\n'
    (elsewhere / "pyproject.toml").write_text(settings)
    assert "ditto-pull" not in prepare(None, ["local-epochs=3"], None, None).run_config()


def test_what_python_and_c_take_pyproject_takes_as_well(elsewhere):
    settings = '[tool.flwr.app]\n[tool.flwr.app.config]\nmethod = "FedProx"\nmetrics = []\nfedprox-mu = 0.5\n'
    (elsewhere / "pyproject.toml").write_text(settings)
    values = prepare(None, ["num-clients=2"], None, None).run_config()
    assert (values["method"], values["metrics"], values["fedprox-mu"]) == ("fedprox", "", 0.5)


def test_a_file_of_another_method_or_of_several_is_told_of(elsewhere, capsys):
    (elsewhere / "paper.toml").write_text('method = "ditto"\nditto-pull = 0.5\nlocal-epochs = 3\n')
    (elsewhere / "several.toml").write_text("ditto-pull = 0.5\nfedprox-mu = 0.1\n")
    for file in ("paper.toml", "several.toml"):
        values = prepare(None, [file, 'method="fedprox"'], None, None).run_config()
        assert "ditto-pull" not in values
        assert capsys.readouterr().err == f"note: {file}: its settings of ditto are not used by fedprox\n"
    prepare(None, ["paper.toml"], None, None)
    prepare(None, ['method="fedlora" feddecomp-rank-conv=0.5'], None, None)
    assert capsys.readouterr().err == ""


def test_all_people_take_part_where_nobody_says_how_many(elsewhere):
    np.savez(elsewhere / "p.npz", x=np.zeros((60, 2), np.float32), y=np.arange(60) % 2, client=np.arange(60) % 3)
    texts = ['dataset="npz" data="p.npz"']
    values = prepare(None, texts, None, None).run_config()
    assert (values["partitioner"], values["num-clients"]) == ("natural", 3)
    assert prepare(None, texts, 2, None).run_config()["num-clients"] == 2
    values = prepare(None, [*texts, 'partitioner="iid"'], None, None).run_config()
    assert (values["partitioner"], values["num-clients"]) == ("iid", 10)
    with pytest.raises(FedpflError, match=r"lost.npz: no such file"):
        prepare(None, ['dataset="npz" data="lost.npz"'], None, None)


def test_run_names_are_not_used_twice(elsewhere):
    folder = elsewhere / ".fedpfl" / "runs" / "taken"
    (folder / "checkpoint").mkdir(parents=True)
    prepare(None, ['run-name="taken"'], None, None)  # whoever began this was killed before it was a run
    (folder / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"no finished round; .*fedpfl clean taken --remove"):
        prepare(None, ['run-name="taken"'], None, None)
    (folder / "checkpoint" / "round-000001.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="--resume taken"):
        prepare(None, ['run-name="taken"'], None, None)


@pytest.fixture
def unfinished(elsewhere):
    """Make a run of two clients that was interrupted after round 2."""
    from fedpfl.results.run_folder import RunFolder

    plan = prepare(None, ['run-name="old" seed=9 output-dir="here"', "num-server-rounds=4"], 2, None)
    folder = RunFolder.create(plan.config)
    write_arrays(folder.path / "checkpoint" / "round-000002.safetensors", {"personal_round": np.array([2, 2])})
    (folder.path / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}\n')
    return folder


def test_resume_takes_the_runs_settings(unfinished):
    plan = prepare(None, ["num-server-rounds=6"], None, str(unfinished.path))
    values = plan.run_config()
    assert plan.folder.path == unfinished.path
    assert (values["resume"], values["run-name"], values["seed"], values["num-clients"]) == (True, "old", 9, 2)
    assert values["num-server-rounds"] == 6
    by_name = prepare(None, ['output-dir="here"'], None, "old")
    assert by_name.run_config()["num-server-rounds"] == 4


def test_resume_fills_in_and_lets_change_what_does_not_matter(unfinished):
    younger = re.compile(r"^(round-timeout|fraction-train) = .*\n", re.MULTILINE)
    edit_settings(unfinished.path, lambda text: younger.sub("", text))
    plan = prepare(None, ['threads=3 data="/elsewhere"'], None, str(unfinished.path))
    assert plan.run_config()["fraction-train"] == 1.0
    with pytest.raises(ConfigError, match=r"fraction-train = 0.5: the run to resume used 1.0"):
        prepare(None, ["fraction-train=0.5"], None, str(unfinished.path))


def test_resume_of_a_run_with_as_many_clients_as_nodes(unfinished):
    edit_settings(unfinished.path, lambda text: text.replace("num-clients = 2", "num-clients = 0"))
    unfinished.describe((1, 8, 8), [10, 10, 10])
    assert prepare(None, None, None, str(unfinished.path)).config.data.num_clients == 3
    for arguments in ((None, 4), (["num-clients=4"], None)):
        with pytest.raises(ConfigError, match="num-clients = 4: must be 3, as in the run"):
            prepare(None, *arguments, str(unfinished.path))


def test_resume_without_the_checkpoint_says_so(unfinished):
    (unfinished.path / "checkpoint" / "round-000002.safetensors").unlink()
    with pytest.raises(FedpflError, match="recorded 2 rounds, but checkpoint/ is empty"):
        prepare(None, None, None, str(unfinished.path))


def test_resume_refuses_other_settings(unfinished):
    with pytest.raises(ConfigError, match="the run to resume used 9"):
        prepare(None, ["seed=1"], None, str(unfinished.path))


def test_a_finished_run_says_how_to_go_on(unfinished):
    assert not prepare(None, ["num-server-rounds=2"], None, str(unfinished.path)).has_finished()
    (unfinished.path / "summary.md").write_text("")
    plan = prepare(None, ["num-server-rounds=2"], None, str(unfinished.path))
    assert plan.has_finished()
    assert plan.how_to_continue() == "old has finished its 2 rounds; for more: --run-config 'num-server-rounds=4'"
    assert not prepare(None, ["num-server-rounds=3"], None, str(unfinished.path)).has_finished()


def test_resume_of_a_run_that_is_alive_says_so(unfinished):
    with unfinished.exclusive(), pytest.raises(FedpflError, match="here/old: the run is active in another process"):
        prepare(None, None, None, str(unfinished.path))


def test_rounds_follow_a_growing_file(elsewhere):
    path = elsewhere / "metrics.jsonl"
    rounds = Rounds(path)
    assert rounds.new() == []
    path.write_text('{"round": 1}\n{"rou')
    assert rounds.new() == [{"round": 1}]
    with path.open("a") as file:
        file.write('nd": 2}\n')
    assert rounds.new() == [{"round": 2}]
    assert rounds.new() == []
    later = Rounds(path)
    assert later.new() == []
    path.write_text('{"round": 1}\n')  # a resumed run drops what came after its checkpoint
    assert later.new() == []
    path.write_text('{"round": 1}\n{"round": 2}\n')
    assert later.new() == [{"round": 2}]


def test_a_file_that_was_shortened_and_has_grown_since_is_read_on(elsewhere):
    path = elsewhere / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n')
    rounds = Rounds(path)
    path.write_text('{"round": 1}\n{"round": 2, "seconds": 10.25}\n{"round": 3}\n')
    assert rounds.new() == [{"round": 3}]  # after the rest of a line
    with path.open("a") as file:
        file.write('{"round": 4}\n')
    assert rounds.new() == [{"round": 4}]


def test_lines_are_plain(capsys):
    line = {"round": 2, "personalised": {"accuracy": 0.5}, "bytes_up": 1, "bytes_down": 2e6, "failed": {"1": "x"}}
    Display(3).round(line)
    Display(3, quiet=True).round(line)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"[   0.0 s] round 2/3: {in_words(line)}"]
    assert in_words(line) == "personalised 50.0 %, 2.0 MB, 1 client failed"


def test_the_app_is_copied_without_environments(elsewhere):
    app = elsewhere / "app"
    for name in ("pyproject.toml", "fedpfl/a.py", "fedpfl/__pycache__/a.pyc", ".git/config.toml", "venv/pyvenv.cfg",
                 "venv/b.py", "data.npz", "LICENSE", ".gitignore"):  # fmt: skip
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("")
    copy_app(app, elsewhere / "copy")
    copied = {str(p.relative_to(elsewhere / "copy")) for p in (elsewhere / "copy").rglob("*") if p.is_file()}
    assert copied == {"pyproject.toml", "fedpfl/a.py", "LICENSE", ".gitignore"}


def test_flower_takes_the_installed_package_as_an_app(elsewhere):
    from flwr.cli.config_utils import load_and_validate

    copy_app(None, elsewhere / "own")
    config, _ = load_and_validate(elsewhere / "own" / "pyproject.toml")
    assert config["tool"]["flwr"]["app"]["config"]["method"] == "fedper"
    assert reference.BEGIN in (elsewhere / "own" / "pyproject.toml").read_text()


def test_the_reason_is_found_in_the_log():
    error = "\x1b[91mERROR \x1b[0m"
    log = f"INFO :      fedpfl: results in x\n{error}:     fedpfl: seed = -1: must be at least 0\n{error}:     more\n"
    assert reason_in(log) == "seed = -1: must be at least 0"
    assert reason_in("INFO : fedpfl: all is well") is None
