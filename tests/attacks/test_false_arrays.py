"""Arrays of a method at their bounds: one client's extreme ones leave the state finite and the honest clients in."""

from __future__ import annotations

import numpy as np
import pytest

import fedpfl
from fedpfl.core.extras import SERVER
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


@pytest.mark.parametrize("lie", LIES)
def test_one_message_of_one_client_ends_no_run_and_names_nobody_else(tmp_path, lie):
    for name in SENDING:
        few = {"num_clients": CLIENTS, "num_server_rounds": 2, "local_steps": 2, "learning_rate": 0.05, "workers": 0}
        places = {"output_dir": str(tmp_path / name), "state_dir": str(tmp_path / "state")}
        run = fedpfl.run(lying(name, LIES[lie]), dataset="digits", model="mlp", quiet=True, **few, **places)
        for line in RunFolder(run.path).metrics():
            assert set(line.get("failed", {})) <= {str(LIAR)}, (name, line["failed"])
