"""Personalised models as plain weights: what ``load_state_dict`` of the model without the method's changes takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import models
from ..client.state import ClientState
from ..core.errors import ConfigError, NoPlainModel
from ..core.federation import Client
from ..core.files import private_folder, write_atomically
from ..core.sharing import UNUSED_BUFFER, Sharing, tied
from ..core.stored import json_line, read_arrays, write_arrays
from ..setup.assembly import assemble, complete_arrays, make_rule, plain_model
from ..setup.config import Config
from .run import GLOBAL, RunFolder, personal_place


def export_personal(folder: RunFolder, clients: Sequence[int] | None = None) -> list[Path]:
    """Write the personalised model of each client whose state is on this machine, and return the paths.

    ``RUN/personal/client-00003.safetensors`` and so on, and ``names.json`` where the data have names for clients or
    classes; nothing if ``global.safetensors`` is every client's. A client
    that is asked for must have its state here.
    """
    written = []
    for client, arrays in personal_models(folder, clients):
        path = folder.path / "personal" / f"client-{client:05d}.safetensors"
        private_folder(path.parent)  # as the same arrays are in state-dir
        write_arrays(path, {name: array.numpy() for name, array in arrays.items()})
        written.append(path)
    task = folder.task()
    names = {key: task[key] for key in ("client_names", "class_names") if key in task}
    if written and names:
        write_atomically(folder.path / "personal" / "names.json", json_line(names).encode(), private=True)
    return written


def personal_models(folder: RunFolder, clients: Sequence[int] | None = None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (client, what its plain model loads), for clients with a model of their own."""
    config, task = Config.parse(folder.config()), folder.described()
    shape = tuple(task["input_shape"])
    classes = task.get("classes_of_clients", [task["num_classes"]] * task["clients"])
    # Shared and personal arrays of one moment: the client may have trained on since, for a reply that was lost.
    _, stored = folder.checkpoint()
    personal_round = stored["personal_round"].tolist()
    vocabulary = task.get("vocabulary", 0)
    listed = [Client(i, 0, 0) for i in range(task["clients"])]
    rule = None
    if not config.method.aggregation.rule.one_model:  # it has what each client gets
        rule = make_rule(config, listed, assemble(config, shape, max(classes), vocabulary=vocabulary)[1])
        rule.load_state(stored)
    blanks: dict[tuple[int, str], _Blank] = {}
    for client in range(task["clients"]) if clients is None else clients:
        if not 0 <= client < len(classes):
            raise ConfigError("client", client, f"run {folder.path.name} has the clients 0 … {len(classes) - 1}")
        kind = classes[client], config.run.model_of(client)
        if kind not in blanks:
            blanks[kind] = _blank(config.of_client(client), shape, classes[client], vocabulary, stored)
        model, sharing, initial, plain = blanks[kind]
        names = plain.state_dict().keys()
        if not (sharing.personal or sharing.layout.frozen or rule) and set(sharing.shared) <= names:
            continue  # the one model of all is global.safetensors
        key, number = personal_place(task, client, personal_round[client])
        state = ClientState(Path(config.run.state_dir), key, client)
        if sharing.personal and not state.folder.is_dir():
            if clients is not None:
                allowed = f"has no stored state of run {folder.path.name} in {config.run.state_dir}"
                raise ConfigError("client", client, allowed)
            continue
        sharing.set_shared(stored["shared"] if rule is None else rule.outgoing(listed[client]))
        if sharing.personal:
            sharing.set_personal(state.load(number) if number else initial)
        exported = config.method.export(model)
        yield client, complete_arrays(plain, exported)


def trained_model(folder: RunFolder, client: int | None = None) -> nn.Module:
    """Return a trained model as the plain one, without the method's changes, on the CPU and in evaluation mode.

    It is the personalised model of a client, or by default the one that all clients share.
    """
    config, task = Config.parse(folder.config()), folder.described()
    arrays = None if client is None else next((found for _, found in personal_models(folder, [client])), None)
    count = (
        task["num_classes"] if client is None else task.get("classes_of_clients", {client: task["num_classes"]})[client]
    )
    model = config.run.model if client is None else config.run.model_of(client)
    plain = models.build(model, tuple(task["input_shape"]), count, task.get("vocabulary", 0))
    plain.load_state_dict(_shared_model(folder, config, plain) if arrays is None else arrays)
    return models.original_module(plain).eval()


def _shared_model(folder: RunFolder, config: Config, plain: nn.Module) -> dict[str, Tensor]:
    path, wanted = folder.path / GLOBAL, plain.state_dict()
    stored = read_arrays(path) if path.is_file() else {}
    shared = {name: torch.from_numpy(array) for name, array in stored.items()}
    counts = {name: torch.zeros_like(array) for name, array in wanted.items() if name.endswith(UNUSED_BUFFER)}
    also = {name: shared[first] for first, *others in tied(plain) if first in shared for name in others}
    found = {name: array for name, array in {**counts, **also, **shared}.items() if name in wanted}
    fits = all(found[name].shape == array.shape for name, array in wanted.items() if name in found)
    if found.keys() != wanted.keys() or not fits:
        raise NoPlainModel(f"{config.method.name} leaves no model that all clients share; ask for a client's")
    return found


class _Blank(NamedTuple):
    """A model to load clients into, its first personal arrays, and the model without the method's changes."""

    model: nn.Module
    sharing: Sharing
    initial: dict[str, np.ndarray]
    plain: nn.Module


def _blank(
    config: Config, input_shape: tuple[int, ...], num_classes: int, vocabulary: int, stored: dict[str, np.ndarray]
) -> _Blank:
    model, sharing = assemble(config, input_shape, num_classes, vocabulary=vocabulary)
    initial = sharing.get_personal()
    sharing.accept(stored)
    plain = plain_model(config, input_shape, num_classes, vocabulary)
    return _Blank(model, sharing, initial, plain)
