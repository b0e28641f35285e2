"""Personalised models as plain weights, or as a program (TorchScript, ONNX) that runs without its Python code."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import models
from ..client.device_model import ONNX as ONNX_ENDING
from ..client.device_model import kept_model, read_model, traced, write_files
from ..client.state import ClientState
from ..core.checksummed_files import Stored, read_arrays
from ..core.errors import ConfigError, FedpflError, NoPlainModel
from ..core.files import write_atomically
from ..core.frozen import frozen
from ..core.layout import Layout
from ..core.name_lists import shape_of
from ..core.rng import generator
from ..core.server_view import Client
from ..core.sharing import UNUSED_BUFFER, Sharing, is_whole, tied
from ..data.federation import TOKENS, names_of_classes
from ..data.scaling import FILL, Scaling
from ..methods.base import export_of, tests_more_than_arrays
from ..models.adapters import complete_arrays
from ..models.sources import choices, split_width
from ..rules import Rule
from ..setup.assembly import assemble, make_rule, model_name, plain_model, seed_model, untrained
from ..setup.config import Config
from ..version import __version__
from .run_folder import GLOBAL, RunFolder

STATE_DICT, TORCHSCRIPT, ONNX = "state-dict", "torchscript", "onnx"
FORMS = {STATE_DICT: ".safetensors", TORCHSCRIPT: ".pt", ONNX: ONNX_ENDING}
# In a run's folder: what each client's model takes and tells, where these differ from the data's form (a row of each
# client in every array: fill, mean, deviation, classes); the exported models, and how a model of all is called there.
CLIENTS, PERSONAL, GLOBAL_NAME = "clients.safetensors", "personal", "global"


MISSING = "ONNX needs packages that are not installed: pip install 'fedpfl[onnx]'"
# Samples with which a program is made, and compared with its model; and the most samples that ONNX takes.
TRACED, SAMPLES = 2, 5
MAX_BATCH = 2**16


def export_personal(
    folder: RunFolder, clients: Sequence[int | str] | None = None, form: str = STATE_DICT
) -> list[Path]:
    """Write the personalised model of each client whose model is known on this machine, and return the paths.

    If all clients have the model ``global.safetensors``, only programs are written; one for each client if their
    features are scaled by other numbers. A client that is asked for must have its state here.
    """
    models = _StoredModels(folder)
    numbers = None if clients is None else [folder.client_number(client) for client in clients]
    written = [models.write(client, arrays, form) for client, arrays in _personal_models(models, numbers)]
    if written or (form == STATE_DICT and not (models.differ and numbers)):
        return written
    whose = (numbers or range(models.task["clients"])) if models.differ else [None]
    return [models.write(client, models.shared(client), form) for client in whose]


def trained_model(folder: RunFolder, client: int | str | None = None) -> nn.Module:
    """Return a trained model as the plain one, without the method's changes, on the CPU and in evaluation mode.

    It takes samples as the data have them, but images and tokens as models do.
    """
    models = _StoredModels(folder)
    if client is None:
        return models.module(None, models.shared())
    number = folder.client_number(client)
    arrays = next((arrays for _, arrays in _personal_models(models, [number])), None)
    return models.module(number, models.shared(number) if arrays is None else arrays)


def _personal_models(models: _StoredModels, clients: Sequence[int] | None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (client, what its plain model loads), for clients with a model of their own."""
    any_found, missing, total = False, list[FedpflError](), models.task["clients"]
    for client in range(total) if clients is None else clients:
        if not 0 <= client < total:
            raise ConfigError("client", client, f"run {models.folder.path.name} has clients 0 … {total - 1}")
        arrays = models.of(client)
        if isinstance(arrays, FedpflError):
            if clients is not None:
                raise arrays
            missing.append(arrays)
        elif arrays is not None:
            any_found = True
            yield client, arrays
    if missing and not any_found:
        raise missing[0]


