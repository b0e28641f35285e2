"""What clients' models write, and that a report shows it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpfl
from fedpfl.results.run_folder import RunFolder
from fedpfl.study.analysis import ANALYSES, NotRecorded
from fedpfl.study.analysis.texts import write
from fedpfl.study.report.sections import sections

LETTERS = """
SIGNS = "\\nabcdef>"

def letters(text):
    return [1 + SIGNS.index(sign) for sign in text]

letters.vocab_size, letters.max_length = 1 + len(SIGNS), 8
letters.decode = lambda numbers: "".join(SIGNS[number - 1] for number in numbers if number)
"""


def test_each_client_s_model_goes_on_as_its_client_does(tmp_path, monkeypatch):
    (tmp_path / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(tmp_path)
    prompts, answers = [f"{first}>" for first in "abcdef"] * 12, ["abc\n"] * 36 + ["cba\n"] * 36
    client = np.repeat(["up", "down"], 36)
    np.savez(tmp_path / "texts.npz", x=np.array(prompts), y=np.array(answers), client=client)
    finished = fedpfl.run(
        "fedper", dataset="npz", data=tmp_path / "texts.npz", partitioner="natural", tokenizer="letters:letters",
        model="decoder", loss="next-token", optimizer="adam", learning_rate=0.01, local_epochs=5, num_clients=2,
        num_server_rounds=3, workers=0, quiet=True, output_dir=tmp_path / "runs", state_dir=tmp_path / "state",
    )  # fmt: skip
    run = RunFolder(finished.path)
    (table,) = ANALYSES["texts"].make([run], temperature=0.0).tables
    assert {row[0]: row[3] for row in table.rows} == {"up": "abc\n", "down": "cba\n"}
    for _, text, written, truth in table.rows:
        assert text.endswith(">") and written.startswith(truth)
    assert ANALYSES["texts"].make([run]).tables == ANALYSES["texts"].make([run]).tables
    assert "Texts" in {section.title for section in sections([run])[0]}


def test_no_token_depends_on_what_comes_after_it():
    seen = []

    def counts(x):
        seen.append(x.clone())
        return torch.nn.functional.one_hot((x + 1) % 9, 9).float()

    written = write(counts, torch.tensor([3, 8, 8, 8, 8]), 2, 4, 0.0, np.random.default_rng(1))
    assert written.tolist() == [0, 1]
    assert [x[0].tolist() for x in seen] == [[3, 8, 0, 0, 0], [3, 8, 0, 0, 0]]


def test_runs_of_other_data_have_none(make_run, tested):
    with pytest.raises(NotRecorded, match="loss = next-token has"):
        ANALYSES["texts"].make([make_run("fedavg", [tested(0.5)])])
