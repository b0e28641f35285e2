"""How `fedpfl up` goes on, ends and speaks, with a SuperLink that only pretends."""

import json
import os
import sys

import pytest
import typer

from fedpfl.cli import follow
from fedpfl.cli.run import execute, prepare
from fedpfl.core.errors import DataError, FedpflError
from fedpfl.results.run_folder import RunFolder

ROUND = {"round": 1, "seconds": 1.0, "bytes_up": 1, "bytes_down": 1}


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("POLL_SECONDS", "FIRST_ASK_SECONDS", "ASK_SECONDS_AT_END", "ASK_SECONDS_UNANSWERED"):
        monkeypatch.setattr(follow, name, 0.0)
    monkeypatch.setattr(follow, "export", lambda plan, shown: None)


class Link:
    """A SuperLink whose run does one thing at each question for its status."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def stop(self):
        pass

    def ended(self):
        return None

    def logged_end(self):
        return False

    def log(self, run_id):
        return "ERROR :     fedpfl: the disk is full"

    def status(self, run_id):
        return self.steps.pop(0)() or ("running", "N/A")


def conduct(link, make, begin, as_json, quiet, keep_log):
    """As `fedpfl up` does."""

    def run_plan(plan):
        follow.run_and_follow(link, plan, begin, quiet, keep_log)

    execute("up", lambda: None, make, run_plan, as_json, quiet, link)


def run(link, as_json=False, keep_log=False):
    """Run one round with a pretended SuperLink; its steps find the run's folder as ``link.folder``."""

    def begin(plan):
        link.folder = RunFolder.create(plan.config)
        return "1"

    def make():
        return prepare(None, ['run-name="r" num-server-rounds=1'], 2, None)

    conduct(link, make, begin, as_json, quiet=True, keep_log=keep_log)


@pytest.mark.parametrize("quiet", [False, True])
def test_data_are_fetched_before_the_run_starts(monkeypatch, tmp_path, capsys, quiet):
    def load(settings):
        print(f"{settings.dataset}: 7 %", file=sys.stderr)
        raise DataError("mnist: not to be downloaded (no network)")

    monkeypatch.setattr("fedpfl.data.reading.load", load)
    texts = [f'dataset="mnist" data-dir="{tmp_path}"']

    def begin(plan):
        raise AssertionError("it has started")

    with pytest.raises(DataError, match="no network"):
        conduct(Link(), lambda: prepare(None, texts, 2, None), begin, True, quiet, False)
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == "mnist: not to be downloaded (no network)"
    assert err == ("" if quiet else "mnist: 7 %\n")


def finish(link):
    (link.folder.path / "metrics.jsonl").write_text(json.dumps(ROUND) + "\n")
    (link.folder.path / "summary.md").write_text("")
    return follow.COMPLETED, "N/A"


def fail():
    return "finished:failed", "N/A"


def silent():
    raise FedpflError("`flwr ls` failed: no connection")


def test_a_superlink_that_is_being_restarted_is_asked_again(capsys):
    link = Link(silent, silent, lambda: None, silent, lambda: finish(link))
    run(link, as_json=True)
    assert json.loads(capsys.readouterr().out)["status"] == follow.COMPLETED


def test_a_superlink_that_stays_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(follow, "UNANSWERED_SECONDS", 0.05)
    link = Link(*[silent] * 10**6)
    with pytest.raises(follow.RunFailedError, match="the disk is full"):
        run(link)
    assert len(link.steps) <= 10**6 - 2


@pytest.mark.parametrize("resumable", [False, True])
def test_a_server_that_was_silent_is_told_with_what_may_be_done(monkeypatch, resumable):
    link = Link(lambda: ("finished:failed", "No heartbeat received from the task"))
    monkeypatch.setattr(link, "log", lambda run_id: "")
    monkeypatch.setattr(RunFolder, "resumable", resumable)
    with pytest.raises(follow.RunFailedError) as raised:
        run(link)
    message = "the server was silent: it was killed, this machine slept, or its clock was set"
    assert str(raised.value) == message + f"; resume the run: fedpfl up --resume {link.folder.path}" * resumable


def test_the_clock_of_the_folder_s_file_server_does_not_matter(capsys):
    def step():
        done = finish(link)
        os.utime(link.folder.path / "summary.md", (0, 0))
        return done

    link = Link(step)
    run(link, as_json=True)
    assert json.loads(capsys.readouterr().out)["error"] is None


def test_remarks_are_shown_once_the_clients_are_there(capsys):
    link = Link(
        lambda: None, lambda: link.folder.describe((1, 8, 8), [10, 10], ["small batches"]), lambda: finish(link)
    )
    run(link)
    assert capsys.readouterr().err == "note: small batches\n"


@pytest.mark.parametrize("keep_log", [False, True])
def test_a_log_that_cannot_be_kept_hides_nothing(keep_log, capsys):
    def step():
        (link.folder.path / "flower.log").mkdir()
        return finish(link) if keep_log else fail()

    link = Link(step)
    if keep_log:
        run(link, keep_log=True)
    else:
        with pytest.raises(follow.RunFailedError, match=r"^the disk is full$"):
            run(link)
    assert capsys.readouterr().err == f"note: {link.folder.path / 'flower.log'}: Is a directory\n"


def test_a_full_disk_is_in_the_outcome_too(capsys):
    def full():
        raise OSError(28, "No space left on device", "/tmp/x")

    with pytest.raises(OSError, match="No space"):
        run(Link(full), as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["error"]) == ("finished:failed", "/tmp/x: No space left on device")


def test_an_interrupted_export_is_not_gone_on_with_by_resume(monkeypatch, capsys):
    def interrupted(plan, shown):
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "export", interrupted)
    link = Link(lambda: finish(link))
    with pytest.raises(typer.Exit):
        run(link)
    message = f"the run has finished; its models, if the method has any: fedpfl export {link.folder.path}"
    assert capsys.readouterr().err == f"interrupted; {message}\n"
