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
from ..client.state import ClientState
from ..core.errors import ConfigError, FedpflError, NoPlainModel
from ..core.files import private_folder, write_atomically
from ..core.inputs import Inputs
from ..core.names import shape_of
from ..core.rng import generator
from ..core.server_view import Client
from ..core.sharing import UNUSED_BUFFER, Sharing, is_whole, tied
from ..core.stored import json_line, read_arrays, write_arrays
from ..methods.base import tests_more_than_arrays
from ..rules import Rule
from ..setup.assembly import assemble, make_rule, plain_model, seed_model
from ..setup.config import Config
from .run_folder import GLOBAL, RunFolder, personal_place

STATE_DICT, TORCHSCRIPT, ONNX = "state-dict", "torchscript", "onnx"
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
    written, config, task = [], folder.parsed(), folder.described()
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
    """Return what the exported models take and give, and each one's accuracy if it was tested at the end of the run.

    Only a run whose clients were in its own program knows the scaling of their inputs.
    """
    flat = config.flat()
    settings = {key: flat[key] for key in ("method", "model", "client-models", "normalize", "standardize")}
    known = (
        "models", "input_shape", "scaling", "num_classes", "classes_of_clients", "vocabulary", "client_names",
        "class_names",
    )  # fmt: skip
    kept = {key: task[key] for key in known if key in task}
    tested = folder.history().tests().get(folder.checkpoint()[0], {}) if config.run.test_at == "end" else {}
    return {**settings, **kept, "loss": config.training.labels, "accuracies": tested}


def _program(module: nn.Module, task: Mapping[str, Any], form: str) -> bytes:
    """Return a model as TorchScript or ONNX, which gives what it gives for batches of any size."""
    shape, vocabulary = shape_of(task["input_shape"]), task.get("vocabulary", 0)
    if isinstance(shape, Inputs):
        from fedpfl.results.programs import program as _program

        program: bytes = _program(module, shape, form)
        return program
    shape, rng = (PROGRAM_BATCH, *shape), generator(0, "export")
    x = torch.from_numpy(rng.integers(0, vocabulary, shape) if vocabulary else rng.random(shape, np.float32))
    if form == TORCHSCRIPT:
        from ..client.device_model import traced

        content, why = traced(module, module, x)
    else:
        from .onnx import onnx

        content, why = onnx(module, x)
    if content is None:
        raise NoPlainModel(why)
    return content


def personal_models(folder: RunFolder, clients: Sequence[int] | None = None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (client, what its plain model loads), for clients with a model of their own."""
    yield from _personal_models(folder, folder.parsed(), folder.described(), clients)


def _personal_models(
    folder: RunFolder, config: Config, task: Mapping[str, Any], clients: Sequence[int] | None
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    stored, found, missing = _StoredModels(folder, config, task), False, list[FedpflError]()
    for client in range(task["clients"]) if clients is None else clients:
        if not 0 <= client < task["clients"]:
            raise ConfigError("client", client, f"run {folder.path.name} has clients 0 … {task['clients'] - 1}")
        arrays = stored.of(client)
        if isinstance(arrays, FedpflError):
            if clients is not None:
                raise arrays
            missing.append(arrays)
        elif arrays is not None:
            found = True
            yield client, arrays
    if missing and not found:
        raise missing[0]


def stored_rule(config: Config, task: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Rule:
    """Return a run's rule with a state that a checkpoint has."""
    classes = task.get("classes_of_clients", [task["num_classes"]])
    shape, vocabulary = shape_of(task["input_shape"]), task.get("vocabulary", 0)
    sizes = task.get("samples", [(0, 0)] * task["clients"])
    sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)[1]
    rule = make_rule(config, [Client(i, *of) for i, of in enumerate(sizes)], sharing)
    rule.load_state(state)
    return rule


class _StoredModels:
    """Clients' models, made of what a run and its clients on this machine have stored."""

    def __init__(self, folder: RunFolder, config: Config, task: Mapping[str, Any]) -> None:
        self.folder, self.config, self.task = folder, config, task
        self.shape, self.vocabulary = shape_of(task["input_shape"]), task.get("vocabulary", 0)
        self.classes = task.get("classes_of_clients", [task["num_classes"]] * task["clients"])
        # Shared and personal arrays of one moment: the client may have trained on since, for a reply that was lost.
        self.last, self.stored = folder.checkpoint()
        # It has what each client gets.
        self.rule = stored_rule(config, task, self.stored)
        self.listed = self.rule.clients
        self.more = tests_more_than_arrays(config.method)
        self.blanks: dict[tuple[int, str], _Blank] = {}

    def of(self, client: int) -> dict[str, Tensor] | FedpflError | None:
        """Return what a client's plain model loads; None if global.safetensors is; or why this machine has none."""
        key, number = personal_place(self.task, client, int(self.stored["personal_round"][client]))
        state_dir, name = Path(self.config.run.state_dir), self.folder.path.name
        here = ClientState(state_dir, self.task["state_key"], client).folder
        # A client that was not in the run may have made its model afterwards.
        rounds = [self.last] * self.more + [self.last + 1] * (not number)
        if here.is_dir():
            from ..client.device_model import kept_model

            kept = next(filter(None, (kept_model(here, after) for after in rounds)), None)
            if kept is not None:
                return kept
        if self.more:
            words = f"has no model of round {self.last} for client {client}, which makes it for a test"
            where = "it is written at the test after the last round, where the client is (device-models, test-at)"
            return NoPlainModel(f"{here} {words}; {where}")
        config = _of_client(self.config, self.task, client)
        kind = self.classes[client], config.run.model
        if kind not in self.blanks:
            self.blanks[kind] = _blank(config, self.shape, self.classes[client], self.vocabulary, self.stored)
        model, sharing, initial, plain = self.blanks[kind]
        state = ClientState(state_dir, key, client)
        if sharing.personal and not state.folder.is_dir():
            return ConfigError("client", client, f"has no stored state of run {name} in {state_dir}")
        sent = sharing.layout.pack(self.rule.outgoing(self.listed[client]), config.run.wire_dtype)
        sharing.set_shared(sharing.layout.unpack(sent))
        if sharing.personal:
            arrays = state.load(number) if number else initial
            sharing.set_personal(arrays)
        exported = config.method.export(model)
        own = sharing.personal or sharing.layout.frozen or not self.rule.one_model
        if not own and plain.state_dict().keys() >= set(sharing.shared):
            return None  # global.safetensors
        from ..models.adapters import complete_arrays

        return complete_arrays(plain, exported)


def trained_model(folder: RunFolder, client: int | str | None = None) -> nn.Module:
    """Return a trained model as the plain one, without the method's changes, on the CPU and in evaluation mode.

    It is the personalised model of a client, or by default the one that all clients share.
    """
    client = None if client is None else folder.client_number(client)
    config, task = folder.parsed(), folder.described()
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
    shape, vocabulary, count = shape_of(task["input_shape"]), task.get("vocabulary", 0), task["num_classes"]
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
            from ..models.adapters import complete_arrays

            arrays = complete_arrays(start, arrays)
    plain.load_state_dict(arrays)
    original = models.original_module(plain).eval()
    from fedpfl.models.several_inputs import released

    return released(original) if isinstance(shape, Inputs) else original


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
