"""The base of all methods: sharing × schedule × aggregation.

A method is one small class in one file of this package. It answers three questions and knows nothing of messages,
files or Flower:

* **sharing**: :meth:`Method.is_shared` selects by name the arrays that travel; the rest is personal;
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

from ..core import user_code
from ..core.errors import ConfigError, LayoutError
from ..core.extra_arrays import Extra
from ..core.frozen import frozen
from ..core.layout import Layout
from ..core.option import NoSettings
from ..core.payload import Payload
from ..core.pixels import HALF
from ..core.references import article
from ..core.rng import generator
from ..core.samples import Samples
from ..core.sharing import Sharing
from ..core.user_code import require_hooks
from ..rules import Rule
from ..rules.mean import Mean
from ..training.phase import Batch, Forward, Phase
from ..training.settings import TrainingSettings


@dataclass(frozen=True)
class Aggregation:
    """The rule that combines the clients' arrays, and its options.

    Parameters
    ----------
    rule : subclass of Rule
        Of ``fedpfl/rules``, or of the method's own file.
    options : dict
        Keyword arguments of that class.

    Examples
    --------
    A method that counts every client alike, however many samples it has:

    >>> import fedpfl
    >>> class Uniform(fedpfl.Method):
    ...     name = "uniform"
    ...     aggregation = fedpfl.Aggregation(fedpfl.Mean, {"weights": "uniform"})
    """

    rule: type[Rule]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalRound:
    """A method's view of a client that trains or is tested.

    Attributes
    ----------
    client, round : int
        Client from 0, round from 1.
    rounds : int
        Rounds that are planned.
    seed : int
        The run's.
    num_classes : int
        Classes of the task; the client may have fewer.
    model : nn.Module
        Already holds the received shared and the client's personal arrays.
    start : dict of str to Tensor
        A copy of the shared arrays as they arrived, before training.
    message : Payload
        What the server sent; its settings have whatever the rule attached.
    train_data : callable, () → Samples
        Prepares the client's training data.
    train_labels : callable, () → ndarray of int64
        The labels alone, which cost nothing to prepare.
    layout : Layout
        Layout of the shared vector.
    extras : dict of str to ndarray
        The arrays that came alongside the shared vector; see :meth:`received`.
    normalize : str
        How the pixels of images were scaled, a name of ``core.pixels``.
    notes : dict
        What a method's steps leave for its later ones in the same round; empty at first.

    Examples
    --------
    A method that trains one epoch for each class that the client has:

    >>> import fedpfl
    >>> class ByClasses(fedpfl.Method):
    ...     name = "by-classes"
    ...
    ...     def schedule(self, local):
    ...         classes = int((local.class_counts > 0).sum())
    ...         return [fedpfl.Phase(train=fedpfl.everything, epochs=classes)]
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
    normalize: str = HALF
    rounds: int = 1
    notes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def samples(self) -> Samples:
        """The client's training data."""
        return self.train_data()

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Training samples of each class, shape (num_classes,)."""
        return np.bincount(self.train_labels(), minlength=self.num_classes)

    @cached_property
    def class_shares(self) -> np.ndarray:
        """Share of each class in the training samples, shape (num_classes,); zeros for a client that is only tested."""
        return self.class_counts / max(1, self.class_counts.sum())

    @property
    def never_trained(self) -> bool:
        """Tell whether the client's personal arrays are still the initial ones."""
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
        """Tell whether the server attached an array."""
        return name in self.extras

    def by_name(self, vector: np.ndarray) -> dict[str, Tensor]:
        """Cut a vector as long as the shared one into arrays by name, where the model computes."""
        device = next(self.model.parameters()).device
        return {name: torch.tensor(array, device=device) for name, array in self.layout.unflatten(vector).items()}

    def as_vector(self, arrays: Mapping[str, Tensor]) -> np.ndarray:
        """Lay arrays by name end to end as the shared ones are, shape (layout.size,); 0 for those that are missing."""
        values = {name: array.detach().cpu().numpy() for name, array in arrays.items()}
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.layout.entries if name not in values}
        return self.layout.flatten({**values, **zeros})

    def draw(self, count: int, purpose: str) -> Samples:
        """Return ``count`` of the client's training samples, drawn without replacement; all if there are fewer."""
        x, y = self.samples
        positions = torch.from_numpy(self.generator(purpose).permutation(len(y))[:count]).to(y.device)
        return Samples(x[positions], y[positions])

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the source of this client's random choices for one purpose in this round."""
        return generator(self.seed, purpose, self.client, self.round)


