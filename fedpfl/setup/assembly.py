"""Builds what server and clients must agree on: the model, with the method's changes, and which arrays travel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Callable, Iterable, Mapping

import torch
from torch import nn

from ..core import user_code
from ..core.errors import ConfigError
from ..core.extra_arrays import Extras
from ..core.frozen import frozen
from ..core.layout import RUNNING_STATISTICS, Layout
from ..core.metrics import MASKS, NEXT_TOKEN, TARGETS
from ..core.model_state import hooked_parameters
from ..core.process import computing
from ..core.rng import seed_global, torch_seed
from ..core.server_view import Client, Federation, new_clients
from ..core.sharing import Sharing, tied
from ..methods.base import Method, require_returned
from ..models.builder import build, chosen
from ..models.registry import BaseHeadModel
from ..rules import Rule
from .config import Config
from .options.evaluate_global import EvaluateGlobalOption
from .options.privacy import PrivacyOption, PrivacySettings
from .options.robust import RobustOption
from .options.server_step import ServerStepOption
from .options.trainable import InitialWeightsOption
from .trainable import freeze, trainable

# Types of arrays that are exact as float32, and of others that a client can store.
SHAREABLE = (torch.float32, torch.float16)
STORABLE = (
    torch.float64, torch.complex64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def seed_model(config: Config) -> None:
    """Set the global generators to where a run's model is built."""
    seed_global(torch_seed(config.run.seed, "model"))


def plain_model(config: Config, input_shape: tuple[int, ...], num_classes: int, vocabulary: int = 0) -> BaseHeadModel:
    """Build the model of a run without the method's changes, with initial weights, adapters and frozen arrays."""
    seed_model(config)
    plain = untrained(config, input_shape, num_classes, vocabulary)
    gives = getattr(plain, "gives_for", "sample")  # a model without head is refused later, by methods that need one
    wanted = {MASKS: "pixel", NEXT_TOKEN: "token"}.get(config.training.labels, "sample")
    if gives != wanted:
        allowed = f"gives numbers for each {gives}, but loss = {config.training.loss} needs them for each {wanted}"
        raise ConfigError("model", config.run.model, allowed)
    if getattr(plain, "ends_in_sigmoid", False) and config.training.labels != TARGETS:
        allowed = "gives probabilities; leave out the sigmoid at its end, since losses need logits"
        raise ConfigError("model", config.run.model, allowed)
    padding = getattr(getattr(plain, "base", plain), "padding_token", 0)
    if padding and config.data.tokenizer:
        allowed = f"pads texts with 0, but {config.run.model} pads with {padding}; give numbers instead of texts"
        raise ConfigError("tokenizer", config.data.tokenizer, allowed)
    layers = _layers_of_tied(plain)
    if config.wants(InitialWeightsOption):
        from ..models.weight_files import initial

        plain = initial(config, plain)
    plain = trainable(config, plain)
    _require_tied(layers, plain, "trainable", str(config.flat()["trainable"]))
    return plain


def untrained(config: Config, input_shape: tuple[int, ...], num_classes: int, vocabulary: int = 0) -> BaseHeadModel:
    """Build the model that a run's settings name, without adapters and with no file's weights."""
    tokens = config.training.labels == NEXT_TOKEN
    return build(config.run.model, input_shape, num_classes, vocabulary, config.run.download_weights, tokens)


def model_name(config: Config, input_shape: tuple[int, ...], vocabulary: int = 0) -> str:
    """Return the name of the model that a run's setting stands for with such inputs."""
    return chosen(config.run.model, input_shape, vocabulary, config.training.labels == NEXT_TOKEN)


def assemble(
    config: Config, input_shape: tuple[int, ...], num_classes: int, device: str = "cpu", vocabulary: int = 0
) -> tuple[nn.Module, Sharing]:
    """Build the model that every participant of a run starts from, and its sharing: the same arrays everywhere.

    ``input_shape`` is (channels, height, width) of an image, (length,) of a text with ``vocabulary`` different tokens,
    or the shape of a feature array.
    """
    # Some initialisations (orthogonal ones) are products of matrices: they have the same bits on any number of cores.
    with computing(1):
        return _assembled(config, input_shape, num_classes, device, vocabulary)