def stored_rule(config: Config, task: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Rule:
    """Return a run's rule with a state that a checkpoint has."""
    classes = task.get("classes_of_clients", [task["num_classes"]])
    shape, vocabulary = shape_of(task["input_shape"]), task.get("vocabulary", 0)
    sizes = task.get("samples", [(0, 0)] * task["clients"])
    sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)[1]
    layouts: dict[int, Layout] = {}
    if config.method.aggregation.rule.takes_slices:
        configs = [_of_client(config, task, client) for client in range(len(sizes))]
        by_model = {
            name: assemble(one, shape, max(classes), vocabulary=vocabulary)[1].layout
            for name, one in {one.run.model: one for one in configs}.items()
        }
        layouts = {client: by_model[one.run.model] for client, one in enumerate(configs)}
    rule = make_rule(config, [Client(i, *counts) for i, counts in enumerate(sizes)], sharing, layouts)
    rule.load_state(state)
    return rule


class _StoredModels:
    """Clients' models, made of what a run and its clients on this machine have stored."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.config, self.task = folder, folder.parsed(), folder.described()
        self.shape, self.vocabulary = shape_of(self.task["input_shape"]), self.task.get("vocabulary", 0)
        self.classes = self.task.get("classes_of_clients", [self.task["num_classes"]] * self.task["clients"])
        self.more = tests_more_than_arrays(self.config.method)
        path = folder.path / CLIENTS
        self.rows: Mapping[str, np.ndarray] = read_arrays(path) if path.is_file() else {}
        self.blanks: dict[tuple[int, str], _EmptyModel] = {}

    @cached_property
    def checkpoint(self) -> tuple[int, Stored]:
        """The last round, and what the server had after it: a client may have trained on, for a reply that was lost."""
        return self.folder.checkpoint()

    @cached_property
    def rule(self) -> Rule:
        """The run's rule, which has what each client gets."""
        return stored_rule(self.config, self.task, self.checkpoint[1])

    def of(self, client: int) -> dict[str, Tensor] | FedpflError | None:
        """Return the arrays of a client's plain model; None if they are global.safetensors; or the reason for none."""
        last, stored = self.checkpoint
        number = int(stored["personal_round"][client])
        state_dir, name = Path(self.config.run.state_dir), self.folder.path.name
        state = ClientState(state_dir, self.task["state_key"], client)
        here = state.folder
        if not here.is_dir() and (exported := self._exported(client)) is not None:
            return exported
        # A client that was not in the run may have made its model afterwards.
        rounds = [last] * self.more + [last + 1] * (not number)
        if here.is_dir():
            kept = next(filter(None, (kept_model(here, after) for after in rounds)), None)
            if kept is not None:
                return kept
        if self.more:
            message = f"has no model of round {last} for client {self.name(client)}, which makes it for a test"
            where = "it is written at the test after the last round, where the client is (device-models, test-at)"
            return NoPlainModel(f"{here} {message}; {where}")
        config = _of_client(self.config, self.task, client)
        kind = self.classes[client], config.run.model
        if kind not in self.blanks:
            self.blanks[kind] = _blank(config, self.shape, self.classes[client], self.vocabulary, stored)
        model, sharing, initial, plain = self.blanks[kind]
        if sharing.personal and not here.is_dir():
            message = f"has no stored state of run {name} in {state_dir}, and no model in {self.folder.path / PERSONAL}"
            return ConfigError("client", self.name(client), message)
        sent = sharing.layout.pack(self.rule.outgoing(self.rule.clients[client]), config.run.wire_dtype)
        sharing.set_shared(sharing.layout.unpack(sent))
        if sharing.personal:
            arrays = state.load(number) if number else initial
            sharing.set_personal(arrays)
        exported = export_of(config.method, model)
        narrower = sharing.layout.size < self.rule.layout.size
        has_own_arrays = sharing.personal or sharing.layout.frozen or narrower or not self.rule.one_model
        if not has_own_arrays and plain.state_dict().keys() >= set(sharing.shared):
            return None  # global.safetensors
        return complete_arrays(plain, exported)

    def name(self, client: int) -> int | str:
        """Return the name that the data have for a client, or its number."""
        names: Sequence[str] = self.task.get("client_names", ())
        return names[client] if names else client

    @property
    def differ(self) -> bool:
        """Tell whether clients scale features by other numbers, or number classes otherwise."""
        return any((row != row[0]).any() for row in self.rows.values())

    def _exported(self, client: int) -> dict[str, Tensor] | None:
        """Return a client's arrays in the run's folder, as a folder that was made on another machine has them."""
        file = self._file(client)
        if not file.is_file():
            return None
        about, arrays = read_model(file)
        same = (about["run"], about["round"], about["client"]) == (self.task["state_key"], self.checkpoint[0], client)
        return arrays if same else None

    def _file(self, client: int | None) -> Path:
        return self.folder.path / PERSONAL / f"{GLOBAL_NAME if client is None else f'client-{client:05d}'}.json"

    def write(self, client: int | None, arrays: dict[str, Tensor], form: str) -> Path:
        """Write a client's model, or the one of all, with its description; and as a program, whose path it returns."""
        file = write_files(self._file(client), self._about(client), arrays)  # private, as the same arrays in state-dir
        path = file.with_suffix(FORMS[form])
        if form != STATE_DICT:
            content = as_program(self.module(client, arrays), self.shape, self.vocabulary, form)
            write_atomically(path, content, private=True)
        return path

    def _about(self, client: int | None) -> dict[str, Any]:
        """Describe a model's inputs and outputs, and its accuracy if it was tested at the end of the run."""
        config, task, last = self._config(client), self.task, self.checkpoint[0]
        count = self._classes(client)
        names = task.get("class_names") or [str(number) for number in range(count)]
        at_end = self.config.run.test_at == "end" and client is not None
        tested = self.folder.history().tests().get(last, {}).get(str(client)) if at_end else None
        return {
            **{key: row.tolist() for key, row in self._numbers(client).items()},
            "fedpfl": __version__, "run": task["state_key"], "round": last,
            "client": client, "client-name": "" if client is None else str(self.name(client)),
            "method": config.run.method, "model": model_name(config, self.shape, self.vocabulary),
            "input-shape": task["input_shape"],
            "num-classes": count, "class-names": self._class_names(client, names)[:count],
            "feature-names": task.get("feature_names", []), "vocabulary": self.vocabulary,
            "scaling": TOKENS if self.vocabulary else task.get("scaling", ""),
            "normalize": config.data.normalize, "loss": config.training.labels, "why": "",
            "tested": {} if tested is None else {"accuracy": tested},
        }  # fmt: skip

    def _config(self, client: int | None) -> Config:
        return self.config if client is None else _of_client(self.config, self.task, client)

    def _classes(self, client: int | None) -> int:
        return int(self.task["num_classes"] if client is None else self.classes[client])

    def _class_names(self, client: int | None, names: Sequence[str]) -> list[str]:
        if client is None or "classes" not in self.rows:
            return [*names]
        return names_of_classes(self.rows["classes"][client].tolist(), names)

    def _numbers(self, client: int | None) -> dict[str, np.ndarray]:
        """Return the numbers that change a client's features, or those of all where they are the same."""
        if client is None and self.differ:
            return {}
        return {key: row[client or 0] for key, row in self.rows.items() if key != "classes"}

    def module(self, client: int | None, arrays: Mapping[str, Tensor]) -> nn.Module:
        """Return the plain model with a client's arrays, or with those that all clients share."""
        config = self._config(client)
        seed_model(config)  # a model may have drawn more than its arrays
        plain = untrained(config, self.shape, self._classes(client), self.vocabulary)
        plain.load_state_dict(arrays)
        original = models.original_module(plain).eval()
        if numbers := {key: torch.as_tensor(row, dtype=torch.float32) for key, row in self._numbers(client).items()}:
            original.register_forward_pre_hook(partial(_prepared, numbers))
        return original

    def shared(self, client: int | None = None) -> dict[str, Tensor]:
        """Return the plain model's arrays of those that all clients share."""
        config, path = self._config(client), self.folder.path / GLOBAL
        count = self._classes(client)
        plain = untrained(config, self.shape, count, self.vocabulary)
        stored = {name: torch.from_numpy(array) for name, array in read_arrays(path).items()} if path.is_file() else {}
        if (arrays := _shared_model(plain, stored)) is not None:
            return arrays
        # Frozen arrays and whole numbers, which nobody sends, are the initial ones.
        still = dict(frozen(assemble(config, self.shape, count, vocabulary=self.vocabulary)[0]))
        start = plain_model(config, self.shape, count, self.vocabulary)
        whole = {name: array for name, array in start.state_dict().items() if is_whole(array)}
        arrays = _shared_model(start, {**whole, **still, **stored})
        if arrays is None:
            method = self.config.method.name
            raise NoPlainModel(f"{method} has no model that all clients share; export a client's model")
        return complete_arrays(start, arrays)


