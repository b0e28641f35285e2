"""A client's part of a round, without Flower: receive, train or test, answer.

An :class:`Engine` is the warm part of a process (data, model, settings); every client that the process runs uses it,
one after the other. It is what the ClientApp calls, in a simulation as on a device.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from logging import getLogger
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Sequence, Tuple, TypeVar, cast
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor, nn

from ..core import custom
from ..core.errors import ConfigError, NoPlainModel, StateError, TrainingDiverged, in_one_line
from ..core.extras import CLIENT, SERVER
from ..core.layout import Layout
from ..core.metrics import COUNT, SUM
from ..core.names import digest, sent
from ..core.payload import EVALUATION_ONLY, Payload
from ..core.rng import generator, seed_global, torch_seed
from ..core.samples import Samples
from ..core.settings import Value
from ..core.sharing import Given, Received, Sharing
from ..data.federation import FederatedData, federated_data, own_data
from ..methods.base import LocalRound, Method, common_model, require_returned, tests_more_than_arrays
from ..options.after_the_end import PersonaliseSettings
from ..options.diagnostics import DiagnosticsSettings
from ..options.privacy import PrivacySettings
from ..setup.assembly import assemble, complete_arrays, extras_of, plain_model
from ..setup.config import Config
from ..setup.mean_model import mean_model_layout
from ..training.augment import AUGMENTATIONS, NO_AUGMENTATION
from ..training.device import require_device
from ..training.loop import Score, evaluate, predict, run_phase
from ..training.metrics import find as find_measures
from ..training.metrics import require_working
from ..training.phase import Forward, Phase
from ..training.schedule import rate_factor
from ..version import __version__
from . import policy
from .device_model import MAX_TEXT, is_alike, plain_module, scaling_of, traced, write_model
from .number import clients_of, own_data_path, stored_number, unnumbered
from .personalise import LOCAL_TRAIN, of_personal_part
from .privacy import noise_key, private_reply
from .state import ClientState

logger = getLogger("fedpfl.client")

# Where a method may draw random numbers that no phase and no test has seeded.
EARLY_HOOKS = (
    "prepare", "schedule", "conclude", "adaptation", "personalised", "global_model", "export", "personal_part",
)  # fmt: skip
# In front of the names of arrays that ``diagnostics`` keeps as they were before the client's first round.
FIRST = "first/"
# In front of the place of a phase and the names of its parameters, of whose momentum ``keep-momentum`` keeps arrays.
MOMENTUM = "momentum/"
# Of a GPU's free memory, for the samples that stay there.
SHARE_OF_SAMPLES = 0.3
# Training samples with which a client's written model is compared with the tested one.
COMPARED = 64
# Momentum of each phase, by parameter.
Momentum = Dict[int, Dict[str, Tensor]]


class Training(NamedTuple):
    """A client between the beginning of its training and the end."""

    state: ClientState
    local: LocalRound
    method: Method
    phases: Sequence[Phase]
    first: Mapping[str, np.ndarray]
    momentum: Momentum | None
    started: float
    given: Given | None = None


class Later(LocalRound):
    """A round whose model is loaded when it is first asked for: most methods only need it while it trains."""

    def wait_for(self, load: Callable[[], None]) -> None:
        """Have the model loaded by ``load`` when it is next asked for."""
        vars(self)["load"] = load

    @property
    def is_loaded(self) -> bool:
        """Whether the model has been asked for."""
        return "load" not in vars(self)

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The model, loaded."""
        load = vars(self).pop("load", None)
        if load is not None:
            load()
        found: nn.Module = vars(self)["_model"]
        return found

    @model.setter
    def model(self, model: nn.Module) -> None:
        vars(self)["_model"] = model


_Round = TypeVar("_Round", bound=LocalRound)


class Taken(NamedTuple):
    """What a client's training has led to: personal arrays by name, the shared vector, whether all are finite."""

    personal: Mapping[str, np.ndarray]
    shared: np.ndarray | None
    finite: bool


