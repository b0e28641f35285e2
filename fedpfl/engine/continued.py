"""A run that continues another one: the same clients and classes, from the arrays of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import ConfigError, printable
from ..core.names import in_short
from ..core.server_view import Client
from ..results.earlier_run import EarlierRun
from ..results.run_folder import RunFolder
from ..setup.assembly import make_rule
from ..setup.config import Config
from .agreement import Agreement

# Clients that a remark names.
MAX_NAMED = 5
# What the state has for each client, whatever the rule: the round of its personal arrays, and its releases (privacy).
_OF_CLIENTS = ("personal_round", "releases")

State = Mapping[str, np.ndarray]


def carry_over(
    earlier: EarlierRun, folder: RunFolder, config: Config, agreed: Agreement, data: Mapping[str, Any], state: State,
    about: dict[str, Any],
) -> tuple[State, dict[str, Any], str]:  # fmt: skip
    """Return the state that the new run's clients start from, what the run records of the earlier one, and a remark.

    ``data`` are of :meth:`Transport.about_data`, ``state`` and ``about`` of :meth:`EarlierRun.to_continue`. A client
    has the number that it had, and further ones are new. What fits no more raises ``ConfigError``.
    """
    task, names, total = earlier.task(), data.get("client_names", ()), len(agreed.classes)
    count, before = task["clients"], task.get("client_names", ())
    if names and before and [*names[:count]] != [*before]:
        allowed = f"the run to continue had {in_short(before)}, in this order; new clients come after them"
        raise ConfigError("clients", in_short(names), allowed)
    new = range(count, total) if agreed.division is None or names else range(0)
    shown = [printable(name, 40) for name in names] or [f"client {client}" for client in range(total)]
    earlier.require_task(
        agreed.input_shape, agreed.classes[:count] if new else agreed.classes, run="the run to continue",
        names=agreed.names,
    )  # fmt: skip
    if new:
        _require_no_state_of_clients(config, agreed, _among([shown[client] for client in new]))
        zeros = {name: np.zeros(len(new), state[name].dtype) for name in _OF_CLIENTS if name in state}
        state = {**state, **{name: np.concatenate([state[name], more]) for name, more in zeros.items()}}
        about = {**about, "personal": [*about["personal"], *[(folder.task()["state_key"], 0)] * len(new)]}
    return state, about, _remark(earlier, about, agreed, shown, new)


def _require_no_state_of_clients(config: Config, agreed: Agreement, what: str) -> None:
    """Refuse a rule that keeps something of each client: it has nothing for new ones."""
    made = []
    for count in (len(agreed.classes), len(agreed.classes) + 1):
        rule = make_rule(config, [Client(client, 1, 1) for client in range(count)], agreed.sharing)
        made.append({name: np.shape(array) for name, array in rule.state().items() if name not in _OF_CLIENTS})
    if made[0] != made[1]:
        allowed = f"keeps arrays of each client on the server: a run that continues has the same clients ({what})"
        raise ConfigError("method", config.method.name, allowed)


def _remark(earlier: RunFolder, about: Mapping[str, Any], agreed: Agreement, shown: Sequence[str], new: range) -> str:
    """Tell which run is continued, who is new, and whose numbers of training samples have changed."""
    what = f"continues {earlier.path.name} after its round {about['round']}"
    if not earlier.finished:
        what += f" of {earlier.config()['num-server-rounds']}; it is not finished"
    what += f"; new: {_among([shown[client] for client in new])}" if new else ""
    samples, now = [train for train, _ in about["samples"]], [client.train_samples for client in agreed.clients]
    pairs = zip(shown, samples, now, strict=False)
    changed = [f"{name} {before} → {after}" for name, before, after in pairs if before != after]
    which = f" ({_among(changed)})" if changed else ""
    names = [bool(one.get("columns")) for one in (earlier.task().get("names", {}), agreed.names)]
    what += "; the features have names now and had none: they are taken in their order" * (names == [False, True])
    return f"{what}; training samples: {sum(samples)} before, {sum(now)} now{which}"


def _among(named: Sequence[str]) -> str:
    """Return the first of them, and how many there are beyond."""
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return ", ".join(named[:MAX_NAMED]) + more