class Method:
    """Base of all methods; without a hook that is overridden, FedAvg.

    Override these three first: :meth:`is_shared` (which arrays travel), :meth:`schedule` (how a client trains) and
    :attr:`aggregation` (how the server combines what arrives). Each has a default, so a method writes only what it
    changes. The other hooks add to them; few methods need those under "advanced".

    Examples
    --------
    The base is shared and the head stays with the client. A round trains the head first, then the base, and the server
    counts all clients alike:

    >>> import fedpfl
    >>> class Mine(fedpfl.Method):
    ...     name = "mine"
    ...     aggregation = fedpfl.Aggregation(fedpfl.Mean, {"weights": "uniform"})
    ...
    ...     def is_shared(self, name, model):
    ...         return not name.startswith("head.")
    ...
    ...     def schedule(self, local):
    ...         head, base = (lambda name: name.startswith("head.")), (lambda name: name.startswith("base."))
    ...         return [fedpfl.Phase(train=head, epochs=1), fedpfl.Phase(train=base, epochs=1)]
    >>> run = fedpfl.run(
    ...     method=Mine, dataset="digits", model="mlp", num_clients=4, num_server_rounds=2, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> run.rounds["clients_trained"].tolist()
    [4, 4]

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
        The name that users write, and the prefix of the method's settings.
    paper : str
        Authors, title, venue.
    shares : str
        What travels, in a few words.
    Settings : type
        A dataclass of fields made by ``setting(…)``.
    aliases : tuple of str
        Other names that users may write.
    refuses : dict of str to str
        Settings that the method cannot have (``personal-head``; ``trainable``, unless ``all``; ``loss``, unless
        ``cross-entropy``), each with the reason: a sentence without its subject, the method's name.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    shares: ClassVar[str] = "see is_shared"
    Settings: ClassVar[type[Any]] = NoSettings
    aliases: ClassVar[tuple[str, ...]] = ()
    refuses: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_hooks("method", cls, Method)

    def __init__(self, settings: Any, training: TrainingSettings, personal_head: bool = False) -> None:
        self.settings = settings
        self.training = training
        self.personal_head = personal_head
        self.check()

    def check(self) -> None:
        """Raise :class:`~fedpfl.core.errors.ConfigError` for settings that do not fit together."""

    # -- sharing ---------------------------------------------------------------------------------------------------

    def build(self, model: nn.Module) -> nn.Module:
        """Return the model that is trained, made of a plain one: other layers, a second head, a twin, a memory.

        Raises
        ------
        ConfigError
            The method cannot take this model.
        """
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Tell whether an array of the state dict travels; others never leave the client. Default: all do."""
        return True

    @property
    def extras(self) -> Sequence[Extra]:
        """The arrays that travel alongside the shared vector with these settings, both ways. Default: none."""
        return ()

    # -- schedule ----------------------------------------------------------------------------------------------------

    def prepare(self, local: LocalRound) -> None:
        """Set in the model what depends on the client's data or the message, before training and before a test."""

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Return the phases of a client's round. Default: E epochs of everything."""
        return [Phase(train=everything, epochs=self.training.local_epochs)]

    def conclude(self, local: LocalRound) -> Payload:
        """Update what the client remembers, after training; return what its reply adds. Default: nothing.

        Returns
        -------
        Payload
            Its metrics are sent (and recorded, as means over the clients), and so are its arrays, by the names and in
            the shapes that :attr:`extras` declares. With differential privacy only those metrics leave the client that
            the rule names in ``reads``, and nothing of its ``config``. Names that replies have anyway, such as
            ``train-loss``, are refused.
        """
        return Payload()

    # -- aggregation -------------------------------------------------------------------------------------------------

    @property
    def aggregation(self) -> Aggregation:
        """The rule by which the server combines what arrives. Default: the mean weighted by samples."""
        return Aggregation(Mean)

    # -- prediction --------------------------------------------------------------------------------------------------

    def adaptation(self, local: LocalRound) -> list[Phase]:
        """Return phases that a client runs on a copy before a test. Default: ``tune-epochs`` epochs of everything."""
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

    def personalised(self, model: nn.Module) -> Forward:
        """Return the forward pass with which a client predicts. Default: the model's."""
        return model

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the forward pass of the shared arrays alone, or ``None``. Default: base and head, if they are shared.

        There is none if the rule sends each client another model. What is the same as :meth:`personalised` returns is
        measured once.
        """
        personal = [name for name in model.state_dict() if not self.is_shared(name, model)]
        if not self.aggregation.rule.one_model or any(name.startswith(("base.", "head.")) for name in personal):
            return None
        return model if personal else self.personalised(model)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the client's model as a state dict that the plain model loads. Default: the arrays as they are.

        It is called with what was tested, or, if nothing adapts a model to a test, with what the client stores.

        Raises
        ------
        NoPlainModel
            No single plain model predicts what the client does; the error tells why, in one line.
        """
        return dict(model.state_dict())

    # -- advanced ----------------------------------------------------------------------------------------------------

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Return sentences for users before round 1, for example that nothing is personal. Default: none.

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

    def sharing(self, model: nn.Module) -> Sharing:
        """Return the split of a built model's arrays; finer than whole arrays, or sparse. Default: by ``travels``."""
        return Sharing(model, lambda name: self.travels(name, model))

    def travels(self, name: str, model: nn.Module) -> bool:
        """Tell whether an array is shared in this run: by the method, and not kept by ``personal-head``."""
        shared = self.is_shared(name, model)
        if shared is None or isinstance(shared, str):  # without a return no array would be shared
            message = f"is_shared returns {article(shared)} for {name!r}, and must return True or False"
            raise ConfigError("method", self.name, message)
        return shared and not (self.personal_head and in_classifier(name))

    def in_mean_model(self, name: str) -> bool:
        """Tell whether a personal array counts in the mean of models for ``evaluate-global``. Default: all do.

        Leave out what :meth:`personalised` does not compute with, for example memories.
        """
        return True

    def personal_part(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the arrays whose movement ``diagnostics`` records. Default: the personal ones of ``in_mean_model``."""
        arrays = {n: a for n, a in model.state_dict().items() if a.is_floating_point() and self.in_mean_model(n)}
        return {name: array for name, array in arrays.items() if not self.travels(name, model)}


def require_returned(method: Method, hook: str, result: object, kind: type, expected: str) -> None:
    """Raise :class:`ConfigError` if a hook's result is not of the type ``kind``, which ``expected`` describes."""
    if not isinstance(result, kind):
        raise ConfigError("method", method.name, f"{hook} returns {article(result)}, and must return {expected}")


def export_of(method: Method, model: nn.Module) -> dict[str, Tensor]:
    """Return the arrays that the method exports of a client's model, with those that are frozen in it."""
    export = user_code.guarded("method", f"{method.name}.export", method.export)
    return {**dict(frozen(model)), **export(model)}


def common_model(method: Method, model: nn.Module) -> Forward | None:
    """Return the method's global model, or ``None`` where ``personal-head`` has taken its classifier away."""
    if method.personal_head:
        names = model.state_dict()
        if any(method.is_shared(name, model) and not method.travels(name, model) for name in names):
            return None
    return method.global_model(model)


def overridden(method: Method, hooks: Mapping[str, str]) -> list[str]:
    """Return the texts of those ``hooks`` that a method defines itself."""
    kind = type(method)
    return [text for hook, text in hooks.items() if getattr(kind, hook) is not getattr(Method, hook)]


def adapts_itself(method: type[Method]) -> bool:
    """Tell whether a method has its own adaptation, to which ``tune-epochs`` does nothing."""
    return method.adaptation is not Method.adaptation


def tests_more_than_arrays(method: Method) -> bool:
    """Tell whether a test computes with more than :meth:`Method.export` can find in a stored run."""
    kind = type(method)
    prepared = kind.prepare is not Method.prepare or kind.personalised is not Method.personalised
    # Hooks of the user's may not fit together, so the model that such a method tests is stored and compared.
    unknown = any(
        hook.__module__.partition(".")[0] != "fedpfl" for hook in (kind.prepare, kind.personalised, kind.export)
    )
    more = unknown or (prepared and kind.export is Method.export)
    return method.training.tune_epochs > 0 or adapts_itself(kind) or more


def in_classifier(name: str) -> bool:
    """Tell whether an array belongs to a classifier: the model's, or that of a whole model among its children."""
    return next((part for part in name.split(".") if part in ("base", "head")), "base") == "head"


def everything(name: str) -> bool:
    """Select every parameter: for the ``train`` of a :class:`~fedpfl.Phase`.

    Examples
    --------
    >>> import fedpfl
    >>> fedpfl.Phase(train=fedpfl.everything, epochs=1).train("head.weight")
    True
    """
    return True


def excluding(selected: Callable[[str], bool]) -> Callable[[str], bool]:
    """Select the parameters that ``selected`` does not.

    Examples
    --------
    >>> import fedpfl
    >>> base = fedpfl.excluding(lambda name: name.startswith("head."))
    >>> base("base.conv1.weight"), base("head.weight")
    (True, False)
    """
    return lambda name: not selected(name)