class Engine:
    """Data, model and settings of one run in one process.

    ``own``: whether ``data`` are this device's own, of one client; ``num_clients`` counts the whole federation.
    ``own_model`` is the model that the device's owner has named.
    The model of ``client`` is made at once, other ones when they are needed.
    """

    def __init__(
        self, config: Config, data: FederatedData, num_clients: int, own: bool = False, client: int = 0,
        own_model: str = "",
    ) -> None:  # fmt: skip
        self.threads = config.training.threads or _available_threads()
        torch.set_num_threads(self.threads)
        require_device(config.training)
        _require_fitting(config, data)
        self.data = data
        self.num_clients = num_clients
        self.own = own
        classes = () if data.has_no_class_names else data.class_names
        named = {"columns": sent(data.feature_names), "classes": digest(classes)}
        self._names = {key: text for key, text in named.items() if text}
        method = type(config.method)
        self._may_draw_early = any(getattr(method, hook) is not getattr(Method, hook) for hook in EARLY_HOOKS)
        self._measures = find_measures(config.run.metrics)
        require_working(self._measures, data.num_classes, config.training.labels)
        self._own_model = own_model
        self._common = config.with_model(own_model) if own_model else config
        self._made: dict[str, tuple[Any, ...]] = {}
        # The model that the last message tested, and the vector that it still holds.
        self._tested: tuple[nn.Module, ReferenceType[np.ndarray]] | None = None
        # Samples that stay on a GPU, and the bytes that more of them may take there.
        self._kept: dict[tuple[str, int], Samples] = {}
        on_gpu = config.training.device == "cuda"
        self._room_for_samples = int(SHARE_OF_SAMPLES * torch.cuda.mem_get_info()[0]) if on_gpu else 0
        self.use_model_of(client)

    def use_model_of(self, client: int) -> None:
        """Have the model of a client (``client-models``) in use, which is made when it is first needed."""
        name = self._common.run.model_of(client)
        if name not in self._made:
            policy.check_model(name)
            config, data = self._common.of_client(client), self.data
            model, sharing = assemble(
                config, data.input_shape, data.num_classes, config.training.device, data.vocabulary
            )
            extras, mean_model = extras_of(config, model, sharing), mean_model_layout(config, model, sharing)
            stays = not self._may_draw_early and not sharing.personal and _is_plain(model)
            self._made[name] = config, model, sharing, extras, sharing.get_personal(), mean_model, stays
        (
            self.config, self.model, self.sharing, self.extras, self._first_personal, self._mean_model, self._stays,
        ) = self._made[name]  # fmt: skip

    def state_of(self, key: str, client: int) -> ClientState:
        """Return where a client keeps its arrays in the run with a key."""
        return ClientState(self.config.run.state_dir, key, client)

    def query(self, client: int, message: Payload) -> Payload:
        """Describe the client's task; no array of the client leaves it."""
        self.use_model_of(client)
        train_samples, test_samples = self.data.sizes(self._place(client))
        self.sharing.accept({})
        # All clients must divide common data alike; data of a device's own are not divided.
        described: dict[str, Value] = {**self._names, **({} if self.own else {"division": self.data.checksum})}
        if message.config.get("in-turn") is True:  # a device, not one of a simulation's many clients
            key = str(message.config.get("state-key", ""))
            described["identity"] = self.state_of(key, client).secret()
            earlier = message.config.get("earlier-key")
            before = None if earlier is None else self.state_of(str(earlier), client)
            if before is not None and before.of_a_device:
                described["earlier-identity"] = before.secret()
        if self._own_model:
            described.update(model=self._own_model, extras=self.extras.to_text())
        if self.data.remarks:
            described["remarks"] = "\n".join(self.data.remarks)
        return Payload(
            config={
                **described,
                "client": client,
                "num-clients": self.num_clients,
                "input-shape": "x".join(map(str, self.data.input_shape)),
                "num-classes": self.data.num_classes,
                "vocabulary": self.data.vocabulary,
                "threads": self.threads,
                "layout": self.sharing.layout.to_text(),
            },
            metrics={"train-samples": train_samples, "test-samples": test_samples},
        )

    def train(self, client: int, message: Payload) -> Payload:
        """Run the method's schedule from the received shared and the stored personal arrays."""
        if self.personalises:
            return self.personalise(client, message, self.config.of(PersonaliseSettings).personalise)
        training = self.begin_training(client, message, self.config.method)
        losses = self.run_phases(training.phases, training.local, "batches", momentum=training.momentum)
        return self.end_training(training, losses)

    def begin_training(
        self, client: int, message: Payload, method: Method, later: bool = False
    ) -> Training:  # fmt: skip
        """Load a client's model and have its method prepare the phases of a round.

        With ``later`` the model is loaded when the method asks for it, if nothing else needs it.
        """
        started = time.perf_counter()
        self.use_model_of(client)
        given = None
        local: LocalRound
        if not later or self.needs_model:
            state, local = self.load(client, message)
        else:
            state, waiting, given = self.read(client, message, Later)
            waiting.wait_for(given.load)
            local = waiting
            if self._may_draw_early:
                self.seed(local, "prepare")
        method.prepare(local)
        first = self._first_personal_part(state, local)
        momentum = self._momentum(state, local)
        phases = method.schedule(local)
        require_returned(method, "schedule", phases, list, "a list of fedpfl.Phase")
        for phase in phases:
            require_returned(method, "schedule", phase, Phase, "a list of fedpfl.Phase")
        return Training(state, local, method, phases, first, momentum, started, given)

    def end_training(
        self, training: Training, losses: Sequence[float], taken: Callable[[], Taken | None] = lambda: None
    ) -> Payload:  # fmt: skip
        """Store what the client keeps of its trained model, and return its reply.

        ``taken`` is asked, after the method, for arrays that need not be copied out of the model.
        """
        state, local, method, _, first, momentum, started, _ = training
        message = local.message
        extra = method.conclude(local)
        require_returned(method, "conclude", extra, Payload, "a fedpfl.Payload")
        found = taken()
        if found is None:
            personal, shared = self.sharing.get_personal(), self.sharing.get_shared()
            finite = _are_finite([shared, *personal.values()])
        else:
            assert found.shared is not None
            personal, shared, finite = dict(found.personal), found.shared, found.finite
        # Neither sent nor kept: the client's last good state is where its next round starts.
        _require(finite and _are_finite(extra.arrays.values()), local)
        rule = method.aggregation.rule
        if not rule.takes_shared:
            shared = self.sharing.layout.unpack(message.arrays)
        seconds = time.perf_counter() - started
        movement = self._movement(first)
        kept = {**personal, **first, **_flat(momentum)}
        state.save(kept, local.round, int(message.config["personal-round"]))
        if (privacy := self.config.of(PrivacySettings)).on:
            key = noise_key(privacy, state.folder, local.seed, local.client)
            # What the client keeps is as it was trained.
            shared, extras = self.private(local, shared, extra.arrays, key)
            # No noise is added to numbers and texts: of the method's, only those leave that the rule needs.
            needed = {name: extra.metrics[name] for name in rule.reads if name in extra.metrics}
            extra = Payload(metrics=needed, arrays=extras)
        sent = {**extra.arrays, **self._for_evaluation(local.round)}
        vector = self.sharing.layout.pack(shared, self.config.run.wire_dtype) if rule.takes_shared else {}
        reply = Payload(
            metrics={
                **extra.metrics,
                **movement,
                "train-samples": len(local.samples.y),
                "train-loss": losses[-1] if losses else 0.0,
                "train-seconds": seconds,
            },
            arrays={**self.extras.pack(sent, SERVER), **vector},
            config={**extra.config, "layout": self.sharing.layout.to_text()},
        )
        if self.config.run.evaluate_trained:
            reply.metrics.update(self._test_trained(local, method))
        return reply

    def evaluate(self, client: int, message: Payload) -> Payload:
        """Test the client's personalised model, also on validation samples, and the global one."""
        started = time.perf_counter()
        state, local = self.load(client, message, to_test=True)
        method, metrics = self.config.method, {}
        method.prepare(local)
        samples = self.test_samples(client)
        adaptation = method.adaptation(local)
        if any(module.training for module in self.model.modules()):  # rarely: a worker tests many clients in turn
            self.model.eval()
        personalised, shared = method.personalised(self.model), common_model(method, self.model)
        # Before the model adapts: the next message loads every array again, so the adapted one needs no undoing.
        if shared is not None and (adaptation or shared is not personalised):
            metrics.update(_metrics("global", self.score(shared, local, samples)))
        if local.has_received(EVALUATION_ONLY):
            metrics.update(_metrics("global", self._test_mean_model(local, samples)))
        if adaptation:
            self.run_phases(adaptation, local, "adaptation")
            self.model.eval()
        score = self.score(personalised, local, samples)
        metrics.update(_metrics("personalised", score))
        if len((held := self.validation_samples(client)).y):
            metrics.update(_metrics("validation", self.score(personalised, local, held)))
        if shared is not None and "global-correct" not in metrics:
            metrics.update(_metrics("global", score))
        metrics["evaluate-seconds"] = time.perf_counter() - started
        if self._is_written(state, local):
            self._keep_model(personalised, score, state, local)
        if self._stays and not adaptation:
            self._tested = self.model, ref(self.sharing.layout.unpack(message.arrays))
        return Payload(metrics=metrics)

    def personalise(self, client: int, message: Payload, mode: str) -> Payload:
        """Make a model for a client that was not in the run from the shared arrays of its end; test and keep it.

        With ``local-train`` its personal part alone is trained, with ``fine-tune`` all of it, each for a round at the
        full learning rate. Neither array nor state of the run changes.
        """
        started = time.perf_counter()
        state, local = self.load(client, message)
        method = self.config.method
        method.prepare(local)
        phases: Sequence[Phase] = method.schedule(local)
        if mode == LOCAL_TRAIN:
            phases = of_personal_part(phases, self.sharing, self.model, self.config.training.weight_decay)
        losses = self.run_phases(phases, local, "batches", factor=1.0)
        if mode == LOCAL_TRAIN:
            trained = self.sharing.get_personal()
            self.sharing.set_shared(self.sharing.layout.unpack(message.arrays))  # running statistics have moved
            self.sharing.set_personal(trained)  # what is shared may hold the others' personal channels, too
        else:
            method.conclude(local)
        _require_finite(local, [self.sharing.get_shared(), *self.sharing.get_personal().values()])
        seconds = time.perf_counter() - started
        personalised = self.adapted(local, factor=1.0)
        score = self.score(personalised, local, self.test_samples(client))
        if self._is_written(state, local):
            self._keep_model(personalised, score, state, local)
        trained_on = {"train-samples": len(local.samples.y), "train-loss": losses[-1] if losses else 0.0}
        return Payload(metrics={**_metrics("personalised", score), **trained_on, "train-seconds": seconds})

    def adapted(self, local: LocalRound, factor: float | None = None, method: Method | None = None) -> Forward:
        """Adapt the loaded model to a test; return the forward pass with which the client predicts."""
        method = method or self.config.method
        self.run_phases(method.adaptation(local), local, "adaptation", factor)
        self.model.eval()
        personalised: Forward = method.personalised(self.model)
        return personalised

    def _is_written(self, state: ClientState, local: LocalRound) -> bool:
        run = self.config.run
        anywhere = run.device_models == "always" or tests_more_than_arrays(self.config.method)
        over = self.personalises and run.device_models != "never"
        return (over or run.writes_models_after(local.round)) and (anywhere or state.of_a_device)

    def _keep_model(self, personalised: Forward, score: Score, state: ClientState, local: LocalRound) -> None:
        """Write the client's model on this machine, as it was tested; nothing of it is sent."""
        about, data, method, why = self._about_model(local), self.data, self.config.method, ""
        content: Mapping[str, Tensor] | bytes | None = None
        try:
            plain = plain_model(self.config, data.input_shape, data.num_classes, data.vocabulary)
            content = complete_arrays(plain, method.export(self.model))
            module, x = plain_module(about, content).to(local.samples.x.device), local.samples.x[:COMPARED]
            if not is_alike(predict(personalised, x), predict(module, x)):
                why = f"{method.name} exports another model than it predicts with"
        except NoPlainModel as error:
            why = str(error)
        except (StateError, RuntimeError) as error:  # a custom method that changes the model
            why = f"{method.name} exports no plain model: {in_one_line(error)}"
        if why:
            content, reason = traced(personalised, self.model, local.samples.x)
            about["why"] = "; ".join(filter(None, (why, reason)))[:MAX_TEXT]
        about["tested"] = {"correct": score.correct, "loss_sum": score.loss_sum, "samples": score.samples}
        try:
            write_model(state.folder, about, content, self.config.run.device_models_kept)
        except (OSError, policy.PolicyError) as error:  # the round still counts
            logger.warning("client %d: its model was not written: %s", local.client, error)

    def _about_model(self, local: LocalRound) -> dict[str, Any]:
        data, run = self.data, self.config.run
        standardized = data.scaling(self._place(local.client))
        numbers = {} if standardized is None else {key: of.tolist() for key, of in standardized._asdict().items()}
        return {
            **numbers,
            "fedpfl": __version__, "run": str(local.message.config["state-key"]), "round": local.round,
            "client": local.client, "method": run.method, "model": run.model, "input-shape": list(data.input_shape),
            "num-classes": data.num_classes, "class-names": list(data.class_names_of(self._place(local.client))),
            "feature-names": list(data.feature_names), "vocabulary": data.vocabulary, "scaling": scaling_of(data),
            "normalize": self.config.data.normalize,
            "loss": self.config.training.labels, "why": "",
        }  # fmt: skip

    def _test_trained(self, local: LocalRound, method: Method) -> dict[str, int | float]:
        # The model may adapt: all that is sent or kept of it has been copied.
        forward = self.adapted(local, method=method)
        return _metrics("trained", self.score(forward, local, self.test_samples(local.client)))

    def private(
        self, local: LocalRound, shared: np.ndarray, extras: Mapping[str, np.ndarray], key: bytes
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Clip and disturb the trained shared arrays and the method's extras; see ``privacy.py``."""
        layout = self.sharing.layout
        # All clients know the first arrays, from the seed; the client's last ones are its secret.
        starts = {name: array.reshape(-1) for name, array in self.extras.private_starts(local.extras).items()}
        flat = {name: array.reshape(-1) for name, array in extras.items()}
        received, privacy = layout.unpack(local.message.arrays), self.config.of(PrivacySettings)
        shared, sent = private_reply(received, shared, starts, flat, privacy, key, local.round, layout)
        return shared, {name: array.reshape(extras[name].shape) for name, array in sent.items()}

    def _for_evaluation(self, server_round: int) -> dict[str, np.ndarray]:
        if not self._mean_model.size or not self.config.run.evaluates_after(server_round):
            return {}
        whole = self.sharing.copies(self._mean_model.names)
        return {EVALUATION_ONLY: self._mean_model.flatten(whole)}

    def _personal_part(self) -> dict[str, np.ndarray]:
        part = self.config.method.personal_part(self.model)
        return {f"{FIRST}{name}": array.detach().cpu().numpy().copy() for name, array in part.items()}

    def _first_personal_part(self, state: ClientState, local: LocalRound) -> dict[str, np.ndarray]:
        """Return, for ``diagnostics``, the personal part before the client's first round, which stays with it."""
        # Checked before the file: a client that stores nothing has none.
        if not (self.config.of(DiagnosticsSettings).diagnostics and self.config.method.personal_part(self.model)):
            return {}
        if local.never_trained:
            return self._personal_part()
        return {f"{FIRST}{name}": array for name, array in self._stored(state, local, FIRST).items()}

    def _momentum(self, state: ClientState, local: LocalRound) -> Momentum | None:
        """Return the momentum with which the client's last round ended; none unless it is kept."""
        if not self.config.training.keep_momentum:
            return None
        found: Momentum = {}
        for key, array in self._stored(state, local, MOMENTUM).items():
            place, _, name = key.partition("/")
            found.setdefault(int(place), {})[name] = torch.tensor(array, device=self.config.training.device)
        return found

    def _stored(self, state: ClientState, local: LocalRound, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays with a prefix that the client stored in its last round, by the rest of their names."""
        if local.never_trained:
            return {}
        stored = self._stored_personal(state, local.message, local.client)
        return {name[len(prefix) :]: array for name, array in stored.items() if name.startswith(prefix)}

    @property
    def personalises(self) -> bool:
        """Whether the run is over, and training makes models for clients that were not in it."""
        return bool(self.config.of(PersonaliseSettings).on)

    @property
    def sends_as_trained(self) -> bool:
        """Whether clients send their shared vectors as these were trained: without noise, and unrounded."""
        return not self.config.of(PrivacySettings).on and self.config.run.wire_dtype == "float32"

    @property
    def draws_at_the_end(self) -> bool:
        """Whether a method may draw random numbers after the training."""
        return type(self.config.method).conclude is not Method.conclude

    @property
    def needs_model(self) -> bool:
        """Whether more than the method asks for a client's model in a round of training."""
        return bool(
            type(self.sharing) is not Sharing
            or self._mean_model.size
            or self.config.run.evaluate_trained
            or self.config.of(DiagnosticsSettings).diagnostics
        )

    def _movement(self, first: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return how far the personal part has moved since."""
        if not first:
            return {}
        now = self._personal_part()
        squares = [float(np.sum(np.square(now[name].astype(np.float64) - first[name]))) for name in now]
        return {"personal-change": sum(squares) ** 0.5}

    def _test_mean_model(self, local: LocalRound, samples: Samples) -> Score:
        """Test the shared arrays with the mean of the clients' personal ones."""
        own, mean = self.sharing.get_personal(), local.received(EVALUATION_ONLY)
        self.sharing.set_personal({**own, **self._mean_model.unflatten(mean)})
        score = self.score(self.config.method.personalised(self.model), local, samples)
        self.sharing.set_personal(own)
        return score

    def run_phases(
        self, phases: Sequence[Phase], local: LocalRound, purpose: str, factor: float | None = None,
        momentum: Momentum | None = None,
    ) -> list[float]:  # fmt: skip
        """Run phases, with the momentum of each if it is kept; return the mean loss of each.

        Learning rates are the round's unless a ``factor`` is given.
        """
        # A phase without epochs does not count: a schedule that is FedAvg's in effect draws FedAvg's batches.
        phases = [phase for phase in phases if phase.epochs]
        if phases:
            # Dropout draws from torch's own generator; the batches have theirs.
            self.seed(local, purpose)
        factor = self.rate_factor(local.round) if factor is None else factor
        return [self.run_phase(phase, local, purpose, place, factor, momentum) for place, phase in enumerate(phases)]

    def run_phase(
        self, phase: Phase, local: LocalRound, purpose: str, place: int, factor: float, momentum: Momentum | None
    ) -> float:
        """Run the phase at a place in a schedule."""
        rng = generator(local.seed, purpose, local.client, local.round, place)
        velocity = None if momentum is None else momentum.setdefault(place, {})
        training, normalize = self.config.training, self.config.data.normalize
        return run_phase(self.model, phase, local.samples, training, rng, factor, velocity, normalize)

    def rate_factor(self, number: int) -> float:
        """Return the factor of learning rates in a round; a model is tested as it was before round 1, too."""
        training, rounds = self.config.training, self.config.run.num_server_rounds
        return rate_factor(training, max(1, number), rounds) if training.learning_rate_over == "rounds" else 1.0

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
    ) -> tuple[ClientState, _Round, Given]:
        """Return what :meth:`load` does, and the model's arrays; those of a ``Later`` round are not loaded yet."""
        self.use_model_of(client)
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
            personal = self._stored_personal(state, message, client) if trained else self._first_personal
        if kind is not Later:
            tested = self._tested
            same = to_test and tested is not None and tested[0] is self.model and tested[1]() is vector
            self._fill(None if same else vector, personal)
        place = self._place(client)
        # A split finer than whole arrays takes the client's own channels out of the model: after it is loaded.
        received = self.sharing.received(vector)
        local = kind(
            client, int(message.config["round"]), self.config.run.seed, self.data.num_classes, self.model,
            received, message,
            train_data=lambda: self._on_device("train", place),
            train_labels=lambda: self.data.labels(place),
            layout=self.sharing.layout,
            extras=extras,
            validation_data=lambda: self.validation_samples(client),
            normalize=self.config.data.normalize,
        )  # fmt: skip

        def load() -> None:
            self.use_model_of(client)
            self.sharing.accept(extras)
            self._fill(vector, personal)

        return state, local, Given(cast(Received, received), personal, load)

    def _stored_personal(self, state: ClientState, message: Payload, client: int) -> dict[str, np.ndarray]:
        """Return the arrays that a message names: of this run, or of the one that it continues."""
        key = message.config.get("personal-key")
        of = state if key is None else self.state_of(str(key), client)
        return of.load(int(message.config["personal-round"]))

    def test_samples(self, client: int) -> Samples:
        """Return a client's test samples where the model computes."""
        return self._on_device("test", self._place(client))

    def validation_samples(self, client: int) -> Samples:
        """Return a client's validation samples where the model computes."""
        return self._on_device("validation", self._place(client))

    def score(self, forward: Forward, local: LocalRound, samples: Samples) -> Score:
        """Test a forward pass; what it draws from global generators does not depend on what was drawn before."""
        self.seed(local, "test")
        return evaluate(forward, samples, self.config.training.labels, self._measures)

    def seed(self, local: LocalRound, purpose: str) -> None:
        """Seed the global generators, for one purpose of a client's round."""
        seed = torch_seed(local.seed, f"torch {purpose}", local.client, local.round)
        seed_global(seed, self.config.training.device)

    def _place(self, client: int) -> int:
        return 0 if self.own else client

    def _on_device(self, part: str, place: int) -> Samples:
        """Return samples where the model computes; a GPU keeps them, as far as its memory allows."""
        if (part, place) in self._kept:
            return self._kept[part, place]
        samples: Samples = getattr(self.data, part)(place)
        if self.config.training.device != "cuda":
            return samples
        moved = Samples(*(tensor.to("cuda") for tensor in samples))
        self._room_for_samples -= sum(tensor.nbytes for tensor in moved)
        if self._room_for_samples >= 0:
            self._kept[part, place] = moved
        return moved


Handler = Callable[[str, Payload, Mapping[str, Value], Mapping[str, Value]], Payload]
Key = Tuple[Tuple[Tuple[Tuple[str, Value], ...], int, int], str, int, str]

HANDLERS: dict[str, Callable[[Engine, int, Payload], Payload]] = {
    "query": Engine.query,
    "train": Engine.train,
    "evaluate": Engine.evaluate,
}


def handle(kind: str, message: Payload, run_config: Mapping[str, Value], node_config: Mapping[str, Value]) -> Payload:
    """Answer one message (``query``, ``train`` or ``evaluate``) for the client that the node is.

    The message's config has ``state-key``, under which the client keeps its arrays, and with ``train`` and ``evaluate``
    ``round``, ``personal-round`` (the round after which the client's arrays are wanted; 0 for the initial ones) and
    ``layout``. In a run that continues another one it may have ``personal-key``, under which those arrays are, and with
    ``query`` ``earlier-key``, the other run's. ``run_config`` and ``node_config`` are as Flower hands them to the
    ClientApp; the node has ``partition-id`` and ``num-partitions``, or, on a device that holds its own data,
    ``data-path`` (also called ``data``), with or without these; ``model`` is the model of its own, if it has one.
    Whatever is wrong, or refused by the device's policy, raises a ``FedpflError``.
    """
    path = own_data_path(node_config)
    policy.check(run_config, path)
    if path and not {"partition-id", "num-partitions"} & node_config.keys():
        nodes, given = clients_of(run_config), stored_number(message, run_config, path)
        if given is None and kind == "query":
            return unnumbered(run_config)
        if given is None:
            raise StateError(f"data-path = {path!r}: this node does not know which client of this run it is")
        client = given
    else:
        client, nodes = _number(node_config, "partition-id", 0), _number(node_config, "num-partitions", 1)
        if client >= nodes:
            raise ConfigError("partition-id", client, f"must be below num-partitions = {nodes}")
    engine = engine_for(Config.parse(run_config), nodes, path, client, str(node_config.get("model", "")))
    return HANDLERS[kind](engine, client, message)


def _number(node_config: Mapping[str, Value], key: str, least: int) -> int:
    if key not in node_config:
        allowed = f"must have {key} (`--node-config '{key}=…'`), or data-path alone"
        raise ConfigError("node-config", dict(node_config), allowed)
    value = node_config[key]
    if type(value) is not int or value < least:
        raise ConfigError(key, value, f"must be a whole number of at least {least} (`--node-config '{key}=…'`)")
    return value


# The engines of one run, the latest used last. Clients that divide a data set share one; a client with data of its own
# has its own, and a device has few of those.
_engines: OrderedDict[Key, Engine] = OrderedDict()
MAX_ENGINES = 4


def engine_for(config: Config, nodes: int, path: str, client: int, model: str = "") -> Engine:
    """Return the engine that runs a client (from 0), made now or cached from an earlier message of the same run.

    ``path`` is the client's own data, or empty; ``model`` is its own model, or empty for the run's.
    """
    # The custom code as well: a later run may have the same settings and another file.
    run = tuple(sorted(config.flat().items())), nodes, custom.version()
    key = (run, path, client if path else -1, model)
    if key in _engines:
        _engines.move_to_end(key)
        return _engines[key]
    # Before the new engine is made: two runs' data and models may not fit into the memory of a small board.
    if any(kept[0] != run for kept in _engines):
        _engines.clear()
    while len(_engines) >= MAX_ENGINES:
        _engines.popitem(last=False)
    _engines[key] = _make_engine(config, nodes, path, client, model)
    return _engines[key]


def _make_engine(config: Config, nodes: int, path: str, client: int, model: str) -> Engine:
    num_clients = config.data.num_clients or nodes
    if num_clients != nodes:
        raise ConfigError("num-clients", num_clients, f"this federation has {nodes} nodes; use {nodes} or 0")
    if path:
        data = own_data(config.data, path, client, config.run.seed, config.data.num_classes or None)
    else:
        data = federated_data(config.data, num_clients, config.run.seed)
    return Engine(config, data, num_clients, own=bool(path), client=client, own_model=model)


def _require_fitting(config: Config, data: FederatedData) -> None:
    """Refuse a loss for classes where the data have targets, and the other way round."""
    ours = config.training.augmentation in AUGMENTATIONS and config.training.augmentation != NO_AUGMENTATION
    if ours and len(data.input_shape) != 3:
        allowed = f"must be none, or a function of your own, for {data.name}, whose samples are not images"
        raise ConfigError("augmentation", config.training.augmentation, allowed)
    loss = config.training.loss
    if config.training.kind.classes == data.has_targets:
        has = "numbers as targets" if data.has_targets else "classes"
        hint = "use mse or multi-label" if data.has_targets else "targets are an array y of floats, n or n×k"
        raise ConfigError("loss", loss, f"does not fit {data.name}, which has {has}; {hint}")
    config.training.require_fitting(data.num_classes)


def _is_plain(model: nn.Module) -> bool:
    """Return whether all layers are PyTorch's or this package's, which change no array in a test."""
    return all(type(module).__module__.partition(".")[0] in ("torch", "fedpfl") for module in model.modules())


def _require_finite(local: LocalRound, arrays: Iterable[np.ndarray]) -> None:
    _require(_are_finite(arrays), local)


def _require(finite: bool, local: LocalRound) -> None:
    if not finite:
        raise TrainingDiverged(f"the training diverged in round {local.round}; a smaller learning-rate may help")


def _are_finite(arrays: Iterable[np.ndarray]) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def _available_threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _flat(momentum: Momentum | None) -> dict[str, np.ndarray]:
    """Return the arrays to be stored of a round's momentum."""
    return {
        f"{MOMENTUM}{place}/{name}": array.cpu().numpy()
        for place, arrays in (momentum or {}).items() for name, array in arrays.items()
    }  # fmt: skip


def _metrics(prefix: str, score: Score) -> dict[str, int | float]:
    more = {f"{prefix}-{name}{SUM}": total for name, (total, _) in score.metrics.items()}
    return {
        **more,
        **{f"{prefix}-{name}{COUNT}": count for name, (_, count) in score.metrics.items()},
        f"{prefix}-correct": score.correct,
        f"{prefix}-loss-sum": score.loss_sum,
        f"{prefix}-samples": score.samples,
    }
