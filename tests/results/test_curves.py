"""The file of a run's curves is as TensorBoard reads it, though fedpfl writes it."""

from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedpfl.results.curves import Curves


def test_tensorboard_reads_the_curves(tmp_path):
    curves = Curves(tmp_path)
    for number in (1, 2):
        line = {"round": number, "bytes_up": 3, "bytes_down": 4, "seconds": 0.5, "train_loss": 1.5 / number}
        curves.add({**line, "personalised": {"accuracy": 0.25 * number}})
    curves.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {
        "train/loss", "personalised/accuracy", "bytes/up", "bytes/down", "seconds",
    }  # fmt: skip
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(1, 1.5), (2, 0.75)]
    assert [event.value for event in read.Scalars("personalised/accuracy")] == [0.25, 0.5]
