"""What a report consists of: it follows from what the runs have recorded."""

from __future__ import annotations

import re
import statistics
from collections import Counter

import pytest

from fedpfl.core.checksummed_files import json_line
from fedpfl.core.errors import StateError
from fedpfl.core.payload import Payload
from fedpfl.data import DataSettings, federated_data
from fedpfl.engine.agreement import Agreement, Description
from fedpfl.results import file_cache
from fedpfl.results.run_folder import RunFolder
from fedpfl.study.analysis.figure import Distributions, Division, Heatmap, Lines
from fedpfl.study.report import sections


def by_title(runs):
    parts, labels = sections(runs)
    return {section.title: section for section in parts}, labels


def figure(section, title):
    return next(figure for figure in section.figures if figure.title == title)


def test_a_report_reads_each_run_once(folders, monkeypatch):
    monkeypatch.setattr(file_cache, "_kept", {})  # other tests may have read them
    read = Counter()
    metrics = RunFolder.metrics
    monkeypatch.setattr(RunFolder, "metrics", lambda run: read.update([run.path]) or metrics(run))
    runs = [folders["fedavg-1"], folders["fedavg-2"], folders["factorized-1"]]
    sections(runs)
    assert read == Counter(run.path for run in runs)


def test_seeds_stand_in_their_order(folders, changed):
    parts, _ = by_title([changed("fedavg-1", "ten", {"seed": 10}), folders["fedavg-2"], folders["fedavg-1"]])
    assert parts["Overview"].tables[0].rows[0][1] == "1, 2, 10"


def test_seeds_become_means_and_deviations(folders):
    runs = [folders["fedavg-1"], folders["fedavg-2"]]
    parts, labels = by_title([*runs, folders["factorized-1"]])
    assert labels == ["fedavg", "factorized-fl"]
    accuracy = figure(parts["Accuracy"], "Personalised accuracy over rounds")
    assert isinstance(accuracy, Lines)
    rounds, means = accuracy.series["fedavg"]
    each = [[100 * line["personalised"]["accuracy"] for line in run.metrics()] for run in runs]
    assert rounds == [1, 2]
    assert means == [statistics.fmean(pair) for pair in zip(*each, strict=True)]
    assert accuracy.bands == {"fedavg": [statistics.stdev(pair) for pair in zip(*each, strict=True)]}
    table = parts["Overview"].tables[0]
    assert [row[:3] for row in table.rows] == [["fedavg", "1, 2", "2"], ["factorized-fl", "1", "2"]]
    traffic = figure(parts["Accuracy"], "Accuracy over traffic")
    megabytes = [sum(line["bytes_up"] + line["bytes_down"] for line in run.metrics()) / 1e6 for run in runs]
    assert traffic.series["fedavg"][0][-1] == pytest.approx(statistics.fmean(megabytes))
    assert traffic.log_x, "factorized-fl sends a small part of what fedavg sends"


def test_other_seeds_and_one_that_counts_twice_are_told(folders):
    parts, _ = by_title([folders["fedavg-1"], folders["fedavg-2"], folders["fedavg-1"], folders["factorized-1"]])
    assert parts["Overview"].warnings == [
        "These runs have other clients, because a seed divides the data (partition-seed). Seeds: fedavg: 1, 1, 2; "
        "factorized-fl: 1.",
        "fedavg: mean and deviation are over 3 runs of 2 seeds; more than one has seed 1.",
    ]
    assert by_title([folders["fedavg-1"], folders["factorized-1"]])[0]["Overview"].warnings == []


def test_clients_and_division(folders):
    run = folders["fedavg-1"]
    parts, _ = by_title([run])
    points = figure(parts["Clients"], "Accuracy of the clients")
    assert isinstance(points, Distributions)
    last = run.metrics()[-1]["personalised"]["each"]
    assert points.groups == {"fedavg": [100 * accuracy for accuracy in last.values()]}
    over_time = parts["Clients"].figures[1]
    assert isinstance(over_time, Heatmap)
    assert over_time.values[:, -1] == pytest.approx([100 * accuracy for accuracy in last.values()])
    (division,) = parts["Data"].figures
    assert isinstance(division, Division)
    assert division.counts.shape == (3, 10)
    clients = federated_data(DataSettings(dirichlet_alpha=0.5), 3, 1)
    assert list(division.counts.sum(axis=1)) == [clients.sizes(i)[0] for i in range(3)]


BOARDS = """round,board,seconds,joules,mean_watts,highest_celsius,cpu_share,least_free_mib,bytes_in,bytes_out,reports
1,nano-1,10,50,5,40.5,0.9,900,1000000,2000000,2
1,nano-2,10,,,39,0.8,800,1000000,2000000,2
2,nano-1,30,90,3,44,0.5,700,1000000,2000000,6
2,<b>,20,40,2,,,,,,4
"""


