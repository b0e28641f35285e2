"""What a run sets in its process belongs to each use of it: threads, number types, precision, flags, gradients."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from support import FEW_SAMPLES

import fedpfl
from fedpfl.client.engine import Engine
from fedpfl.core.errors import ConfigError
from fedpfl.core.process import computing
from fedpfl.data import federated_data
from fedpfl.setup.config import Config


def settings_of_the_process():
    return {
        "threads": torch.get_num_threads(), "dtype": torch.get_default_dtype(), "grad": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }  # fmt: skip


@pytest.fixture
def odd_process():
    """Be a process that somebody has set to other things than a run's."""
    with computing(torch.get_num_threads()):
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_grad_enabled(False)
        yield settings_of_the_process()


def test_whatever_is_set_inside_is_put_back(odd_process):
    with computing(1):
        inside = settings_of_the_process()
        torch.use_deterministic_algorithms(True)
    expected = {"threads": 1, "dtype": torch.float32, "grad": True, "precision": "highest", "deterministic": False}
    assert inside == expected
    assert settings_of_the_process() == odd_process


def test_a_run_has_the_same_bits_in_a_process_that_is_set_to_something_else_and_leaves_it_so(tmp_path):
    def run(name, rounds, **more):
        return fedpfl.run(
            **({"resume": more["resume"]} if more else {
                "method": "fedavg", "dataset": "digits", "model": "mlp", "num_clients": 2, "local_epochs": 1,
                "output_dir": tmp_path / name, "state_dir": tmp_path / name / "state", "threads": 2, **FEW_SAMPLES,
            }),
            num_server_rounds=rounds, quiet=True, workers=0,
        )  # fmt: skip

    def bits(run):
        return [array.tolist() for array in run.model().state_dict().values()]

    plain = bits(run("plain", 3))
    with computing(1):
        torch.set_default_dtype(torch.float64)
        before = settings_of_the_process()
        first = run("odd", 1)
        run("odd", 2, resume=first)
        resumed = run("odd", 3, resume=first)  # by the engine of the resume before
        assert settings_of_the_process() == before
        actual = bits(resumed)
    assert actual == plain


def test_more_threads_than_a_machine_can_have_are_refused_before_the_process_ends():
    config = Config.parse({"method": "fedavg", "dataset": "digits", "num-clients": 2, "threads": 1_000})
    with pytest.raises(ConfigError, match=r"^threads = 1000: must be at most \d+, 8 for each core of this machine$"):
        Engine(config, federated_data(config.data, 2, 1), 2)


def test_a_signal_sets_an_event_from_another_thread_than_the_one_that_may_hold_its_lock():
    program = """
import os, signal, threading
from fedpfl.core.process import set_by_signals

class Known(threading.Event):
    def set(self):
        self.setter = threading.current_thread()
        super().set()

stopping = Known()
set_by_signals(stopping, signal.SIGTERM, signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
stopping.wait()
assert stopping.setter is not threading.main_thread()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
