"""A client's part of a round, without Flower: receive, train or test, answer.

An :class:`Engine` is the warm part of a process (data, model, settings); every client that the process runs uses it,
one after the other. It is what the ClientApp calls, in a simulation as on a device.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial, wraps
from logging import getLogger
from typing import Any, Callable, ContextManager, Mapping, NamedTuple, Sequence, TypeVar, cast
from weakref import ReferenceType, proxy, ref

import numpy as np
import torch
from torch import nn

from ..core.errors import ConfigError
from ..core.extra_arrays import CLIENT, SERVER, Extras
from ..core.layout import Layout
from ..core.metric_bounds import EVERY_REPLY
from ..core.metrics import CLASSES, IN_WORDS, LABELS, MASKS, NEXT_TOKEN, TARGETS
from ..core.model_state import MethodState, ModelParts, ModelState, draws, is_usual
from ..core.name_lists import digest, sent, shown
from ..core.payload import UNWRITTEN, Payload
from ..core.rng import generator, seed_global, torch_seed
from ..core.samples import Samples
from ..core.settings import Value
from ..core.sharing import Received, RoundStart, Sharing
from ..data.federation import FederatedData
from ..methods.base import LocalRound, Method, common_model, require_returned
from ..setup.all_settings import code_in
from ..setup.assembly import assemble, extras_of
from ..setup.config import Config, told_as_clients_model
from ..setup.options.after_the_end import PersonaliseOption
from ..setup.options.privacy import PrivacySettings
from ..training.device import computing_as, require_device, threads_of
from ..training.loop import Score, evaluate, run_phase, sharing_steps
from ..training.measure import find_working
from ..training.phase import Forward, Phase
from ..training.settings import AUGMENTATIONS
from .option_hooks import ClientPart, LazyRound, Momentum, TrainedArrays, Training
from .options import of_client, parts_of
from .options.after_the_end import answer
from .policy import Policy, answer_once, guard
from .samples_on_gpu import PlacedSamples
from .scores import are_finite, metrics_of, require_finite, train_loss
from .state import ClientState

logger = getLogger("fedpfl.client")

# Where a method may draw random numbers that no phase and no test has seeded.
EARLY_HOOKS = (
    "prepare", "schedule", "conclude", "adaptation", "personalised", "global_model", "export", "personal_part",
)  # fmt: skip
# Of a GPU's free memory, for the samples that stay there.
SHARE_OF_SAMPLES = 0.3
_Round = TypeVar("_Round", bound=LocalRound)
Handler = Callable[["Engine", int, Payload], Payload]


def _computing(handler: Handler) -> Handler:
    """Have a handler of messages compute as the run says, whatever other runs have left in this process."""

    @wraps(handler)
    def run(engine: Engine, client: int, message: Payload) -> Payload:
        with engine.computing():
            engine.use_model_of(client)
            engine.method_state.restore()
            return handler(engine, client, message)

    return run


class _Built(NamedTuple):
    """A model of the run, and what follows from it for all clients that have it.

    ``stays``: a test leaves it as it was loaded. ``draws``: training or a test may draw from global generators.
    ``forwards``: the forward passes of the personalised and the global model, if all tests use the same ones.
    """

    config: Config
    model: nn.Module
    parts: ModelParts
    sharing: Sharing
    extras: Extras
    first_personal: Mapping[str, np.ndarray]
    stays: bool
    draws: bool
    model_state: ModelState
    method_state: MethodState
    forwards: tuple[Forward, Forward | None] | None


class Engine:
    """Data, model and settings of one run in one process.

    ``of_one_client``: whether ``data`` are this device's own, of one client; ``num_clients`` counts the whole
    federation. ``own_model`` is the model that the device's owner has named. The model of ``client`` is made at once,
    other ones when they are needed.
    """

    def __init__(
        self, config: Config, data: FederatedData, num_clients: int, of_one_client: bool = False, client: int = 0,
        own_model: str = "",
    ) -> None:  # fmt: skip
        self.threads = threads_of(config.training)
        require_device(config.training)
        _require_fitting(config, data)
        self.data = data
        self.num_clients = num_clients
        self.of_one_client = of_one_client
        classes = () if data.has_no_class_names else data.class_names
        named = {"columns": sent(data.feature_names), "classes": digest(classes)}
        self._names = {key: text for key, text in named.items() if text}
        method = type(config.method)
        self._may_draw_early = any(getattr(method, hook) is not getattr(Method, hook) for hook in EARLY_HOOKS)
        # What computes the metrics besides accuracy and loss, by their names.
        self.measures: Mapping[str, Any] = {}
        if config.run.metrics:
            self.measures = find_working(
                config.run.metrics, data.num_classes, config.training.labels, config.data.permute_labels,
                config.run.choose_by,
            )  # fmt: skip
        self._own_model = own_model
        self._common = config.with_model(own_model) if own_model else config
        self._own_settings = of_client(config, data.client_names)
        ours = method.__module__.startswith("fedpfl.") and not code_in(config.flat())
        self._has_foreign_code = data.reads_later or not ours
        self._built: dict[str, _Built] = {}
        # The model that the last message tested, and the vector that it still holds.
        self._tested: tuple[nn.Module, ReferenceType[np.ndarray]] | None = None
        self._placed: Any = None
        # Samples that methods have in hand, by client, with the number of their changes before.
        self._lent: dict[int, tuple[Samples, int, int]] = {}
        if config.training.device == "cuda":
            room = int(SHARE_OF_SAMPLES * torch.cuda.mem_get_info()[0])
            self._placed = PlacedSamples("cuda", room, config.data.normalize if data.is_image else None)
        self.parts: Sequence[ClientPart] = ()
        self.use_model_of(client)
        # What options do here, and what one has in the place of training.
        self.parts = parts_of(self, config)
        for option in self.parts:
            option.made()
        self.instead: Callable[[Engine, int, Payload], Payload] | None = None
        if config.wants(PersonaliseOption):
            self.instead = answer

    def use_model_of(self, client: int) -> None:
        """Have the model of a client (``client-models``) in use, which is made when it is first needed."""
        name = self._common.run.model_of(client)
        if new := name not in self._built:
            self._built[name] = self._build(name, client)
        self._now = self._built[name]
        self.config, self.model, self.sharing = self._now.config, self._now.model, self._now.sharing
        self.extras, self.method_state = self._now.extras, self._now.method_state
        if self._own_settings is not None:
            self.config = self._own_settings(self.config, client)
        if new:
            for option in self.parts:
                option.made()

    def _build(self, name: str, client: int) -> _Built:
        """Build a model, which ``client`` has."""
        if (owner := guard()) is not None:
            owner.check_model(name)
        config, data = self._common.of_client(client), self.data
        with told_as_clients_model(name != self._common.run.model):
            shape, device = data.input_shape, config.training.device
            model, sharing = assemble(config, shape, data.num_classes, device, data.vocabulary)
        if not model.ends_in_log_softmax:
            config.training.require_of_logits(data.num_classes)
        # Where no hook of the method's makes them, they are the same in each test.
        kind, forwards = type(config.method), None
        if (kind.personalised, kind.global_model) == (Method.personalised, Method.global_model):
            forwards = model, common_model(config.method, model)
        return _Built(
            config, model, ModelParts(model), sharing, extras_of(config, model, sharing), sharing.get_personal(),
            stays=not self._may_draw_early and not sharing.personal and is_plain(model),
            draws=self._has_foreign_code or draws(model),
            model_state=ModelState(model), method_state=MethodState(config.method), forwards=forwards,
        )  # fmt: skip

    @property
    def common(self) -> Config:
        """The settings of all clients."""
        return self._common

    def computing(self) -> ContextManager[None]:
        """Return the context of all that this engine computes: the threads, number types and precision of its run."""
        return computing_as(self._common.training, self.threads)

    def state_of(self, key: str, client: int) -> ClientState:
        """Return where a client keeps its arrays in the run with a key."""
        return ClientState(self.config.run.state_dir, key, client)

    @_computing
    def query(self, client: int, message: Payload) -> Payload:
        """Describe the client's task; no array of the client leaves it."""
        train_samples, test_samples = self.data.sizes(self.place(client))
        self.sharing.accept({})
        # All clients must divide common data alike; data of a device's own are not divided.
        common: dict[str, Value] = {"division": self.data.checksum, "data": self.data.contents}
        described: dict[str, Value] = {**self._names, **({} if self.of_one_client else common)}
        if message.config.get("in-turn") is True:  # a device, not one of a simulation's many clients
            key = str(message.config.get("state-key", ""))
            state = self.state_of(key, client)
            described["identity"] = state.secret()
            if self.of_one_client:
                described["data"] = state.sealed(self.data.contents)
        if self._own_model:
            described.update(model=self._own_model, extras=self.extras.to_text())
        if self.data.remarks:
            described["remarks"] = "\n".join(self.data.remarks)
        return Payload(
            config={
                **described,
                "client": client,
                "num-clients": self.num_clients,
                "input-shape": shown(self.data.input_shape),
                "num-classes": self.data.num_classes,
                "vocabulary": self.data.vocabulary,
                "threads": self.threads,
                "layout": self.sharing.layout.to_text(),
            },
            metrics={"train-samples": train_samples, "test-samples": test_samples},
        )

    @_computing
    def train(self, client: int, message: Payload) -> Payload:
        """Run the method's schedule from the received shared and the stored personal arrays."""
        if self.instead is not None:
            return self.instead(self, client, message)
        training = self.begin_training(client, message, self.config.method)
        losses = self.run_phases(training.phases, training.local, "batches", momentum=training.momentum)
        return self.end_training(training, losses)

    def begin_training(self, client: int, message: Payload, method: Method, later: bool = False) -> Training:
        """Load a client's model, with ``later`` when it is asked for, and have its method prepare a round's phases."""
        started = time.perf_counter()
        self.use_model_of(client)
        beginning = None
        local: LocalRound
        if not later or self.needs_model:
            state, local = self.load(client, message)
        else:
            state, waiting, beginning = self.read(client, message, LazyRound)
            waiting.wait_for(beginning.load)
            local = waiting
            if self._may_draw_early:
                self.seed(local, "prepare")
        method.prepare(local)
        training = Training(state, local, method, (), {}, None, started, beginning)
        for option in self.parts:
            training = option.begin(training)
        return training._replace(phases=self.schedule(local, method))

    def schedule(self, local: LocalRound, method: Method) -> list[Phase]:
        """Return the phases of a client's round, which share ``local-steps``."""
        training = self.config.training
        phases = method.schedule(local)
        require_returned(method, "schedule", phases, list, "a list of fedpfl.Phase")
        for phase in phases:
            require_returned(method, "schedule", phase, Phase, "a list of fedpfl.Phase")
        trained, names = [phase for phase in phases if phase.epochs], self._now.parts.parameter_names
        if trained and not any(phase.train(name) for phase in trained for name in names):
            allowed = f"no phase of its schedule trains a parameter of the model, which are {names[0]}, …, {names[-1]}"
            raise ConfigError("method", method.name, allowed)
        names = names + self._now.parts.frozen_names  # which `trainable` has taken from a phase
        for number, phase in enumerate(phases, 1):
            if phase.epochs and not any(map(phase.train, names)):
                allowed = f"schedule: phase {number} trains no parameter of the model, {names[0]}, …, {names[-1]}"
                raise ConfigError("method", method.name, allowed)
        return sharing_steps(phases, len(local.samples.y), training) if training.local_steps else phases

    def end_training(
        self,
        training: Training,
        losses: Sequence[float | None],
        taken: Callable[[], TrainedArrays | None] = lambda: None,
    ) -> Payload:
        """Store what the client keeps and return its reply; ``taken`` gives arrays that need no copying."""
        state, local, method = training.state, training.local, training.method
        message = local.message
        extra = method.conclude(local)
        require_returned(method, "conclude", extra, Payload, "a fedpfl.Payload")
        advice = "what a client keeps is a buffer that `build` adds to the model"
        if kept := self.method_state.changed(method):
            why = "which no other process and no resumed run has: each turn of a client begins without"
            logger.warning(
                "fedpfl: the method %s keeps %s on itself, %s; %s", method.name, ", ".join(kept), why, advice
            )
        if changes := self.method_state.changed_outside():
            why = "which all clients of a process share and no other process has: numbers depend on how many there are"
            logger.warning("fedpfl: the method %s changes %s, %s; %s", method.name, ", ".join(changes), why, advice)
        self._require_samples_kept(method, local.client)
        trained = taken()
        if trained is None:
            personal, shared = self.sharing.get_personal(), self.sharing.get_shared()
            finite = are_finite([shared, *personal.values()])
        else:
            assert trained.shared is not None
            personal, shared, finite = dict(trained.personal), trained.shared, trained.finite
        # Neither sent nor kept: the client's last good state is where its next round starts.
        require_finite(local, extra.arrays.values(), training.phases, finite)
        rule = method.aggregation.rule
        if not rule.takes_shared:
            shared = self.sharing.layout.unpack(message.arrays)
        seconds, measured = time.perf_counter() - training.started, dict[str, float]()
        for option in self.parts:
            measured.update(option.end(training))
        if reserved := {*extra.metrics} & (EVERY_REPLY | measured.keys()) or {*extra.config} & {"layout"}:
            allowed = f"conclude returns {min(reserved)!r}, which is a name of fedpfl's own in replies"
            raise ConfigError("method", method.name, allowed)
        state.save({**personal, **training.kept}, local.round, int(message.config["personal-round"]))
        # What the client keeps is as it was trained.
        for option in self.parts:
            shared, extra = option.send(training, shared, extra)
        if (owner := guard()) is not None and owner.counts_answers:
            shared, extra = self._answered(owner, training, shared, extra)
        vector = self.sharing.layout.pack(shared, self.config.run.wire_dtype) if rule.takes_shared else {}
        return Payload(
            metrics={
                **extra.metrics,
                **measured,
                "train-samples": len(local.samples.y),
                **train_loss(losses),
                "train-seconds": seconds,
            },
            arrays={**self.extras.pack(extra.arrays, SERVER), **vector},
            config={**extra.config, "layout": self.sharing.layout.to_text()},
        )

    def _answered(
        self, owner: Policy, training: Training, shared: np.ndarray, extra: Payload
    ) -> tuple[np.ndarray, Payload]:
        """Return the arrays with which the client has answered this round first; they are counted."""
        taken = training.method.aggregation.rule.takes_shared and shared.size
        arrays = {**extra.arrays, "shared": shared} if taken else extra.arrays
        if not arrays:
            return shared, extra
        settings = self.config.of(PrivacySettings)
        noise = settings.dp_noise_multiplier if settings.dp_where == "client" else 0.0
        answer = answer_once(owner, training.state.folder, training.local.round, noise, arrays)
        return answer.pop("shared", shared), replace(extra, arrays=answer)

    @_computing
    def evaluate(self, client: int, message: Payload) -> Payload:
        """Test the client's personalised model, also on validation samples, and the global one."""
        started = time.perf_counter()
        state, local = self.load(client, message, to_test=True)
        method, metrics = self.config.method, {}
        method.prepare(local)
        samples = self.test_samples(client)
        adaptation = method.adaptation(local)
        if any(module.training for module in self._now.parts.modules):  # rarely: a worker tests many clients in turn
            self.model.eval()
        personalised, shared = self._now.forwards or (method.personalised(self.model), common_model(method, self.model))
        # Before the model adapts: the next message loads every array again, so the adapted one needs no undoing.
        if shared is not None and (adaptation or shared is not personalised):
            metrics.update(metrics_of("global", self.score(shared, local, samples)))
        for option in self.parts:
            metrics.update(option.test(local, samples))
        if adaptation:
            self.run_phases(adaptation, local, "adaptation", factor=1.0)
            self.model.eval()
        score = self.score(personalised, local, samples)
        metrics.update(metrics_of("personalised", score))
        held = self.validation_samples(client)
        validation = self.score(personalised, local, held) if len(held.y) else None
        metrics.update({} if validation is None else metrics_of("validation", validation))
        if shared is not None and "global-correct" not in metrics:
            metrics.update(metrics_of("global", score))
        self._require_samples_kept(method, client)
        metrics["evaluate-seconds"] = time.perf_counter() - started
        failures = [option.tested(state, local, personalised, score, validation) for option in self.parts]
        if self._now.stays and not adaptation:
            self._tested = self.model, ref(self.sharing.layout.unpack(message.arrays))
        unwritten = "; ".join(filter(None, failures))
        return Payload(metrics=metrics, config={UNWRITTEN: unwritten} if unwritten else {})

    def adapted(self, local: LocalRound, method: Method | None = None) -> Forward:
        """Adapt the loaded model to a test, at the unscheduled rate; return the forward pass that predicts."""
        method = method or self.config.method
        self.run_phases(method.adaptation(local), local, "adaptation", factor=1.0)
        self.model.eval()
        return method.personalised(self.model)

    @property
    def sends_as_trained(self) -> bool:
        """Whether clients send their shared vectors as these were trained: without noise, and unrounded."""
        return self.config.run.wire_dtype == "float32" and not any(option.changes_shared for option in self.parts)

    @property
    def own_training(self) -> str:
        """What tells apart clients that train with settings of their own."""
        return "" if self._own_settings is None else repr(self.config.training)

    @property
    def draws_at_the_end(self) -> bool:
        """Whether a method may draw random numbers after the training."""
        return type(self.config.method).conclude is not Method.conclude

    @property
    def needs_model(self) -> bool:
        """Whether more than the method asks for a client's model in a round of training."""
        return type(self.sharing) is not Sharing or any(option.needs_model for option in self.parts)

    def run_phases(
        self, phases: Sequence[Phase], local: LocalRound, purpose: str, factor: float | None = None,
        momentum: Momentum | None = None,
    ) -> list[float | None]:  # fmt: skip
        """Run phases at the round's rates, or at a ``factor``; return the mean loss of each in its last epoch."""
        # A phase without epochs does not count: a schedule that is FedAvg's in effect draws FedAvg's batches.
        phases = [phase for phase in phases if phase.epochs]
        if phases:
            # Dropout draws from torch's own generator; the batches have theirs.
            self.seed(local, purpose)
        factor = self.rate_factor(local.round) if factor is None else factor
        return [self.run_phase(phase, local, purpose, place, factor, momentum) for place, phase in enumerate(phases)]

    def run_phase(
        self, phase: Phase, local: LocalRound, purpose: str, place: int, factor: float, momentum: Momentum | None
    ) -> float | None:
        """Run the phase at a place in a schedule."""
        rng = generator(local.seed, purpose, local.client, local.round, place)
        velocity = None if momentum is None else momentum.setdefault(place, {})
        training, normalize = self.config.training, self.config.data.normalize
        return run_phase(self.model, phase, local.samples, training, rng, factor, velocity, normalize, self._now.parts)

    def rate_factor(self, number: int) -> float:
        """Return the factor of learning rates in a round; a model is tested as it was before round 1, too."""
        training, rounds = self.config.training, self.config.run.num_server_rounds
        return float(training.rate_factor(max(1, number), rounds))

    def load(self, client: int, message: Payload, to_test: bool = False) -> tuple[ClientState, LocalRound]:
        """Load a client's model: the arrays of a message, and the client's own arrays of that round.

        Many clients are tested in turn with the same vector; ``to_test`` says that it need not be loaded again.
        """
        state, local, _ = self.read(client, message, LocalRound, to_test)
        if self._may_draw_early:
            self.seed(local, "prepare")
        return state, local

    def _fill(self, vector: np.ndarray | None, personal: Mapping[str, np.ndarray]) -> None:
        if vector is not None:
            self.sharing.set_shared(vector)
        self._tested = None
        if self.sharing.personal:
            self.sharing.set_personal(personal)

    def read(
        self, client: int, message: Payload, kind: type[_Round], to_test: bool = False
    ) -> tuple[ClientState, _Round, RoundStart]:
        """Return the results of :meth:`load`, and the model's arrays; a ``LazyRound`` has not loaded them yet."""
        _require_entries(message.config)
        self.use_model_of(client)
        self._now.model_state.restore()
        extras = self.extras.read(message.arrays, CLIENT)
        self.sharing.accept(extras)
        layout = str(message.config["layout"])
        if layout != self.sharing.layout.to_text():
            self.sharing.layout.require(Layout.from_text(layout))
        vector = self.sharing.layout.unpack(message.arrays)
        state = self.state_of(str(message.config["state-key"]), client)
        personal: Mapping[str, np.ndarray] = {}
        if self.sharing.personal:
            trained = int(message.config["personal-round"]) > 0
            personal = self.stored(state, message, client) if trained else self._now.first_personal
        if kind is not LazyRound:
            tested = self._tested
            same = to_test and tested is not None and tested[0] is self.model and tested[1]() is vector
            self._fill(None if same else vector, personal)
        place = self.place(client)
        # A split finer than whole arrays takes the client's own channels out of the model: after it is loaded.
        received = self.sharing.received(vector)
        engine = proxy(self)  # a method, which the engine has, may keep the round
        local = kind(
            client, int(message.config["round"]), self.config.run.seed, self.data.num_classes, self.model,
            received, message,
            train_data=lambda: engine._lend(client),
            train_labels=lambda: engine.data.labels(place),
            layout=self.sharing.layout,
            extras=extras,
            normalize=self.config.data.normalize,
            rounds=self.config.run.num_server_rounds,
        )  # fmt: skip

        def load() -> None:
            engine.use_model_of(client)
            engine.sharing.accept(extras)
            engine._fill(vector, personal)

        return state, local, RoundStart(cast(Received, received), personal, load)

    def stored(self, state: ClientState, message: Payload, client: int) -> dict[str, np.ndarray]:
        """Return the arrays that a message names."""
        return state.load(int(message.config["personal-round"]))

    def kept(self, state: ClientState, local: LocalRound, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays with a prefix that the client stored in its last round."""
        if local.never_trained:
            return {}
        stored = self.stored(state, local.message, local.client)
        return {name: array for name, array in stored.items() if name.startswith(prefix)}

    def test_samples(self, client: int) -> Samples:
        """Return a client's test samples where the model computes."""
        return self._on_device("test", self.place(client))

    def validation_samples(self, client: int) -> Samples:
        """Return a client's validation samples where the model computes."""
        return self._on_device("validation", self.place(client))

    def score(self, forward: Forward, local: LocalRound, samples: Samples) -> Score:
        """Test a forward pass; what it draws from global generators does not depend on what was drawn before."""
        self.seed(local, "test")
        return evaluate(forward, samples, self.config.training.labels, self.measures)

    def seed(self, local: LocalRound, purpose: str) -> None:
        """Seed the global generators, for one purpose of a client's round, unless nothing draws from them."""
        if not self._now.draws:
            return
        seed = torch_seed(local.seed, f"torch {purpose}", local.client, local.round)
        seed_global(seed, self.config.training.device)

    def place(self, client: int) -> int:
        """Return the number of a client's data here."""
        return 0 if self.of_one_client else client

    def _lend(self, client: int) -> Samples:
        """Return a client's training samples to its method, which other rounds and runs have as well."""
        samples = self._on_device("train", self.place(client))
        self._lent[client] = samples, _changes(samples.x), _changes(samples.y)
        return samples

    def _require_samples_kept(self, method: Method, client: int) -> None:
        """Refuse a method that has changed its samples, and prepare them anew."""
        samples, *before = self._lent.pop(client, (None, 0, 0))
        if samples is not None and before != [_changes(samples.x), _changes(samples.y)]:
            self.data.forget()
            message = (
                "changes its client's samples in place, which other rounds have as well: change a copy (x.clone())"
            )
            raise ConfigError("method", method.name, message)

    def _on_device(self, part: str, place: int) -> Samples:
        """Return samples where the model computes; a GPU keeps them, as far as its memory allows."""
        make = partial(getattr(self.data, part), place)
        return self._placed.get((part, place), make) if self._placed else make()


def _require_entries(config: Mapping[str, Any]) -> None:
    """Refuse a message that does not say for which round it is: it comes from the network."""
    for key in ("round", "personal-round"):
        number, least = config.get(key), -1 if key == "personal-round" else 0
        if type(number) is not int or not least <= number < 2**31:
            raise ConfigError(key, number, "must be the number of a round, in each message of the server")
    for key in ("state-key", "layout"):
        if not isinstance(config.get(key), str):
            raise ConfigError(key, config.get(key), "must be a text, in each message of the server")


HANDLERS: dict[str, Handler] = {
    "query": Engine.query,
    "train": Engine.train,
    "evaluate": Engine.evaluate,
}


def _require_fitting(config: Config, data: FederatedData) -> None:
    """Refuse a loss for classes where the data have targets, and the other way round."""
    if config.training.augmentation != AUGMENTATIONS[0] and data.label_kind == MASKS:
        raise ConfigError("augmentation", config.training.augmentation, "must be none: masks would stay as they are")
    ours = config.training.augmentation in AUGMENTATIONS[1:]
    if ours and len(data.input_shape) != 3:
        allowed = f"must be none, or a function of your own, for {data.name}, whose samples are not images"
        raise ConfigError("augmentation", config.training.augmentation, allowed)
    loss, labels = config.training.loss, config.training.labels
    if (TARGETS if labels == LABELS else labels) != data.label_kind:
        hint = f"use {data.label_kind}"
        if data.label_kind == TARGETS:
            hint = "use mse or multi-label; of classes y is whole, y.astype(int), or of one-hot rows y.argmax(1)"
        elif data.label_kind == CLASSES and labels == NEXT_TOKEN:
            hint = "y must be the tokens of x, n×length, or with a tokenizer texts"
        elif data.label_kind == CLASSES:
            hint = "targets are an array y of floats, n or n×k, and masks of whole numbers, n×H×W"
        raise ConfigError("loss", loss, f"does not fit {data.name}, which has {IN_WORDS[data.label_kind]}; {hint}")
    if labels == LABELS:
        data.require_shares()
    config.training.require_fitting(data.num_classes)


def _changes(array: Any) -> int:
    """Return how often a tensor has been changed in place; 0 for samples that are read as they are needed."""
    return int(getattr(array, "_version", 0))


def is_plain(model: nn.Module) -> bool:
    """Return whether all layers are PyTorch's or this package's, which change no array in a test."""
    return all(map(is_usual, model.modules()))