def test_what_boards_needed_is_a_table(changed):
    run = changed("fedavg-1", "boards")
    (run.path / "boards.csv").write_text(BOARDS)
    parts, _ = by_title([run])
    whole, each = parts["Boards"].tables
    assert [(row[0], *(spread.mean for spread in row[1:])) for row in whole.rows] == [
        ("fedavg", pytest.approx(40 / 3600), pytest.approx(0.18), pytest.approx((3.5 + 2) / 2))
    ]
    assert [row[1:] for row in each.rows] == [
        ["<b>", 1, 20, 40, 2, None, None, None, None, None],
        ["nano-1", 2, 40, 140, 3.5, 44, pytest.approx(60), 700, 2, 4],
        ["nano-2", 1, 10, None, None, 39, pytest.approx(80), 800, 1, 2],
    ]
    (run.path / "boards.csv").write_text(BOARDS.replace("30,90", "30,ninety"))
    parts, _ = by_title([run])
    assert "line 4" in parts["Boards"].warnings[0]


def test_only_what_was_recorded_is_shown(folders):
    without, _ = by_title([folders["fedavg-1"]])
    parts, _ = by_title([folders["factorized-1"]])
    assert "Similarity" in parts
    assert "Similarity" not in without
    assert "Scalability" not in without, "one number of clients is no curve"
    assert [f.title for f in without["Accuracy"].figures].count("Accuracy over traffic") == 1
    assert not any("Global" in f.title for f in parts["Accuracy"].figures), "factorized-fl has no global model"


def test_runs_of_other_data_are_said_on_top(changed, folders):
    other = changed("fedavg-1", "other", {"dirichlet-alpha": 5.0, "method": "local"})
    parts, _ = by_title([folders["fedavg-1"], other])
    first = parts["Overview"].warnings[0]
    assert first == (
        "These runs are not of the same data, so that their accuracies cannot be compared directly. "
        "fedavg: dirichlet-alpha 0.5; local: dirichlet-alpha 5.0."
    )
    parts, _ = by_title([folders["fedavg-1"], folders["fedavg-2"], folders["factorized-1"]])
    assert not any("same data" in note for note in parts["Overview"].warnings), "another seed is no other task"
    assert "α 0.5" in parts["Data"].figures[0].title


def test_runs_with_other_numbers_of_threads_are_named(changed, folders):
    runs = [folders["fedavg-1"], changed("fedavg-1", "board", {"method": "local"})]
    assert not any("threads" in note for note in by_title(runs)[0]["Overview"].warnings)
    task = runs[1].task()
    (runs[1].path / "task.json").write_text(json_line({**task, "threads": [4, 0, 1]}))
    assert by_title(runs)[0]["Overview"].warnings[0] == (
        "Clients of these runs computed with different numbers of threads, so their bits may differ. "
        f"{runs[0].path.name}: 1; board: 1, 4."
    )


def test_a_run_that_is_not_over_is_shown_as_such(changed, folders):
    lines = folders["fedavg-1"].metrics()
    parts, _ = by_title([changed("fedavg-1", "cut", rounds=lines[:1], finished=False)])
    assert parts["Overview"].warnings == ["cut was stopped: 1 of 2 rounds are recorded."]
    failed = changed("fedavg-1", "bad", rounds=lines[:1], finished=False)
    failed.fail("no client trained")
    parts, _ = by_title([failed])
    assert parts["Overview"].warnings == ["bad has failed: 1 of 2 rounds are recorded. no client trained"]
    assert "Accuracy" in parts


def test_a_run_without_an_evaluated_round_says_so(changed, folders):
    lines = [{k: v for k, v in line.items() if k not in ("personalised", "global")}
             for line in folders["fedavg-1"].metrics()]  # fmt: skip
    parts, _ = by_title([changed("fedavg-1", "untested", rounds=lines, finished=False)])
    assert "untested has no evaluated round so far, hence no accuracies." in parts["Overview"].notes
    assert "Accuracy" not in parts
    assert "Clients" not in parts
    assert "Training" in parts


def test_a_run_that_never_started_is_named(folders, tmp_path, changed):
    run = changed("fedavg-1", "waiting", rounds=[], finished=False)
    (run.path / "task.json").write_text('{"state_key": "x"}')
    parts, labels = by_title([run])
    assert labels == []
    assert list(parts) == ["Overview"]
    assert "0 of 2 rounds" in parts["Overview"].warnings[0]
    both, labels = by_title([run, folders["fedavg-1"]])
    assert labels == ["fedavg"]
    assert "waiting" in " ".join(both["Overview"].warnings)


def test_the_privacy_spent_has_a_column_where_there_is_any(changed, folders):
    lines = [{**line, "privacy": {"epsilon": 2.5, "delta": 1e-5}} for line in folders["fedavg-1"].metrics()]
    parts, _ = by_title([changed("fedavg-1", "private", rounds=lines), folders["factorized-1"]])
    table = parts["Overview"].tables[0]
    assert table.columns[-1] == "ε"
    assert [row[-1] and row[-1].mean for row in table.rows] == [2.5, None]
    assert by_title([folders["fedavg-1"]])[0]["Overview"].tables[0].columns[-1] == "s a round"


