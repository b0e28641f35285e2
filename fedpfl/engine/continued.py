"""A run that continues another one: which arrays are whose, where clients are new, gone, or in another order."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..client.state import ClientState
from ..core.errors import ConfigError, printable
from ..core.files import private_folder
from ..core.server_view import Client
from ..results.earlier_run import EarlierRun
from ..results.run_folder import RunFolder
from ..setup.assembly import make_rule
from ..setup.config import Config
from .agreement import Agreement
from .more_classes import MoreClasses

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

    ``data`` are of :meth:`Transport.about_data`, ``state`` and ``about`` of :meth:`EarlierRun.to_continue`. Clients
    are the same by the names that the data give them; without names by their numbers, and on devices further numbers
    are new clients. What fits no more raises ``ConfigError``.
    """
    task, total, names = earlier.task(), len(agreed.classes), data.get("client_names", ())
    count, known = task["clients"], task.get("client_names", ())
    before: list[int | None] = [*range(count)]
    if names and known:
        before = [known.index(name) if name in known else None for name in names]
    elif agreed.division is None:
        before += [None] * (total - count)
    more = MoreClasses(earlier, config, agreed, data.get("class_names", ()), _OF_CLIENTS)
    shown = [printable(name, 40) for name in names] or [f"client {client}" for client in range(total)]
    gone = [printable(str(name), 40) for i, name in enumerate(known) if i not in before] if names else []
    new = [shown[client] for client, old in enumerate(before) if old is None]
    if before != [*range(count)]:
        _require_no_state_of_clients(config, agreed, _among([*new, *gone] or ["other order"]))
        state = _renumbered(state, before)
        about = {**about, "personal": _places(folder, config, before, about["personal"], state)}
    classes = {old: number for old, number in zip(before, agreed.classes, strict=False) if old is not None}
    usual = task.get("classes_of_clients") or [task["num_classes"]] * count
    theirs = [classes.get(client, usual[client]) for client in range(count)]
    if len(before) != total:  # common data, divided among another number of clients
        theirs = agreed.classes
    named = dict(agreed.names)
    if more.new:
        theirs = [usual[0]] * len(theirs)
        named.pop("classes", None)
    earlier.require_task(agreed.input_shape, theirs, run="the run to continue", names=named)
    state, about = more.state(state), {**about, "personal": more.personal(about["personal"])}
    return state, about, _remark(earlier, about, agreed, before, shown, new, gone, more.new)


def _require_no_state_of_clients(config: Config, agreed: Agreement, what: str) -> None:
    """Refuse a rule that keeps something of each client: it has nothing for new ones, and means others by a number."""
    made = []
    for count in (len(agreed.classes), len(agreed.classes) + 1):
        rule = make_rule(config, [Client(client, 1, 1) for client in range(count)], agreed.sharing)
        made.append({name: np.shape(array) for name, array in rule.state().items() if name not in _OF_CLIENTS})
    if made[0] != made[1]:
        allowed = f"keeps arrays of each client on the server: a run that continues has the same clients ({what})"
        raise ConfigError("method", config.method.name, allowed)


def _renumbered(state: State, before: Sequence[int | None]) -> State:
    """Return the state with what it has for each client under the new numbers; 0 for new clients."""
    found = dict(state)
    for name in _OF_CLIENTS:
        if name in state:
            found[name] = np.array([0 if old is None else state[name][old] for old in before], state[name].dtype)
    return found


def _places(
    folder: RunFolder, config: Config, before: Sequence[int | None], places: Sequence[tuple[Any, ...]], state: State
) -> list[tuple[Any, ...]]:
    """Return each client's key and round; arrays of a client with another number are copied to a new key."""
    own = folder.task()["state_key"]
    found = []
    for client, old in enumerate(before):
        key, number, *classes = (own, 0) if old is None else places[old]
        if old is not None and old != client and state["personal_round"][client]:
            there = ClientState(config.run.state_dir, key, old).path(number)
            key = f"{own}-before"
            here = ClientState(config.run.state_dir, key, client)
            if there.is_file():  # many methods have no personal arrays
                private_folder(here.folder)
                shutil.copy(there, here.path(number))
        found.append((key, number, *classes))
    return found


def _remark(
    earlier: RunFolder, about: Mapping[str, Any], agreed: Agreement, before: Sequence[int | None],
    shown: Sequence[str], new: Sequence[str], gone: Sequence[str], classes: Sequence[str],
) -> str:  # fmt: skip
    """Tell which run is continued, what is new or gone, and whose numbers of training samples have changed."""
    what = f"continues {earlier.path.name} after its round {about['round']}"
    if not earlier.finished:
        what += f" of {earlier.config()['num-server-rounds']}; it is not finished"
    what += f"; new: {_among(new)}" if new else ""
    what += f"; not there any more: {_among(gone)}" if gone else ""
    if classes:
        kept = earlier.task()["num_classes"]
        what += f"; new classes: {printable(_among(classes), 200)}, next to {kept} that are as they were"
    samples = [train for train, _ in about["samples"]]
    if not samples:
        return f"{what}; how many samples its clients had was not stored"
    now = [client.train_samples for client in agreed.clients]
    changed = [
        f"{shown[client]} {samples[old]} → {now[client]}"
        for client, old in enumerate(before)
        if old is not None and samples[old] != now[client]
    ]
    which = f" ({_among(changed)})" if changed else ""
    return f"{what}; training samples: {sum(samples)} before, {sum(now)} now{which}"


def _among(named: Sequence[str]) -> str:
    """Return the first of them, and how many there are beyond."""
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return ", ".join(named[:MAX_NAMED]) + more
