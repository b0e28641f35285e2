"""What a method is: sharing × schedule × aggregation.

A method is one small class in one file of this package. It answers three questions and knows nothing of messages,
files or Flower:

* **sharing**: :meth:`Method.is_shared` says by name which arrays travel; the rest is personal;
* **schedule**: :meth:`Method.schedule` lists a round's local phases;
* **aggregation**: :attr:`Method.aggregation` names the rule (``fedpfl/rules``) that combines what arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, ClassVar, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, LayoutError, require_hooks
from ..core.extras import Extra
from ..core.layout import Layout
from ..core.payload import Payload
from ..core.rng import generator
from ..core.sharing import Sharing
from ..data.federation import Samples
from ..models.trainable import ALL
from ..rules import Rule
from ..rules.mean import Mean
from ..training.losses import CROSS_ENTROPY
from ..training.phase import Batch, Forward, Phase
from ..training.settings import TrainingSettings

# Settings that a method may refuse, and the value that it then takes.
REFUSABLE = {"personal-head": False, "trainable": ALL, "loss": CROSS_ENTROPY}


@dataclass(frozen=True)
class NoSettings:
    """The method has no settings of its own."""


@dataclass(frozen=True)
class Aggregation:
    """Which rule combines the clients' arrays, and how it is set up.

    Parameters
    ----------
    rule : subclass of Rule
        Of ``fedpfl/rules``, or of the method's own file.
    options : dict
        Keyword arguments of that class.
    """

    rule: type[Rule]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalRound:
    """What a method may look at when a client trains or is tested.

    Attributes
    ----------
    client, round : int
        Client from 0, round from 1.
    seed : int
        The run's.
    num_classes : int
        Classes of the task; the client may have fewer.
    model : nn.Module
        Already holds the received shared and the client's personal arrays.
    start : dict of str to Tensor
        A copy of the shared arrays as they arrived, before training.
    message : Payload
        What the server sent; its settings have whatever the strategy attached.
    train_data : callable, () → Samples
        Prepares the client's training data.
    train_labels : callable, () → ndarray of int64
        The labels alone, which cost nothing to prepare.
    layout : Layout
        Layout of the shared vector.
    extras : dict of str to ndarray
        The arrays that came beside the shared vector; see :meth:`received`.
    validation_data : callable, () → Samples
        Prepares the client's samples for validation; there may be none.
    notes : dict
        What a method's steps leave for its later ones in the same round; empty at first.
    """

    client: int
    round: int
    seed: int
    num_classes: int
    model: nn.Module
    start: Mapping[str, Tensor]
    message: Payload
    train_data: Callable[[], Samples]
    train_labels: Callable[[], np.ndarray]
    layout: Layout
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    validation_data: Callable[[], Samples] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def samples(self) -> Samples:
        """The client's training data."""
        return self.train_data()

    @cached_property
    def validation(self) -> Samples:
        """The client's samples for validation, which nobody trains on; there may be none."""
        assert self.validation_data is not None  # the engine gives it
        return self.validation_data()

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Training samples of each class, shape (num_classes,)."""
        return np.bincount(self.train_labels(), minlength=self.num_classes)

    @property
    def never_trained(self) -> bool:
        """Whether the client's personal arrays are still the initial ones."""
        return self.message.config["personal-round"] == 0

    def received(self, name: str) -> np.ndarray:
        """Return an array that the server attached, in its declared shape, floats as float32; not to be written to.

        Raises
        ------
        LayoutError
            The message has none of this name.
        """
        if name not in self.extras:
            raise LayoutError(f"a message without the array {name!r} arrived")
        return self.extras[name]

    def has_received(self, name: str) -> bool:
        """Say whether the server attached an array."""
        return name in self.extras

    def by_name(self, vector: np.ndarray) -> dict[str, Tensor]:
        """Cut a vector as long as the shared one into arrays by name, where the model computes."""
        device = next(self.model.parameters()).device
        return {name: torch.tensor(array, device=device) for name, array in self.layout.unflatten(vector).items()}

    def as_vector(self, arrays: Mapping[str, Tensor]) -> np.ndarray:
        """Lay arrays by name end to end as the shared ones are, shape (layout.size,); 0 for those that are missing."""
        given = {name: array.detach().cpu().numpy() for name, array in arrays.items()}
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.layout.entries if name not in given}
        return self.layout.flatten({**given, **zeros})

    def draw(self, count: int, purpose: str) -> Samples:
        """Return ``count`` of the client's training samples, drawn without replacement; all if there are fewer."""
        x, y = self.samples
        at = torch.from_numpy(self.generator(purpose).permutation(len(y))[:count]).to(y.device)
        return Samples(x[at], y[at])

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the source of this client's random choices for one purpose in this round."""
        return generator(self.seed, purpose, self.client, self.round)