def test_failures_are_listed(changed, folders):
    lines = folders["fedavg-1"].metrics()
    lines[1]["failed"] = {"2": "the training diverged"}
    parts, _ = by_title([changed("fedavg-1", "failing", rounds=lines)])
    assert parts["Overview"].tables[1].rows == [["failing", 2, 2, "the training diverged"]]


def test_a_division_is_shown_as_it_was_recorded(changed):
    task = {"class_counts": [[3, 0, 1], [0, 0, 2], [1, 1, 1]], "class_names": ["cat", "dog", "cow"]}
    parts, _ = by_title([changed("fedavg-1", "elsewhere", {"dataset": "npz", "data": "/nowhere.npz"}, task)])
    assert parts["Data"].figures[0].counts.tolist() == task["class_counts"]
    (table,) = parts["Data"].tables
    assert [row[-1] for row in table.rows] == ["cat: 3, cow: 1", "cow: 2", "cat: 1, dog: 1, cow: 1"]
    assert [row[3] for row in table.rows] == [2, 2, 2], "rounds trained"
    by_title_of_device, _ = by_title(
        [changed("fedavg-1", "own", task={"division": None, "class_counts": [], "class_names": []})]
    )
    assert (
        by_title_of_device["Data"].figures == []
        and "classes never reach the server" in by_title_of_device["Data"].notes[0]
    )


def test_a_score_that_is_no_share_has_no_percent_sign(changed, folders):
    runs = [
        changed("fedavg-1", "targets", {"loss": "mse"}),
        changed("fedavg-1", "alone", {"loss": "mse", "method": "local"}),
    ]
    parts, _ = by_title(runs)
    table = parts["Overview"].tables[0]
    last = runs[0].history().last("personalised.accuracy")
    assert table.rows[0][table.columns.index("personalised, last, R²")].mean == last
    shown = [part for title, part in parts.items() if title not in ("Communication", "Settings", "Further analyses")]
    texts = [word for part in shown for table in part.tables for word in (table.title, *table.columns)]
    texts += [word for part in shown for of in part.figures for word in (of.title, *vars(of).values())]
    of_clients = ("worst 10 %", "best 10 %")
    texts = [word for word in texts if isinstance(word, str) and word not in of_clients]
    assert not [word for word in texts if re.search("%|percent|points", word)]


def test_an_analysis_that_is_not_possible_here_says_why(changed):
    parts, _ = by_title([changed("fedavg-1", "elsewhere", settings={"initial-weights": "/nowhere.safetensors"})])
    assert "/nowhere.safetensors" in parts["Communication"].notes[1]
    assert "Accuracy" in parts


def test_analyses_that_compute_for_minutes_are_named_and_not_made(folders):
    parts, _ = by_title([folders["fedavg-1"]])
    assert "attack" in parts["Further analyses"].notes[0]
    assert "fairness" not in parts["Further analyses"].notes[0]
    assert "Attack" not in parts
    assert "Fairness" in parts


def test_a_damaged_run_is_an_error(changed):
    run = changed("fedavg-1", "damaged")
    path = run.path / "metrics.jsonl"
    path.write_text("not json\n" + path.read_text())
    with pytest.raises(StateError, match=r"is damaged or was changed: .* \(line 1\)"):
        sections([run])


def test_the_division_is_known_only_if_all_divide_common_data():
    said = {"num-clients": 2, "input-shape": "3", "num-classes": 2, "layout": ""}

    def division(second):
        answers = {1: {**said, "division": 7}, 2: {**said, **second}}
        payloads = {
            client: Payload(answer, metrics={"train-samples": 1, "test-samples": 1})
            for client, answer in answers.items()
        }
        descriptions = {client: Description.of(payload) for client, payload in payloads.items()}
        return Agreement(None, None, descriptions, (1,), [2, 2], 0).division

    assert division({"division": 7}) == 7
    assert division({}) is None


def test_the_columns_of_an_experiment_are_parts_and_its_rows_the_names(folders):
    first = RunFolder(folders["fedavg-1"].path, "Mean of all", "A")
    second = RunFolder(folders["factorized-1"].path, "Matched", "A")
    third = RunFolder(folders["fedavg-2"].path, "Mean of all", "B")
    parts_of_page, labels = sections([first, second, third])
    assert labels == ["Mean of all", "Matched"], "a row looks the same in all columns"
    parts = {(section.part, section.title): section for section in parts_of_page}
    assert {part for part, _ in parts} == {"A", "B", ""}
    series = {part: figure(parts[part, "Accuracy"], "Personalised accuracy over rounds").series for part in "AB"}
    assert [list(names) for names in series.values()] == [["Mean of all", "Matched"], ["Mean of all"]]
    assert [title for part, title in parts if not part] == ["Further analyses"]
    for part, seed in (("A", 1), ("B", 2)):
        assert parts[part, "Training time"].tables[0].rows[0][2] == 1, "FedAvg of the same column"
        assert parts[part, "Overview"].tables[0].rows[0][1] == str(seed)
    one, _ = by_title([first, second])
    assert not any(section.part for section in one.values())
