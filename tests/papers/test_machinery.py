"""What `make test-papers` is made of: the list, made data, the choice of clients, verdicts, tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import made_data
import numpy as np
import papers
import pytest
import records
import trial
from combinations import GRADED, NOWHERE, ROOT, Combination, Place, Whole, combinations, ends, one_for_each_column

from fedpfl.data import table
from fedpfl.launch.shipped import experiments
from fedpfl.study.store import plan

PUBLISHED = [info.name for info in table() if not info.from_path and info.name not in ("digits", "shakespeare")]


@pytest.fixture(scope="module")
def listed() -> list[Combination]:
    return combinations()


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPFL_PAPERS", str(tmp_path / "papers"))


def small(**more: Any) -> Combination:
    """A combination that takes a second, under the name of a file."""
    values = {"method": "fedavg", "dataset": "digits", "num-clients": 6, "local-epochs": 2, "learning-rate": 0.05}
    one = Combination(dict(plan({**values, **more}, seed=1).settings))
    one.places.append(Place("experiments/table.toml", "FedAvg", "A"))
    one.wholes.append(("experiments/table.toml", Whole(100, 0.5, 10, 0.0, 3)))
    return one


def record(one: Combination, **more: Any) -> dict[str, Any]:
    """What a trial of a combination may have left: clients of 100 and of 300 samples, who learn."""
    return {
        "key": one.key, "version": records.VERSION, "when": "2024-01-01", "machine": "a processor", "rounds": 3,
        "settings": one.settings, "real": True, "clients": [0, 4], "samples": [[80, 20], [240, 60]],
        "mean_samples": [160.0, 40.0], "classes": 10, "chance": 0.1, "majority": 0.3, "entropy": 1.5,
        "losses": [2.0, 1.0, 0.5], "trained": [0.3, 0.6, 0.8], "personalised": [0.3, 0.5, 0.7], "failed": [],
        "train_seconds": [2.0, 4.0], "evaluate_seconds": [0.2, 0.4], "server_seconds": 0.5, "seconds": 20.0,
        "memory": 10**9, **more,
    }  # fmt: skip


class TestTheList:
    def test_every_file_yields_combinations(self, listed: list[Combination]) -> None:
        files = {*(ROOT / "configs").glob("*.toml"), *experiments(ROOT / "experiments").values()}
        files -= {*(ROOT / "experiments" / "comparisons").glob("leaderboard*.toml")}  # of no paper
        assert {place.file for one in listed for place in one.places} == {str(path.relative_to(ROOT)) for path in files}

    def test_names_are_distinct_and_follow_from_settings(self, listed: list[Combination]) -> None:
        assert len({one.key for one in listed}) == len(listed)
        assert small().key == small().key != small(momentum=0.5).key
        assert small().key == small(**{"num-server-rounds": 50, "fraction-train": 0.1}).key

    def test_a_name_is_the_same_whoever_s_home_has_the_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = set()
        for home in ("/home/one", "/home/another"):
            monkeypatch.setenv("HOME", home)
            keys.add(
                Combination({"method": "fedavg", "dataset": "npz", "model": "small-cnn", "data": f"{home}/a.npz"}).key
            )
        assert len(keys) == 1

    def test_what_is_left_out_lies_between_two_that_are_run(self, listed: list[Combination]) -> None:
        by_key = {one.key: one for one in listed}
        between = [one for one in listed if one.between]
        assert between
        for one in between:
            ends = [by_key[key] for key in one.between]
            differing = {key for end in ends for key in end.settings if end.settings[key] != one.settings[key]}
            (graded,) = differing & set(GRADED)
            low, high = sorted(float(end.settings[graded]) for end in ends)
            assert low < float(one.settings[graded]) < high

    def test_files_of_configs_are_run_themselves(self, listed: list[Combination]) -> None:
        keys = {one.key for one in one_for_each_column(listed)}
        of_configs = [one for one in listed if any(place.file.startswith("configs/") for place in one.places)]
        assert len(of_configs) == len([*(ROOT / "configs").glob("*.toml")])
        assert all(one.key in keys for one in of_configs)

    def test_keeping_a_classifier_that_is_kept_anyway_makes_no_other_combination(
        self, listed: list[Combination]
    ) -> None:
        def places(file: str) -> set[tuple[str, str]]:
            (one,) = (one for one in listed if Place(f"configs/{file}") in one.places)
            return {(place.row, place.column) for place in one.places}

        assert ("Factorized-FL α", "CIFAR-10, permuted non-IID") in places("factorized-fl-cifar10.toml")
        table = [one for one in listed if any("factorized-fl-table-1-labels" in place.file for place in one.places)]
        kept = {one.settings["method"] for one in table if one.settings["personal-head"]}
        assert {"fedavg", "factorized-fl"} & kept == {"fedavg"}

    def test_one_for_each_column_serves_every_file_and_column(self, listed: list[Combination]) -> None:
        few = one_for_each_column(listed)
        assert len(few) < 0.2 * len(listed)
        assert not any(one.between for one in few)
        keys = {one.key for one in few}
        columns = {(place.file, place.column) for one in listed for place in one.places}
        served = {
            (place.file, place.column)
            for one in listed if {end.key for end in ends(one, listed)} <= keys
            for place in one.places
        }  # fmt: skip
        assert served == columns
        # Of a paper's table it is the paper's method that runs.
        table = {one.settings["method"] for one in few for place in one.places if "feddecomp-table-1" in place.file}
        assert table == {"feddecomp"}

    def test_every_combination_has_known_data(self, listed: list[Combination]) -> None:
        for one in listed:
            assert one.cost > 0
            if one.settings["dataset"] == "npz":
                name = Path(one.settings["data"]).name
                assert name in ("femnist.npz", "imagenet-subset.npz") or one.settings["data"].startswith(str(NOWHERE))
            else:
                assert one.settings["dataset"] in (*PUBLISHED, "shakespeare", "digits")


class TestMadeData:
    @pytest.mark.parametrize("name", PUBLISHED)
    def test_has_the_shape_and_all_classes_of_the_real_one(self, name: str) -> None:
        info = next(info for info in table() if info.name == name)
        made = made_data.make(name, share=0.01)
        shape = (64,) if name == "ag-news" else tuple(map(int, info.shape.split("×")))
        for part, size in zip(("train", "test"), made_data.sizes(name), strict=True):
            assert made[f"x_{part}"].shape == (round(size * 0.01), *shape)
            assert len(made[f"y_{part}"]) == round(size * 0.01)
        assert set(made["y_train"]) == set(range(int(info.classes)))

    def test_a_class_can_be_told_from_the_others(self) -> None:
        made = made_data.make("svhn", share=0.01)
        x, x_test = (made[f"x_{part}"].reshape(-1, 32 * 32 * 3).astype(float) for part in ("train", "test"))
        means = np.stack([x[made["y_train"] == c].mean(0) for c in range(10)])
        nearest = ((x_test[:, None] - means) ** 2).sum(2).argmin(1)
        assert (nearest == made["y_test"]).all()
        assert x_test.std(0).min() > 20  # grey levels: not all alike either

    def test_femnist_has_the_papers_writers_and_classes(self) -> None:
        made = made_data.make("femnist", share=0.1)
        assert len(set(made["client"])) == 1079
        assert set(made["y"]) == set(range(62))

    def test_plays_have_enough_roles_that_say_enough(self, tmp_path: Path) -> None:
        made_data._write_plays(tmp_path / "plays.json")
        texts = json.loads((tmp_path / "plays.json").read_text())
        assert sum(len(text) >= 80 + 64 for text in texts.values()) >= 778
        assert abs(sum(map(len, texts.values())) / 4_226_158 - 1) < 0.1

    def test_a_file_is_made_once(self, tmp_path: Path) -> None:
        written: list[Path] = []

        def write(path: Path) -> None:
            written.append(path)
            path.write_text("all of it")

        for _ in range(2):
            made_data._once(tmp_path / "file", write)
        assert len(written) == 1
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]


class TestChoice:
    def test_clients_of_one_size_are_the_two_with_the_most_mixed_classes(self) -> None:
        variety = [0.1] * 40
        variety[7], variety[30], variety[31] = 1.5, 1.4, 1.4
        assert trial.choose([(500, 100)] * 40, variety, 100, "keep") == [7, 30]
        assert trial.choose([(500, 100)], [0.0], 100, "keep") == [0]

    def test_entropy_is_the_loss_of_guessing_by_frequency(self) -> None:
        assert trial.entropy([3, 3, 3], 5) == 0
        assert trial.entropy([0, 1, 2, 3], 5) == pytest.approx(math.log(4))

    def test_of_different_sizes_the_smallest_the_middle_one_and_one_with_a_batch_of_one(self) -> None:
        sizes = [(n, 200) for n in (900, 10, 500, 400, 101, 800, 700)]
        assert trial.choose(sizes, [1.0] * 7, 20, "drop") == [1, 2]
        assert trial.choose(sizes, [1.0] * 7, 20, "keep") == [1, 2, 4]

    def test_more_where_they_have_few_test_samples(self) -> None:
        chosen = trial.choose([(n, 30) for n in range(60, 100)], [1.0] * 40, 20, "drop")
        assert len(chosen) == 5
        assert 0 in chosen


class TestVerdict:
    def test_learning_is_as_it_should_be(self) -> None:
        assert records.wrong(record(small())) == []

    @pytest.mark.parametrize(("what", "said"), [
        ({"error": "no such data"}, "no such data"),
        ({"failed": ["round 1, client 4: diverged"]}, "round 1, client 4: diverged"),
        ({"losses": [2.0, math.nan, 0.5]}, "round 2: losses nan"),
        ({"losses": [1.0, 1.5, 1.2]}, "the loss does not fall: 1.000 → 1.500 → 1.200"),
        ({"trained": [0.0, 0.0, 0.1], "personalised": [0.0] * 3}, "accuracy 0.100 is not above chance, 0.100"),
        ({"losses": [2.3, 2.0, 1.6], "trained": [0.3] * 3, "personalised": [0.3] * 3}, "no better than without"),
    ])  # fmt: skip
    def test_what_is_not_is_told_in_a_line(self, what: dict[str, Any], said: str) -> None:
        (found,) = records.wrong(record(small(), **what))
        assert found.startswith(said)
        assert "\n" not in found

    def test_a_loss_that_is_small_from_the_first_round_need_not_fall(self) -> None:
        assert records.wrong(record(small(), losses=[0.01, 0.02, 0.015])) == []

    def test_hours_of_a_whole_run_follow_from_the_seconds_of_clients(self) -> None:
        # A client's round takes 1 s and 1/80 s a sample, 3 s with the mean one's 160; a test takes 0.1 s and 1 ms a
        # sample, 0.3 s with its 200. 3 of 6 clients train in a round, the server needs 0.25 s for each of them.
        hours = records.hours(record(small()), Whole(100, 0.5, 10, 0.0, 3))
        assert hours == pytest.approx((100 * (3 * 3 / 2 + 0.75) + 10 * 6 * 0.3 / 2) / 3600)


class TestRecords:
    def test_are_kept_by_version_the_last_one_counts(self) -> None:
        one = small()
        records.keep(record(one, memory=1))
        records.keep(record(one, memory=2))
        records.keep(record(small(momentum=0.5), version="another"))
        assert {key: found["memory"] for key, found in records.read().items()} == {one.key: 2}

    def test_what_has_a_record_is_skipped_unless_asked_for(self) -> None:
        ran, open_one = small(), small(momentum=0.5)
        inner = small(momentum=0.6)
        inner.between = ran.key, open_one.key
        listed = [ran, open_one, inner]
        records.keep(record(ran))
        assert papers.wanted(listed, cells=True) == [open_one]
        assert papers.wanted(listed, cells=True, again=True) == [ran, open_one]
        assert papers.wanted(listed, everything=True) == [open_one, inner]
        assert papers.wanted(listed, ["table"], cells=True, again=True) == [ran, open_one]
        assert papers.wanted(listed, ["feddecomp-*"], cells=True) == []

    def test_the_tables_have_what_ran_and_what_it_would_cost(self) -> None:
        ran, bad, open_one = small(), small(momentum=0.5), small(momentum=0.6)
        known = {ran.key: record(ran), bad.key: record(bad, losses=[1.0, 2.0, 3.0])}
        page = records.tables([ran, bad, open_one], known)
        assert page.startswith("1 of 1 files of `configs/` and columns of experiments have at least one combination")
        assert "3 combinations: 1 ran and learn, 1 ran and do not, 1 have not run yet, 0 lie between" in page
        assert f"- `{bad.key}` (experiments/table.toml: FedAvg / A): the loss does not fall" in page
        hours = 2 * 3 * records.hours(known[ran.key], ran.wholes[0][1])
        assert f"| `experiments/table.toml` | 3 | 1 | 1 | 1 | 0 | more than {hours:.1f} h |" in page
        assert "| 2.00 → 1.00 → 0.50 | 0.80, 0.70 | 0.10, 0.30 | 3.0 |" in page
        assert "bf16" not in page

    def test_the_tables_say_which_trials_trained_with_bfloat16(self) -> None:
        one = small()
        page = records.tables([one], {one.key: record(one, precision="bf16")})
        assert "B 10, E 2, bf16 |" in page


class TestTrial:
    def test_a_small_one_learns_and_says_what_it_took(self) -> None:
        one = small()
        assert papers.carry_out(one) == ""
        found = records.read()[one.key]
        assert found["clients"] == sorted(found["clients"])
        assert len(found["clients"]) < 6
        assert len(found["losses"]) == len(found["trained"]) == 3
        assert found["precision"] == "float32"
        assert records.hours(found, one.wholes[0][1]) > 0

    def test_with_bfloat16_it_is_another_run_of_the_same_name(self) -> None:
        one = small()
        exact, coarse = trial.attempt(one), trial.attempt(one, precision="bf16")
        assert coarse["key"] == exact["key"]
        assert coarse["precision"] == "bf16"
        assert coarse["losses"] != exact["losses"]
        assert coarse["losses"][-1] < coarse["losses"][0]

    def test_one_that_diverges_names_file_column_and_client(self) -> None:
        said = papers.carry_out(small(**{"learning-rate": 1e6, "momentum": 0.0}))
        assert said.startswith("experiments/table.toml: FedAvg / A (fedavg-digits-small-cnn-")
        assert "the training diverged in round 1" in said
        assert "\n" not in said
