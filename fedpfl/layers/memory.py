"""A client's memory beside its model: arrays and models that are personal state and do not train.

They are children of the model, so they are stored, loaded and kept from travelling as any personal array is.
"""

from __future__ import annotations

from typing import Mapping, cast

import torch
from torch import Tensor, nn

from fedpfl.core.frozen import copy_trained

TWIN = "personal"


class Memory(nn.Module):
    """Arrays under the names of the parameters to which they belong; initial values are copied.

    Parameters
    ----------
    arrays : mapping of str to Tensor
        Initial values.

    Examples
    --------
    Keep with the client how far each parameter has moved in all rounds together:

    >>> import fedpfl
    >>> import torch
    >>> class Travelled(fedpfl.Method):
    ...     name = "travelled"
    ...
    ...     def build(self, model):
    ...         zeros = {name: torch.zeros_like(array) for name, array in model.named_parameters()}
    ...         model.add_module("way", fedpfl.Memory(zeros))
    ...         return model
    ...
    ...     def is_shared(self, name, model):
    ...         return not name.startswith("way.")
    ...
    ...     def conclude(self, local):
    ...         way = fedpfl.remembered(local.model, "way")
    ...         for name, array in local.model.named_parameters():
    ...             way[name] += (array.detach() - local.start[name]).abs()
    ...         return fedpfl.Payload(metrics={"way": float(sum(array.sum() for array in way.values()))})
    >>> run = fedpfl.run(
    ...     method=Travelled, dataset="digits", model="mlp", num_clients=4, num_server_rounds=2, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> run.summary["rounds"]
    2
    """

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, array in arrays.items():
            # A buffer's name may not have dots.
            self.register_buffer(name.replace(".", "/"), array.detach().clone())

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays themselves, by name: writing to them changes the memory."""
        return {name.replace("/", "."): array for name, array in self.named_buffers()}


def remembered(model: nn.Module, name: str) -> dict[str, Tensor]:
    """Return the arrays of a model's memory, its child of this name; writing to them changes the memory.

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> model = nn.Linear(1, 1, bias=False)
    >>> model.add_module("before", fedpfl.Memory({"weight": model.weight}))
    >>> bool(fedpfl.remembered(model, "before")["weight"] == model.weight)
    True
    """
    return cast(Memory, model.get_submodule(name)).arrays()


def add_twin(model: nn.Module) -> nn.Module:
    """Give a model a copy of itself, but for frozen arrays, as its child ``personal``, see :func:`in_twin`."""
    model.add_module(TWIN, copy_trained(model))
    return model


def twin(model: nn.Module) -> nn.Module:
    """Return the copy of a model that its client keeps, as :class:`~fedpfl.KeepsTrained` does.

    Examples
    --------
    Predict with the mean of what the client has trained last and what all share:

    >>> import fedpfl
    >>> class Both(fedpfl.KeepsTrained):
    ...     name = "both"
    ...
    ...     def schedule(self, local):
    ...         return [fedpfl.Phase(train=fedpfl.excluding(fedpfl.in_twin), epochs=1)]
    ...
    ...     def personalised(self, model):
    ...         return lambda x: (fedpfl.twin(model)(x) + model(x)) / 2
    """
    return getattr(model, TWIN)


def in_twin(name: str) -> bool:
    """Tell whether an array, by its name in a state dict, belongs to :func:`twin`.

    Examples
    --------
    >>> import fedpfl
    >>> fedpfl.in_twin("personal.head.weight"), fedpfl.in_twin("head.weight")
    (True, False)
    """
    return name.startswith(TWIN + ".")


@torch.no_grad()
def refresh_twin(model: nn.Module) -> None:
    """Copy the model's arrays, running statistics too, into its twin."""
    arrays = model.state_dict()
    for name, array in twin(model).state_dict().items():
        array.copy_(arrays[name])