def _assembled(
    config: Config, input_shape: tuple[int, ...], num_classes: int, device: str, vocabulary: int
) -> tuple[nn.Module, Sharing]:
    plain = plain_model(config, input_shape, num_classes, vocabulary)
    still = [name for name, _ in frozen(plain)]
    if still and "trainable" in config.method.refuses:
        allowed = f"freezes {still[0]} (requires_grad=False); {config.run.method} {config.method.refuses['trainable']}"
        raise ConfigError("model", config.run.model, allowed)
    if not any(True for _ in plain.parameters()):
        raise ConfigError("model", config.run.model, "freezes all its parameters (requires_grad=False): nothing trains")
    if config.method.personal_head:
        from fedpfl.models.parts import cut

        cut(plain)  # which refuses a model without a head
    names, layers = plain.state_dict().keys(), _layers_of_tied(plain)
    if (hooked := hooked_parameters(plain)) and type(config.method).build is not Method.build:
        allowed = f"has a hook on the gradient of {hooked[0]}, which the copies that {config.run.method} makes lack"
        raise ConfigError("model", config.run.model, f"{allowed}: use a layer's register_full_backward_hook")
    guarded = partial(user_code.guarded, "method")
    model = guarded(f"{config.method.name}.build", config.method.build)(plain)
    require_returned(config.method, "build", model, nn.Module, "a torch.nn.Module")
    stopped = {name for name, array in model.named_parameters(remove_duplicate=False) if not array.requires_grad}
    if stopped:  # by the method, as the model itself may
        freeze(model, lambda name: name not in stopped)
        if not any(True for _ in model.parameters()):
            raise ConfigError("method", config.run.method, "freezes all parameters in `build`: nothing trains")
    _require_tied(layers, model, "method", config.run.method)
    lost = names - model.state_dict().keys() - {name for name, _ in frozen(model)}
    if type(config.method).export is Method.export and (gone := lost - {name for name, _ in frozen(model)}):
        allowed = f"removes {min(gone)} in `build`, but has no `export` that gives it back: write one, or "
        raise ConfigError("method", config.run.method, f"{allowed}raise fedpfl.NoPlainModel in it")
    if config.run.initial_weights and lost:
        allowed = f"must be empty for {config.run.method}, which draws {min(lost)} and other arrays itself"
        raise ConfigError("initial-weights", config.run.initial_weights, allowed)
    model.unkept, model.in_common = plain.unkept, plain.in_common  # type: ignore[assignment]
    model.hooks_gradients = getattr(plain, "hooks_gradients", False)  # type: ignore[assignment]
    model.ends_in_log_softmax = plain.ends_in_log_softmax  # type: ignore[assignment]
    # Convolutions on CPUs and on tensor cores are fastest with the channels last in memory.
    order = torch.contiguous_format if plain.contiguous else torch.channels_last
    model = model.to(device=device, memory_format=order)  # type: ignore[call-overload]
    travels = guarded(f"{config.method.name}.is_shared", config.method.travels)
    _require_tied_alike(model, lambda name: travels(name, model), config.run.method)
    sharing = guarded(f"{config.method.name}.sharing", config.method.sharing)(model)
    _require_exact(config.run.model, model, sharing)
    disturbed = [name for name in sharing.layout.names if name in (sharing.layout.buffers or ())]
    if config.wants(PrivacyOption) and (buffers := [n for n in disturbed if not n.endswith(RUNNING_STATISTICS)]):
        allowed = f"would add noise to {buffers[0]}, a buffer: use nn.BatchNorm, or a method that does not share it"
        raise ConfigError("dp-noise-multiplier", config.of(PrivacySettings).dp_noise_multiplier, allowed)
    if not sharing.shared and any(travels(name, model) for name in still):
        allowed = f"leaves nothing that {config.run.method} shares: every client would train alone"
        if getattr(plain, "still", ()):
            raise ConfigError("model", config.run.model, f"freezes parameters (requires_grad=False) and {allowed}")
        raise ConfigError("trainable", config.flat()["trainable"], allowed)
    return model, sharing