class Method:
    """Base of all methods; as it stands, FedAvg.

    Parameters
    ----------
    settings : NoSettings or the class's own ``Settings``
        The method's settings, already checked one by one.
    training : TrainingSettings
        Epochs, batch size, optimiser.
    personal_head : bool
        Whether the classifier stays with the client, whatever the method shares of it.

    Attributes
    ----------
    name : str
        As users write it; also the prefix of the method's settings.
    paper : str
        Authors, title, venue.
    shares : str
        What travels, in a few words.
    equations : str
        The paper's equations in LaTeX, each on a line of its own, for the documentation.
    aliases : tuple of str
        Other names that users may write.
    refuses : dict of str to str
        Settings that the method cannot have, each with the reason, after the method's name in a sentence:
        ``personal-head``, ``trainable`` (other than ``all``) and ``loss`` (other than ``cross-entropy``).
    server_sees_all : bool
        Whether the server has to see arrays that are personal, to decide which ones are.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    shares: ClassVar[str] = "see is_shared"
    equations: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    refuses: ClassVar[Mapping[str, str]] = {}
    server_sees_all: ClassVar[bool] = False
    Settings: ClassVar[type[Any]] = NoSettings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_hooks("method", cls, Method)
        for key in cls.refuses:
            if key not in REFUSABLE:
                raise ConfigError("method", cls.__name__, f"refuses {key!r}; it can refuse {', '.join(REFUSABLE)}")

    def __init__(self, settings: Any, training: TrainingSettings, personal_head: bool = False) -> None:
        self.settings = settings
        self.training = training
        self.personal_head = personal_head
        self.check()

    def check(self) -> None:
        """Raise :class:`~fedpfl.core.errors.ConfigError` for settings that do not fit together."""

    # -- sharing ---------------------------------------------------------------------------------------------------

    def build(self, model: nn.Module) -> nn.Module:
        """Turn a plain model (children ``base`` and ``head``) into the one that the method trains."""
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Say whether the array called ``name`` in the state dict travels; a personal one never leaves the client."""
        return True

    def in_classifier(self, name: str) -> bool:
        """Say whether an array belongs to what ``personal-head`` keeps on the client."""
        return name.startswith("head.")

    def travels(self, name: str, model: nn.Module) -> bool:
        """Say whether an array is shared in this run: by the method, and not kept by ``personal-head``."""
        return self.is_shared(name, model) and not (self.personal_head and self.in_classifier(name))

    def sharing(self, model: nn.Module) -> Sharing:
        """Split a built model's arrays; override it where the split is finer than whole arrays."""
        return Sharing(model, lambda name: self.travels(name, model), self.sparse_from)

    @property
    def extras(self) -> Sequence[Extra]:
        """The arrays that travel beside the shared vector with these settings, both ways."""
        return ()

    @property
    def needs_validation(self) -> str:
        """The setting for which there have to be samples for validation; empty if there need not be."""
        return ""

    def sparse_from(self, name: str) -> float | None:
        """Return the magnitude from which entries of a shared array travel, smaller ones counting as 0.

        ``None``: the array travels whole.
        """
        return None

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Return what users should know before round 1, for example that the method has nothing to do on this model.

        A model that the method cannot take is refused by :meth:`build`, with a ``ConfigError``.

        Parameters
        ----------
        model : nn.Module
            As :meth:`build` made it.
        clients : int
            Clients that can be asked to train: all but those held out as new ones.
        rounds : int
            Rounds that are planned.
        """
        return []

    # -- schedule ----------------------------------------------------------------------------------------------------

    def prepare(self, local: LocalRound) -> None:
        """Set in the loaded model what depends on the client's data or on what the server attached.

        Called before a client trains and before it is tested.
        """

    def schedule(self, local: LocalRound) -> list[Phase]:
        """List the phases of a client's round."""
        return [Phase(train=everything, epochs=self.training.local_epochs)]

    def conclude(self, local: LocalRound) -> Payload:
        """Finish the round after training: update what the client remembers, return what its reply carries besides.

        Returns
        -------
        Payload
            Its metrics are sent (and recorded, as means over the clients), and so are its arrays, by the names and in
            the shapes that :attr:`extras` declares. With differential privacy only those metrics leave the client that
            the rule names in ``reads``, and nothing of its ``config``.
        """
        return Payload()

    # -- aggregation -------------------------------------------------------------------------------------------------

    @property
    def aggregation(self) -> Aggregation:
        """The rule by which the server combines what arrives; the mean weighted by samples unless overridden."""
        return Aggregation(Mean)

    # -- prediction --------------------------------------------------------------------------------------------------

    def adaptation(self, local: LocalRound) -> list[Phase]:
        """List phases that a client runs on a copy of its model before that is tested.

        Unless overridden ``tune-epochs`` epochs of everything.
        """
        epochs = self.training.tune_epochs
        return [Phase(train=everything, epochs=epochs, gradient=self._tuning_gradient)] if epochs else []

    def _tuning_gradient(
        self, model: nn.Module, batch: Batch, names: Sequence[str], params: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of what predicts and its gradient: 0 at what takes no part in the prediction."""
        loss = self.training.criterion(self.personalised(model)(batch.x), batch.y)
        weighted = self.training.loss_weight(len(batch.y)) * loss
        grads = torch.autograd.grad(weighted, list(params), allow_unused=True)
        return loss, [torch.zeros_like(p) if grad is None else grad for p, grad in zip(params, grads)]

    @classmethod
    def adapts_itself(cls) -> bool:
        """Say whether the method has an adaptation of its own, to which ``tune-epochs`` does nothing."""
        return cls.adaptation is not Method.adaptation

    def personalised(self, model: nn.Module) -> Forward:
        """Return the forward pass with which a client predicts."""
        return model

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the forward pass of the shared arrays alone, or ``None`` where they make no model.

        Unless overridden: the model where all of its arrays are shared. Return what :meth:`personalised` returns where
        both are the same: it is then measured once.
        """
        return self.personalised(model) if all(self.is_shared(name, model) for name in model.state_dict()) else None

    def common_model(self, model: nn.Module) -> Forward | None:
        """Return :meth:`global_model`, or ``None`` where ``personal-head`` has taken its classifier away."""
        taken = self.personal_head and any(
            self.is_shared(name, model) and not self.travels(name, model) for name in model.state_dict()
        )
        return None if taken else self.global_model(model)

    def in_mean_model(self, name: str) -> bool:
        """Say whether a personal array counts in the mean of whole models that ``evaluate-global`` tests.

        Leave out what :meth:`personalised` does not compute with, for example memories.
        """
        return True

    def personal_part(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the arrays whose distance from a client's first ones ``diagnostics`` records, by name.

        Unless overridden the personal ones that count in a mean of whole models.
        """
        arrays = {n: a for n, a in model.state_dict().items() if a.is_floating_point() and self.in_mean_model(n)}
        return {name: array for name, array in arrays.items() if not self.travels(name, model)}

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the client's model as a state dict that the plain model loads; names that it lacks are left out.

        Raises
        ------
        NoPlainModel
            No single plain model predicts what the client does (says why, in one line).
        """
        return dict(model.state_dict())


def everything(name: str) -> bool:
    """Select every parameter."""
    return True


def excluding(selected: Callable[[str], bool]) -> Callable[[str], bool]:
    """Select the parameters that ``selected`` does not."""
    return lambda name: not selected(name)
