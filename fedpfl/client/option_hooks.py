"""What an option does in a client's part of a round, and what the engine hands it."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, NamedTuple, Sequence
from weakref import proxy

import numpy as np
from torch import Tensor, nn

from ..core.payload import Payload
from ..core.samples import Samples
from ..core.sharing import RoundStart
from ..methods.base import LocalRound, Method
from ..training.loop import Score
from ..training.phase import Forward, Phase
from .state import ClientState

# Momentum of each phase, by parameter.
Momentum = Dict[int, Dict[str, Tensor]]


class Training(NamedTuple):
    """A client between the beginning of its training and the end; options may have it store more arrays (``kept``)."""

    state: ClientState
    local: LocalRound
    method: Method
    phases: Sequence[Phase]
    kept: dict[str, np.ndarray]
    momentum: Momentum | None
    started: float
    beginning: RoundStart | None = None


class TrainedArrays(NamedTuple):
    """The arrays that a client has trained: personal ones by name, the shared vector, whether all are finite."""

    personal: Mapping[str, np.ndarray]
    shared: np.ndarray | None
    finite: bool


class LazyRound(LocalRound):
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
        return vars(self)["_model"]

    @model.setter
    def model(self, model: nn.Module) -> None:
        vars(self)["_model"] = model


class ClientPart:
    """An option's part of a client's work, made once for an engine; it overrides the hooks that it needs.

    What belongs to one client is in its ``Training``, because an engine may train many at once.
    """

    # Whether `send` changes the shared vector.
    changes_shared = False

    def __init__(self, engine: Any) -> None:
        self.engine: Any = proxy(engine)  # of engine.py, which is above; it has this part, and is to end with its run

    def made(self) -> None:
        """Look at a model that the engine has made, before it holds arrays of a client."""

    @property
    def needs_model(self) -> bool:
        """Whether it looks at a client's model before or after training."""
        return False

    def begin(self, training: Training) -> Training:
        """Look at a client's model before its training; return what is known of the training."""
        return training

    def end(self, training: Training) -> Mapping[str, float]:
        """Look at the trained model, before the client stores its arrays; return numbers for its reply."""
        return {}

    def send(self, training: Training, shared: np.ndarray, extra: Payload) -> tuple[np.ndarray, Payload]:
        """Return the arrays and numbers that leave the client in place of the shared vector and of the method's own."""
        return shared, extra

    def looks_at_test(self, state: ClientState, local: LocalRound) -> bool:
        """Whether :meth:`test` or :meth:`tested` needs a client's model in a test."""
        kind = type(self)
        return kind.test is not ClientPart.test or kind.tested is not ClientPart.tested

    def test(self, local: LocalRound, samples: Samples) -> Mapping[str, float]:
        """Test more than the client's and the global model, before the model adapts; return numbers for the reply."""
        return {}

    def tested(self, state: ClientState, local: LocalRound, forward: Forward, score: Score, held: Score | None) -> str:
        """Do something with the client's model, as it was tested; return why it could not, for the reply.

        ``held`` is its score on validation samples.
        """
        return ""