def _require_exact(name: str, model: nn.Module, sharing: Sharing) -> None:
    """Refuse arrays that would not stay what they are where they travel, as float32, or are stored."""
    for array, tensor in {**model.state_dict(keep_vars=True), **dict(frozen(model))}.items():
        kind = str(tensor.dtype).partition(".")[2]
        if array in sharing.shared and tensor.dtype not in SHAREABLE:
            of_constant = "requires_grad=False" if isinstance(tensor, nn.Parameter) else "persistent=False"
            allowed = f"its array {array} is {kind}, but shared arrays travel as float32: use that, or {of_constant}"
            raise ConfigError("model", name, f"{allowed} if it never changes")
        if tensor.dtype not in (*SHAREABLE, *STORABLE):
            raise ConfigError("model", name, f"its array {array} is {kind}, which cannot be stored; use float32")


def _require_tied_alike(model: nn.Module, travels: Callable[[str], bool], method: str) -> None:
    """Refuse to share only some names of one parameter."""
    for first, *others in tied(model):
        for other in (name for name in others if travels(name) != travels(first)):
            allowed = f"shares only one of {first} and {other}, which are one parameter of the model (tied weights)"
            raise ConfigError("method", method, allowed)


def _layers_of_tied(model: nn.Module) -> list[dict[str, nn.Module]]:
    """Return, for each parameter with several names, the layer that each name belongs to."""
    return [{name: model.get_submodule(name.rpartition(".")[0]) for name in names} for names in tied(model)]


def _require_tied(layers: list[dict[str, nn.Module]], model: nn.Module, key: str, value: str) -> None:
    """Refuse a change of the model that made several arrays of a parameter with several names."""
    there, arrays = dict(model.named_modules(remove_duplicate=False)), model.state_dict(keep_vars=True)
    for names in layers:
        kept = all(there.get(name.rpartition(".")[0]) is layer for name, layer in names.items())
        if not kept or len({id(arrays.get(name)) for name in names}) > 1:
            allowed = f"would separate {' and '.join(names)}, which are one parameter of the model (tied weights)"
            raise ConfigError(key, value, allowed)


def extras_of(config: Config, model: nn.Module, sharing: Sharing) -> Extras:
    """Return the arrays that travel alongside the shared vector in a run: the method's extras, and those of options."""
    more = []
    if config.wants(EvaluateGlobalOption):
        from .mean_model import extras

        more = extras(config, model, sharing)
    return Extras([*config.method.extras, *more], model, sharing.layout.size, config.run.wire_dtype)


def make_rule(
    config: Config, clients: Iterable[Client], sharing: Sharing, layouts: Mapping[int, Layout] | None = None
) -> Rule:
    """Return the rule of the run's method, as it stands before round 1, with the ``layouts`` of clients with slices."""
    run, aggregation = config.run, config.method.aggregation
    listed = tuple(sorted(clients, key=lambda client: client.id))
    federation = Federation(
        clients=listed,
        layout=sharing.layout,
        held_out=frozenset(new_clients(run.seed, run.new_clients, len(listed))) | {c.id for c in listed if c.absent},
        seed=run.seed,
        wire_dtype=run.wire_dtype,
        layouts=layouts or {},
    )
    rule = aggregation.rule(federation, sharing.get_shared(), **aggregation.options, **sharing.rule_options)
    if config.wants(ServerStepOption):
        from .server_step import add_step

        add_step(config, rule)
    if config.wants(RobustOption):
        from .robust_rule import make_robust

        make_robust(config, rule)
    if config.wants(PrivacyOption):
        rule.federation = replace(rule.federation, noisy=True)
    return rule
