"""Arrays of a method at their bounds: one client's extreme ones leave the state finite and the honest clients in."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, LocalGrid, federation, needed, run_federation, simulate

from fedpfl.core.extra_arrays import COUNTS, COVARIANCE, POSITIVE, SERVER, SHARES
from fedpfl.methods import find, methods
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

CLIENTS = 6
SENDING = [n for n in sorted(methods()) if any(e.goes(SERVER) for e in Config.parse({"method": n}).method.extras)]
LIES = {
    "largest": lambda array: np.full_like(array, np.finfo(array.dtype).max),
    "huge": lambda array: np.full_like(array, 3e3),
    "negative": lambda array: np.full_like(array, -3e3),
    "zero": np.zeros_like,
    "reversed": lambda array: -array,
    "longer": lambda array: 15 * array,
}


def lying(name, lies):
    """Return the method with clients that lie in the first round, the last ones."""
    liars = dict(zip(range(CLIENTS, CLIENTS + len(lies)), lies, strict=True))

    class Liar(find(name)):
        def conclude(self, local):
            reply = super().conclude(local)
            if local.client in liars and local.round == 1:
                for key, array in reply.arrays.items():
                    if array.dtype.kind == "f":
                        reply.arrays[key] = LIES[liars[local.client]](array)
            return reply

    Liar.name = f"{name}-lying"
    return Liar


@pytest.mark.parametrize(
    "lies", [("largest", "reversed"), *(pytest.param((lie,), marks=pytest.mark.thorough) for lie in LIES)], ids=str
)
def test_one_message_of_a_client_ends_no_run_and_names_nobody_else(tmp_path, lies, small_bn):
    clients = CLIENTS + len(lies)
    few = {**FEW_SAMPLES, "model": small_bn, "num_server_rounds": 2, "local_steps": 2, "learning_rate": 0.05}
    for name in SENDING:
        with as_setting("method", lying(name, lies)) as method:
            run = simulate(tmp_path / name, clients, method=method, **needed(name), **few)
        for line in run.metrics():
            assert set(line.get("failed", {})) <= set(map(str, range(CLIENTS, clients))), (name, line["failed"])


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


def in_its_type(lie):
    return lambda array: lie(array).astype(array.dtype, copy=False)


@pytest.mark.parametrize("name", SENDING)
def test_whoever_sends_what_an_array_cannot_be_is_named_and_nobody_else(name, tmp_path, small_bn):
    lies = []  # an array and what becomes of it, by client
    for extra in Config.parse({"method": name}).method.extras:
        if extra.goes(SERVER):
            wrong = {what: lie for what, lie in NO_ARRAYS.items() if not extra.exact or what not in FLOATS_ALONE}
            lies += [(extra.name, lie) for lie in wrong.values()]
            lies += [(extra.name, in_its_type(lie)) for lie in OF_KIND.get(extra.kind, {}).values()]
    liars = set()

    class Lying(LocalGrid):
        def answer(self, kind, payload, node_config):
            reply, client = super().answer(kind, payload, node_config), node_config["partition-id"]
            key, lie = lies[client] if client < len(lies) else ("", None)
            array = reply.arrays.get(key)
            if array is not None and array.size > 1:
                liars.add(str(client))
                reply.arrays = {**reply.arrays, key: lie(array)}
            return reply

    few = {**FEW_SAMPLES, "model": small_bn, "num_server_rounds": 2, "local_steps": 1}
    values = federation(tmp_path, len(lies) + 3, method=name, **few)
    folder = run_federation(Lying(len(lies) + 3, values), values)
    assert {client for line in folder.metrics() for client in line.get("failed", {})} == liars
    alone = {extra.name for extra in Config.parse({"method": name}).method.extras if extra.shape == (1,)}
    assert {lies[int(client)][0] for client in liars} | alone >= {key for key, _ in lies}, "nobody has lied"
