"""Arrays of a method at their bounds: one client's extreme ones leave the state finite and the honest clients in."""

from __future__ import annotations

import numpy as np
import pytest
from support import LocalGrid, federation, run_federation

import fedpfl
from fedpfl.core.extra_arrays import COUNTS, COVARIANCE, POSITIVE, SERVER, SHARES
from fedpfl.methods import find, methods
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.config import Config

LIAR, CLIENTS = 5, 6
SENDING = [n for n in sorted(methods()) if any(e.goes(SERVER) for e in Config.parse({"method": n}).method.extras)]
LIES = {
    "largest": lambda array: np.full_like(array, np.finfo(array.dtype).max),
    "huge": lambda array: np.full_like(array, 3e3),
    "negative": lambda array: np.full_like(array, -3e3),
    "zero": np.zeros_like,
    "reversed": lambda array: -array,
    "longer": lambda array: 15 * array,
}

QUICK = ("largest", "reversed")


def lying(name, lie):
    class Liar(find(name)):
        def conclude(self, local):
            reply = super().conclude(local)
            if local.client == LIAR and local.round == 1:
                for key, array in reply.arrays.items():
                    if array.dtype.kind == "f":
                        reply.arrays[key] = lie(array)
            return reply

    Liar.name = f"{name}-lying"
    return Liar


@pytest.mark.parametrize(
    "lie", [*QUICK, *(pytest.param(n, marks=pytest.mark.thorough) for n in LIES if n not in QUICK)]
)
def test_one_message_of_one_client_ends_no_run_and_names_nobody_else(tmp_path, lie):
    for name in SENDING:
        few = {"num_clients": CLIENTS, "num_server_rounds": 2, "local_steps": 2, "learning_rate": 0.05, "workers": 0}
        places = {"output_dir": str(tmp_path / name), "state_dir": str(tmp_path / "state")}
        run = fedpfl.run(lying(name, LIES[lie]), dataset="digits", model="mlp", quiet=True, **few, **places)
        for line in RunFolder(run.path).metrics():
            assert set(line.get("failed", {})) <= {str(LIAR)}, (name, line["failed"])


NO_ARRAYS = {
    "not a number": lambda array: np.full_like(array, np.nan),
    "one infinite": lambda array: np.where(np.arange(array.size) == array.size - 1, np.inf, array).astype(array.dtype),
    "longer": lambda array: np.append(array, array[:1]),
    "empty": lambda array: array[:0],
    "a row": lambda array: array[None],
    "double": lambda array: array.astype(np.float64),
    "whole": lambda array: array.astype(np.int64),
    "text": lambda array: array.astype("U9"),
}
FLOATS_ALONE = {"not a number", "one infinite"}
OF_KIND = {
    COUNTS: {"negative": lambda array: -array - 1, "parts": lambda array: array / 3, "many": lambda array: array + 1e9},
    SHARES: {"negative": lambda array: -array - 1, "over": lambda array: array + 1},
    COVARIANCE: {"negative": lambda array: -array - 1, "not symmetric": lambda array: array + np.arange(array.size)},
    POSITIVE: {"negative": lambda array: -array - 1},
}


@pytest.mark.parametrize("name", SENDING)
def test_whoever_sends_what_an_array_cannot_be_is_named_and_nobody_else(name, tmp_path):
    for extra in Config.parse({"method": name}).method.extras:
        wrong = {name: lie for name, lie in NO_ARRAYS.items() if not extra.exact or name not in FLOATS_ALONE}
        lies = [*wrong.values(), *OF_KIND.get(extra.kind, {}).values()] if extra.goes(SERVER) else []
        liars = set()

        class Lying(LocalGrid):
            def answer(self, kind, payload, node_config, extra=extra, wrong=wrong, lies=lies, liars=liars):
                reply, client = super().answer(kind, payload, node_config), node_config["partition-id"]
                array = reply.arrays.get(extra.name)
                if client < len(lies) and array is not None and array.size > 1:
                    liars.add(str(client))
                    reply.arrays = {
                        **reply.arrays,
                        extra.name: lies[client](array).astype(array.dtype, copy=False)
                        if client >= len(wrong)
                        else lies[client](array),
                    }
                return reply

        values = federation(tmp_path / extra.name, len(lies) + 3, method=name, num_server_rounds=2, local_steps=1)
        folder = run_federation(Lying(len(lies) + 3, values), values)
        failed = {client for line in folder.metrics() for client in line.get("failed", {})}
        assert failed == liars, extra.name
        assert liars or not lies or extra.shape == (1,), "nobody has lied"
