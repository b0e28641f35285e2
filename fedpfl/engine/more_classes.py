"""A run with more classes than the one that it continues: known classes, found by their names, keep what was learnt."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..client.earlier_arrays import places_of, widened
from ..core.errors import ConfigError, StateError, printable
from ..core.layout import Layout, Shape
from ..core.names import digest, in_short
from ..core.sharing import Sharing
from ..data.datasets.columns import listed
from ..data.partitioners import task_of
from ..methods.base import common_model
from ..models.external import made_up
from ..results.run_folder import GLOBAL, RunFolder
from ..setup.assembly import assemble, extras_of, make_rule
from ..setup.config import Config
from .agreement import Agreement

State = Mapping[str, np.ndarray]
Entry = tuple[str, Shape]


class MoreClasses:
    """What becomes of arrays of a run where one that continues it has further classes.

    ``new`` are the names of these; none where both runs have the same classes, and all stays as it is. ``names`` are
    the names of the classes now, where they are known here. ``ConfigError`` if a class is gone, or new ones have no
    place.
    """

    def __init__(
        self, earlier: RunFolder, config: Config, agreed: Agreement, names: Sequence[str], of_clients: Sequence[str]
    ) -> None:
        self._earlier, self._config, self._agreed = earlier, config, agreed
        self._of_clients = of_clients
        task, setting = earlier.task(), str(earlier.config().get("class-names", ""))
        self._counts = task["num_classes"], max(agreed.classes)
        told = [hashes.get("classes", "") for hashes in (task.get("names", {}), agreed.names)]
        known = [
            _known(*each)
            for each in zip(
                self._counts, told, (task.get("class_names"), names), (setting, config.data.class_names), strict=True
            )
        ]
        before, now = known
        self.new: list[str] = []
        if before is None or now is None or bool(told[0]) != bool(told[1]):
            if self._counts[0] != self._counts[1]:
                raise self._refusal("classes are found by their names, which both runs need (class-names)")
            return
        self.new = [name for name in now if name not in before]
        if gone := [name for name in before if name not in now]:
            how = f'class-names = "{printable(",".join([*before, *self.new]), 200)}"' if told[0] else ""
            how = how or f"num-classes = {max(self._counts)}"
            allowed = f"the run to continue had {len(before)}, among them {in_short(gone)}"
            raise ConfigError("num-classes", self._counts[1], f"{allowed}; if the data lack samples of some: {how}")
        if self.new:
            self._places = [now.index(name) for name in before]
            self._require_places()

    def _require_places(self) -> None:
        """Refuse a model or a method with no place for further classes, or that would predict known ones otherwise."""
        config, shape, vocabulary = self._config.of_client(0), self._agreed.input_shape, self._agreed.vocabulary
        tasks = config.data.permute_labels or task_of(config.data, 0, len(self._agreed.classes)) is not None
        if tasks or "classes_of_clients" in self._earlier.task() or len(set(self._agreed.classes)) > 1:
            raise self._refusal("clients have their own classes")
        if config.run.client_models or self._agreed.models:
            raise self._refusal("clients have their own models")
        if type(self._agreed.sharing) is not Sharing:
            raise self._refusal("it divides single arrays into shared and personal channels")
        model, self._sharing = assemble(config, shape, self._counts[0], vocabulary=vocabulary)
        wider = copy.deepcopy(self._agreed.model)
        self._extras: list[Mapping[str, Any]] = [
            extras_of(config, *of).shapes for of in ((model, self._sharing), (wider, self._agreed.sharing))
        ]
        arrays = wider.state_dict()
        if odd := sorted(arrays.keys() ^ model.state_dict().keys()):
            raise self._refusal(f"its arrays are others, for example {odd[0]}")
        for name, array in model.state_dict().items():
            try:
                arrays[name] = torch.from_numpy(widened(array.numpy(), arrays[name].numpy(), self._places))
            except StateError as error:
                raise self._refusal(f"its array {name}, {error}") from error
        wider.load_state_dict(arrays)
        x = made_up(shape, vocabulary)
        old, new = (_logits(config, of, x) for of in (model, wider))
        if not torch.allclose(old, new[:, self._places], atol=1e-5):
            raise self._refusal("with further ones it would predict the known ones otherwise")

    def _refusal(self, why: str) -> ConfigError:
        """Return the refusal of new classes, with what to do."""
        how = "start a new run with all classes"
        if (self._earlier.path / GLOBAL).is_file():
            how += f'; initial-weights = "{self._earlier.path / GLOBAL}" gives it the base of this one, with a new head'
        what = f"the run to continue had {self._counts[0]}, and {self._config.run.method} cannot go on with more"
        return ConfigError("num-classes", self._counts[1], f"{what}: {why}; {how}")

    def state(self, state: State) -> State:
        """Return the state of the earlier run with the rows of new classes; what options remember starts again."""
        if not self.new:
            return state
        rule, fresh = (
            make_rule(self._config, self._agreed.clients, of) for of in (self._sharing, self._agreed.sharing)
        )
        rule.load_state(state)
        now = fresh.state()
        # Of all that is shared, and of what grows of it: a server may keep heads alone.
        both = [*zip(rule.layout.entries, fresh.layout.entries, strict=True)]
        indexes = [_index(pairs, self._places) for pairs in (both, [pair for pair in both if pair[0] != pair[1]])]
        kept = {name: state[name] for name in self._of_clients if name in state}
        own = {name: array for name, array in rule.state().items() if name not in kept}
        return {**kept, **{name: self._array(name, array, now.get(name), indexes) for name, array in own.items()}}

    def _array(
        self, name: str, array: np.ndarray, fresh: np.ndarray | None, indexes: Sequence[np.ndarray]
    ) -> np.ndarray:
        for index in indexes:
            known, shape = index >= 0, array.shape[:-1] + index.shape
            if known.any() and array.shape[-1:] == (known.sum(),):
                found = fresh.copy() if fresh is not None and fresh.shape == shape else np.zeros(shape, array.dtype)
                found[..., known] = array[..., index[known]]
                return found
        before, now = self._extras
        if array.shape == before.get(name):
            return widened(array, np.zeros(now[name], array.dtype), self._places)
        if fresh is not None and array.shape == fresh.shape:
            return array
        raise self._refusal(f"its server keeps {name}, which has no place for them")

    def personal(self, places: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        """Return where clients' arrays are, with what becomes of their classes."""
        if not self.new:
            return places
        text = ",".join(map(str, self._places))
        return [(*place[:2], ",".join(map(str, places_of(text, *place[2:])))) for place in places]


def _known(count: int, told: str, given: Sequence[str] | None, setting: str) -> Sequence[str] | None:
    """Return the names of classes: their numbers if they have none, and None if only clients know them.

    ``told`` is the hash of the names, which may be ``given`` or in a setting.
    """
    if not told:
        return [*map(str, range(count))]
    return next((names for names in (given or (), listed(setting)) if digest(names) == told), None)


def _index(pairs: Sequence[tuple[Entry, Entry]], places: Sequence[int]) -> np.ndarray:
    """Return for each value of a vector of some arrays which one it was before: int64, −1 for those of new classes."""
    old = Layout(tuple(before for before, _ in pairs))
    numbers, found = old.unflatten(np.arange(old.size)), [np.zeros(0, np.int64)]
    for name, shape in (now for _, now in pairs):
        found.append(widened(numbers[name], np.full(shape, -1), places).reshape(-1))
    return np.concatenate(found)


@torch.no_grad()
def _logits(config: Config, model: nn.Module, x: Tensor) -> Tensor:
    """Return what a client predicts with a model, in a method with a common model with that."""
    model.eval()
    found: Tensor = (common_model(config.method, model) or config.method.personalised(model))(x)
    return found
