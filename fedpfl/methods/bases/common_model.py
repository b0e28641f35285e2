"""Base of the methods whose clients train a model of their own beside a common one, which alone travels."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError, one_of
from ...models.builder import build
from ...models.registry import MODELS, BaseHeadModel
from ...training.phase import Forward
from ..base import Method
from ..settings import OWN, CommonModelSettings
from .prototypes import class_by_width

COMMON = "common"


class SharesCommonModel(Method):
    """The client's model stays, whatever it is; its child ``common`` is shared, and of the same kind at all clients."""

    Settings = CommonModelSettings

    def check(self) -> None:
        """Require the name of a model of this package."""
        name = self.settings.common_model
        if name not in (OWN, *MODELS):
            raise ConfigError("common-model", name, one_of(name, [OWN, *MODELS]))

    def build(self, model: nn.Module) -> nn.Module:
        """Add the common model, like the client's own or what ``common-model`` names, with other initial weights."""
        name = self.settings.common_model
        if name == OWN:
            model.add_module(COMMON, cast(BaseHeadModel, model).another())
        else:
            classes, _ = class_by_width(model)
            model.add_module(COMMON, build(name, model.input_shape, classes, model.vocabulary))  # type: ignore[arg-type]
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the common model."""
        return name.startswith(COMMON + ".")

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the common model."""
        return common(model)


def common(model: nn.Module) -> nn.Module:
    """Return the common model."""
    return model.get_submodule(COMMON)


def apart(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(softmax(teacher) ‖ softmax(student)), the mean over a batch of logits (n, classes)."""
    return F.kl_div(F.log_softmax(student, 1), F.log_softmax(teacher, 1), reduction="batchmean", log_target=True)