def _prepared(numbers: Mapping[str, Tensor], module: nn.Module, positional: tuple[Any, ...]) -> Any:
    """Return the arguments of a module whose first one, a batch as the data have it, has no gaps and is scaled."""
    x, *others = positional
    numbers = {key: values.to(x.device) for key, values in numbers.items()}
    if FILL in numbers:
        x = torch.where(torch.isnan(x), numbers[FILL].reshape(1, -1, *[1] * (x.dim() - 2)), x)
    if Scaling._fields[0] in numbers:
        scaling: Any = Scaling(*(numbers[key] for key in Scaling._fields))  # type: ignore[arg-type]
        x = scaling.applied(x)
    return (x, *others)


def _of_client(config: Config, task: Mapping[str, Any], client: int) -> Config:
    """Return the settings with a client's model, also where its device has named it."""
    model = task.get("models", {}).get(str(client))
    if model is None:
        return config.of_client(client)
    if split_width(model)[0] not in ("", *choices()):
        # Its name came over the network: code that it names is not run here.
        raise ConfigError("model", model, f"is the device's own model of client {client}, which is built only there")
    return config.with_model(model)


def _shared_model(model: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return a model's arrays of those that all clients share; None if these are not all that it needs."""
    wanted = model.state_dict()
    counts = {name: torch.zeros_like(array) for name, array in wanted.items() if name.endswith(UNUSED_BUFFER)}
    also = {name: stored[first] for first, *others in tied(model) if first in stored for name in others}
    arrays = {name: array for name, array in {**counts, **also, **stored}.items() if name in wanted}
    fits = all(arrays[name].shape == array.shape for name, array in wanted.items() if name in arrays)
    return arrays if arrays.keys() == wanted.keys() and fits else None


class _EmptyModel(NamedTuple):
    """A model to load clients into, its first personal arrays, and the model without the method's changes."""

    model: nn.Module
    sharing: Sharing
    initial: dict[str, np.ndarray]
    plain: nn.Module


def _blank(
    config: Config, input_shape: tuple[int, ...], num_classes: int, vocabulary: int, stored: dict[str, np.ndarray]
) -> _EmptyModel:
    model, sharing = assemble(config, input_shape, num_classes, vocabulary=vocabulary)
    initial = sharing.get_personal()
    sharing.accept(stored)
    plain = plain_model(config, input_shape, num_classes, vocabulary)
    return _EmptyModel(model, sharing, initial, plain)


def as_program(module: nn.Module, shape: tuple[int, ...], vocabulary: int, form: str) -> bytes:
    """Return a model as a program for batches of any size; :class:`NoPlainModel` if the form cannot hold it."""
    rng, size = generator(0, "export"), (SAMPLES, *shape)
    x = torch.from_numpy(rng.integers(0, vocabulary, size) if vocabulary else rng.random(size, np.float32))
    content, why = traced(module, module, x) if form == "torchscript" else as_onnx(module, x)
    if content is None:
        raise NoPlainModel(why)
    return content


def as_onnx(model: nn.Module, x: Tensor) -> tuple[bytes | None, str]:
    """Return a model as ONNX, whose input x has a free first dimension; or None, and why it cannot be.

    ``x`` is a batch with which onnxruntime's outputs are compared.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError as error:
        raise FedpflError(MISSING) from error

    with tempfile.TemporaryDirectory(prefix="fedpfl-") as folder, warnings.catch_warnings():
        path = Path(folder) / "model.onnx"
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        free = {0: torch.export.Dim("n", min=1, max=MAX_BATCH)}
        try:
            torch.onnx.export(
                model, (x[:TRACED],), str(path), input_names=["x"], output_names=["y"], dynamo=True,
                dynamic_shapes=(free,), external_data=False, verbose=False,
            )  # fmt: skip
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError, ValueError) as error:
            return None, f"ONNX cannot hold it ({str(error).strip().partition(chr(10))[0][:200]})"
        content = path.read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (x[:1], torch.cat([x, x[:1]])):
        with torch.no_grad():
            expected = model(batch).numpy()
        if not np.allclose(expected, session.run(None, {"x": batch.numpy()})[0], rtol=1e-3, atol=1e-4):
            return None, "its ONNX export predicts something else"
    return content, ""
