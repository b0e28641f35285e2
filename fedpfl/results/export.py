"""Personalised models as plain weights: what ``load_state_dict`` of the model without the method's changes takes.

TorchScript and ONNX hold the same model as a program that runs without its Python code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import models
from ..client.device_model import TORCHSCRIPT, traced
from ..client.state import ClientState
from ..core.errors import ConfigError, NoPlainModel
from ..core.federation import Client
from ..core.files import private_folder, write_atomically
from ..core.rng import generator
from ..core.sharing import UNUSED_BUFFER, Sharing, is_whole, tied
from ..core.stored import json_line, read_arrays, write_arrays
from ..setup.assembly import assemble, complete_arrays, make_rule, plain_model, seed_model
from ..setup.config import Config
from .onnx import onnx
from .run import GLOBAL, RunFolder, personal_place

STATE_DICT, ONNX = "state-dict", "onnx"
FORMS = {STATE_DICT: ".safetensors", TORCHSCRIPT: ".pt", ONNX: ".onnx"}
# Samples with which a program is compared with its model.
PROGRAM_BATCH = 2


def export_personal(
    folder: RunFolder, clients: Sequence[int | str] | None = None, form: str = STATE_DICT
) -> list[Path]:
    """Write the personalised model of each client whose state is on this machine, and return the paths.

    ``RUN/personal/client-00003.safetensors`` (``.pt``, ``.onnx``) and so on, and ``about.json``, which describes their
    input and output. If ``global.safetensors`` is every client's model, other forms of it are
    ``RUN/personal/global.…``. A client that is asked for, by name or number, must have its state here.
    """
    written, config, task = [], Config.parse(folder.config()), folder.described()
    numbers = None if clients is None else [folder.client_number(client) for client in clients]
    for client, arrays in _personal_models(folder, config, task, numbers):
        path = folder.path / "personal" / f"client-{client:05d}{FORMS[form]}"
        private_folder(path.parent)  # as the same arrays are in state-dir
        if form == STATE_DICT:
            write_arrays(path, {name: array.numpy() for name, array in arrays.items()})
        else:
            write_atomically(path, _program(_plain(folder, config, task, client, arrays), task, form), private=True)
        written.append(path)
    if form != STATE_DICT and not written:
        path = folder.path / "personal" / f"global{FORMS[form]}"
        content = _program(_plain(folder, config, task), task, form)
        private_folder(path.parent)
        write_atomically(path, content, private=True)
        written.append(path)
    if written:
        about = json_line(_about(folder, config, task)).encode()
        write_atomically(folder.path / "personal" / "about.json", about, private=True)
    return written


def _about(folder: RunFolder, config: Config, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the exported models take and give, and each client's accuracy at the last test of the run.

    Only a run whose clients were in its own program knows the scaling of their inputs.
    """
    flat = config.flat()
    settings = {key: flat[key] for key in ("method", "model", "client-models", "normalize", "standardize", "loss")}
    known = (
        "models", "input_shape", "scaling", "num_classes", "classes_of_clients", "vocabulary", "client_names",
        "class_names",
    )  # fmt: skip
    kept = {key: task[key] for key in known if key in task}
    return {**settings, **kept, "accuracies": folder.history().last_test()}


def _program(module: nn.Module, task: Mapping[str, Any], form: str) -> bytes:
    """Return a model as TorchScript or ONNX, which gives what it gives for batches of any size."""
    shape, vocabulary = (PROGRAM_BATCH, *task["input_shape"]), task.get("vocabulary", 0)
    rng = generator(0, "export")
    x = torch.from_numpy(rng.integers(0, vocabulary, shape) if vocabulary else rng.random(shape, np.float32))
    content, why = traced(module, module, x) if form == TORCHSCRIPT else onnx(module, x)
    if content is None:
        raise NoPlainModel(why)
    return content


def personal_models(folder: RunFolder, clients: Sequence[int] | None = None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (client, what its plain model loads), for clients with a model of their own."""
    yield from _personal_models(folder, Config.parse(folder.config()), folder.described(), clients)


def _personal_models(
    folder: RunFolder, config: Config, task: Mapping[str, Any], clients: Sequence[int] | None
) -> Iterator[tuple[int, dict[str, Tensor]]]:
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
            raise ConfigError("client", client, f"run {folder.path.name} has clients 0 … {len(classes) - 1}")
        own = _of_client(config, task, client)
        kind = classes[client], own.run.model
        if kind not in blanks:
            blanks[kind] = _blank(own, shape, classes[client], vocabulary, stored)
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


def trained_model(folder: RunFolder, client: int | str | None = None) -> nn.Module:
    """Return a trained model as the plain one, without the method's changes, on the CPU and in evaluation mode.

    It is the personalised model of a client, or by default the one that all clients share.
    """
    client = None if client is None else folder.client_number(client)
    config, task = Config.parse(folder.config()), folder.described()
    found = iter(()) if client is None else _personal_models(folder, config, task, [client])
    return _plain(folder, config, task, client, next((arrays for _, arrays in found), None))


def _of_client(config: Config, task: Mapping[str, Any], client: int) -> Config:
    """Return the settings with a client's model, also where its device has named it."""
    model = task.get("models", {}).get(str(client))
    if model is None:
        return config.of_client(client)
    if model not in models.names():
        # Its name came over the network: code that it names is not run here.
        raise ConfigError("model", model, f"is the device's own model of client {client}, which is built only there")
    return config.with_model(model)


def _plain(
    folder: RunFolder, config: Config, task: Mapping[str, Any], client: int | None = None,
    arrays: dict[str, Tensor] | None = None,
) -> nn.Module:  # fmt: skip
    """Return the plain model with a client's arrays, or with those that all clients share."""
    own = config if client is None else _of_client(config, task, client)
    shape, vocabulary, count = tuple(task["input_shape"]), task.get("vocabulary", 0), task["num_classes"]
    if client is not None:
        count = task.get("classes_of_clients", {client: count})[client]
    seed_model(own)  # a model may have drawn more than its arrays
    plain = models.build(own.run.model, shape, count, vocabulary)
    if arrays is None:
        path = folder.path / GLOBAL
        stored = {name: torch.from_numpy(array) for name, array in read_arrays(path).items()} if path.is_file() else {}
        arrays = _shared_model(plain, stored)
        if arrays is None:  # frozen arrays and whole numbers, which nobody sends, are the initial ones
            start = plain_model(own, shape, count, vocabulary)
            whole = {name: array for name, array in start.state_dict().items() if is_whole(array)}
            arrays = _shared_model(start, {**whole, **stored})
            if arrays is None:
                method = config.method.name
                raise NoPlainModel(f"{method} has no model that all clients share; export a client's model")
            arrays = complete_arrays(start, arrays)
    plain.load_state_dict(arrays)
    return models.original_module(plain).eval()


def _shared_model(model: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return what a model loads of the arrays that all clients share; None if these are not all that it needs."""
    wanted = model.state_dict()
    counts = {name: torch.zeros_like(array) for name, array in wanted.items() if name.endswith(UNUSED_BUFFER)}
    also = {name: stored[first] for first, *others in tied(model) if first in stored for name in others}
    found = {name: array for name, array in {**counts, **also, **stored}.items() if name in wanted}
    fits = all(found[name].shape == array.shape for name, array in wanted.items() if name in found)
    return found if found.keys() == wanted.keys() and fits else None


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
