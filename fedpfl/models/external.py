"""External models: any ``nn.Module``, torchvision's, timm's and those in a folder of Hugging Face's.

An external model is cut before its last ``nn.Linear``: that is its head, and the rest, with an ``nn.Identity``
in its place, its base. Made-up samples go through both, so that a model that does not take the data, or gives something
else than a logit for each class, is refused in one line, before anything is sent. One that does not end in such a layer
is all base (``NoHead``): methods that need no head take it.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

from fedpfl.core.errors import ConfigError, did_you_mean
from fedpfl.core.model_state import (
    ModelState,
    OutsideState,
    buffers_kept,
    has_gradient_hooks,
    has_own_code,
    require_plain_state_dict,
    require_possible_hooks,
)
from fedpfl.core.name_lists import shown
from fedpfl.core.references import article
from fedpfl.core.user_code import global_state_kept

from .parts import cut_at
from .registry import BaseHeadModel, NoHead, Shape

# What modules that are not ours raise when an input does not fit them.
_UNFIT = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, NotImplementedError)
# What reading a folder of weights raises.
_UNREADABLE = (OSError, *_UNFIT)
PROBES = 2  # samples
PADDING = 0
# What changes if a model gives other numbers for the same input and nothing shows why.
UNSEEN = "a value that no module holds"
# Made of base and head, a model may have a head of any layers.
NEEDED = "; the method needs a head, which is that layer or a part of its own (BaseHeadModel)"


def extra(package: str, name: str, key: str, value: object) -> Any:
    """Import a package that an extra of fedpfl brings, or raise ``ConfigError`` with what installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = package.partition(".")[0]
        wanted = f"fedpfl[{name}]" if name else missing
        message = f'needs {missing}, which is not installed here: pip install "{wanted}" ({error})'
        raise ConfigError(key, value, message) from None


def with_head(
    module: nn.Module, input_shape: Shape, num_classes: int, vocabulary: int = 0, head: str = "", name: str = ""
) -> BaseHeadModel:
    """Cut any module into base and head, in place; a :class:`BaseHeadModel` is only checked.

    The module maps inputs (n, *input_shape) to (n, num_classes), images to (n, num_classes, height, width), or texts to
    (n, length, num_classes). ``head`` names its ``nn.Linear`` that becomes the head, of the second kind an
    ``nn.Conv2d``; empty for the last one, if the model ends in it.
    """
    name = name or type(module).__name__
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
        raise ConfigError(
            "model",
            name,
            "is a TorchScript program, which cannot be cut or copied; give the nn.Module that it was made of",
        )
    for array_name, array in (*module.named_parameters(), *module.named_buffers()):
        if array.layout != torch.strided:
            raise ConfigError("model", name, f"its array {array_name} is sparse; must be dense: to_dense()")
    x, input_text = made_up(input_shape, vocabulary), f"{shown(input_shape)}{' tokens of text' * bool(vocabulary)}"
    if any(isinstance(layer, LazyModuleMixin) for layer in module.modules()):
        _output(module, x, name, num_classes, input_text)  # makes their parameters
    for array_name, array in (*module.named_parameters(), *module.named_buffers()):
        if any(step == 0 for step, size in zip(array.stride(), array.shape) if size > 1):
            raise ConfigError("model", name, f"its array {array_name} is expanded and cannot train; must be cloned")
    require_possible_hooks(module, name)
    require_plain_state_dict(module, name)
    state = ModelState(module)
    wanted = _output(module, x, name, num_classes, input_text)
    state.restore()
    outside = OutsideState(map(type, module.modules()))
    moved: list[Tensor] = []
    # Code that is called where gradients are computed may count or collect, too.
    hooked = has_gradient_hooks(module)
    sparse = any(getattr(layer, "sparse", False) for layer in module.modules())
    gradients: list[Tensor] | None = [] if hooked or sparse or has_own_code(module) else None
    with _Watched() as watched:
        out = _output(module, x, name, num_classes, input_text, training=True, moved=moved, gradients=gradients)
    if any(gradient.layout != torch.strided for gradient in gradients or ()):
        raise ConfigError("model", name, "gives sparse gradients; must give dense ones: an embedding's sparse=False")
    unkept, in_common = tuple(state.changed()), tuple(outside.changed())
    state.restore()
    if not in_common:
        later: list[Tensor] | None = None if gradients is None else []
        again = _output(module, x, name, num_classes, input_text, training=True, gradients=later)
        pairs = zip((out, *(gradients or ())), (again, *(later or ())))
        alike = all(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True) for one, other in pairs)
        in_common = (UNSEEN,) * (not alike)
        state.restore()
    contiguous = _needs_contiguous(module, x, name, num_classes, input_text)
    state.restore()
    totals = wanted.sum(_class_dimension(wanted))
    if num_classes > 1 and bool((wanted >= 0).all()) and torch.allclose(totals, torch.ones_like(totals)):
        raise ConfigError(
            "model", name, "gives probabilities; leave out the softmax at its end, since losses need logits"
        )
    if wanted.dim() == 3:
        _require_causal(module, x, wanted, name, num_classes, input_text)
    model = (
        module if isinstance(module, BaseHeadModel) else _in_two(module, x, wanted, num_classes, head, name, in_common)
    )
    state.restore()
    model.gives_for = {2: "sample", 3: "token"}.get(wanted.dim(), "pixel")
    model.ends_in_log_softmax = num_classes > 1 and _are_logarithms(wanted)
    model.unkept, model.in_common = unkept, in_common
    arrays = (*model.named_parameters(), *model.named_buffers())
    model.moving = tuple(name for name, array in arrays if any(array is one for one in moved))
    model.contiguous, model.ends_in_sigmoid = contiguous, watched.ends_in_sigmoid(out)
    model.hooks_gradients = hooked or watched.hooks
    return model


def _require_causal(module: nn.Module, x: Tensor, wanted: Tensor, name: str, num_classes: int, input_text: str) -> None:
    """Refuse a model of texts that sees the tokens which it is to predict."""
    other = torch.cat([x[:, :-1], (x[:, -1:] + 1) % num_classes], 1)
    out = _output(module, other, name, num_classes, input_text)
    if not torch.allclose(out[:, :-1], wanted[:, :-1], atol=1e-4, rtol=1e-4):
        allowed = "depend on the tokens up to their place alone, as with a causal mask"
        raise ConfigError("model", name, f"sees later tokens: its outputs, n x length x {num_classes}, must {allowed}")


def _class_dimension(out: Tensor) -> int:
    """Return the dimension of the classes: the last one of texts, and else the second."""
    return 2 if out.dim() == 3 else 1


def _are_logarithms(out: Tensor) -> bool:
    """Tell whether a model's output is that of a log-softmax."""
    sums = out.logsumexp(_class_dimension(out))
    return torch.allclose(sums, torch.zeros_like(sums), atol=1e-5)


def _needs_contiguous(module: nn.Module, x: Tensor, name: str, num_classes: int, input_text: str) -> bool:
    """Tell whether a model takes images in the usual order of memory alone, as one with ``x.view(…)`` does.

    It gets them so from now on; other models compute faster with the channels last.
    """
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
        return False
    before = [(array, array.data) for array in (*module.parameters(), *module.buffers())]
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        last = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        _output(module, last, name, num_classes, input_text, training=True)
        return False
    except ConfigError:
        for array, data in before:
            array.data = data
    first = module.base if isinstance(module, BaseHeadModel) else module
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    first.register_forward_pre_hook(_in_usual_order)
    return True


def _in_usual_order(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    # With one channel both orders count as contiguous, and only a new view has the strides of the usual one.
    return tuple(x.reshape(-1).view(x.shape) if isinstance(x, Tensor) else x for x in inputs)


class _Watched(TorchFunctionMode):
    """Notes what sigmoids give while a model computes, and whether it hooks gradients of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[Tensor] = []
        self.hooks = False

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch and note a sigmoid's values, or a hook."""
        result, function = func(*args, **(kwargs or {})), getattr(func, "__name__", "").strip("_")
        if function in ("sigmoid", "hardsigmoid") and isinstance(result, Tensor):
            self._results.append(result.detach())
        self.hooks |= function == "register_hook"
        return result

    def ends_in_sigmoid(self, out: Tensor) -> bool:
        """Tell whether a model's output is that of a sigmoid."""
        values = out.flatten().sort().values
        alike = (result.flatten().sort().values for result in self._results if result.numel() == out.numel())
        return any(torch.equal(result, values) for result in alike)


def _in_two(
    module: nn.Module, x: Tensor, wanted: Tensor, num_classes: int, head: str, name: str, in_common: Sequence[str]
) -> BaseHeadModel:
    """Cut a module before its head; ``wanted`` is what it gives for ``x``, and ``in_common`` what it may depend on."""
    kind = nn.Conv2d if wanted.dim() > 3 else nn.Linear
    what = f"nn.{kind.__name__}"
    layers = [path for path, layer in module.named_modules() if type(layer) is kind]
    if head and head not in layers:
        raise ConfigError("model", name, f"has no {what} called {head!r}")
    if not layers:
        return _whole(module, name, f"has no {what}")
    chosen = head or layers[-1]
    if not chosen:  # it is the layer itself
        return BaseHeadModel(nn.Flatten() if kind is nn.Linear else nn.Identity(), module)  # type: ignore[arg-type]
    # A factor of 1 or a term of 0 behind the layer, which then trains, shows with other values alone.
    others = _other_values(module)
    try:
        outputs = _outputs(module, x, name, num_classes, others)
    except ConfigError:  # which these values do not allow
        others, outputs = [], torch.cat([wanted, wanted])
    model = cut_at(module, chosen)
    why = f"does not end in {'the' if head else 'its last'} {what}{',' * (not head)} {chosen!r}"
    try:
        if torch.allclose(_outputs(model, x, name, num_classes, others), outputs, 1e-4, 1e-4, equal_nan=True):
            why = f"uses its {what} {chosen!r} elsewhere than at its end, too"
            _output(model, x, name, num_classes, name, training=True)
            return model
    except ConfigError:
        pass
    if in_common:
        why = f"gives other numbers for the same input, as it changes {in_common[0]}: where it ends cannot be seen"
    if _are_logarithms(wanted):
        why = f"has a log-softmax behind its {what} {chosen!r}, which cross-entropy does without"
    if head:
        raise ConfigError("model", name, why)
    parent, _, short = chosen.rpartition(".")
    setattr(module.get_submodule(parent), short, model.head)
    return _whole(module, name, why)


def _other_values(module: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Return other values of a module's parameters, each a little larger: what has to be above 0 stays so."""
    generator = torch.Generator().manual_seed(0)

    def share(parameter: Tensor) -> Tensor:
        return torch.rand(parameter.shape, generator=generator).to(parameter)

    parameters = [parameter for parameter in module.parameters() if parameter.is_floating_point()]
    return [(p, p.detach() * (1 + 0.2 * share(p)) + 0.05 * share(p)) for p in parameters]


def _outputs(
    module: nn.Module, x: Tensor, name: str, num_classes: int, others: Sequence[tuple[nn.Parameter, Tensor]]
) -> Tensor:
    """Return a module's output for ``x``, and that with other values of its parameters, both from the same state."""
    state = ModelState(module)
    first = _output(module, x, name, num_classes, name)
    state.restore()
    before = [(parameter, parameter.data) for parameter, _ in others]
    try:
        for parameter, values in others:
            parameter.data = values
        return torch.cat([first, _output(module, x, name, num_classes, name)])
    finally:
        for parameter, values in before:
            parameter.data = values
        state.restore()


def _whole(module: nn.Module, name: str, reason: str) -> BaseHeadModel:
    """Return a model that has no head."""
    if not any(True for _ in module.parameters()):
        raise ConfigError("model", name, "has no parameters")
    return BaseHeadModel(module, NoHead(name, reason + NEEDED))  # type: ignore[arg-type]


def made_up(shape: Shape, vocabulary: int = 0) -> Tensor:
    """Return samples whose numbers are not all the same, so that a layer which is left out shows."""
    size = torch.Size((PROBES, *shape))
    x = torch.arange(size.numel()).reshape(size)
    return x % vocabulary if vocabulary else x / max(1, size.numel() - 1) * 2 - 1


@torch.no_grad()
def _output(
    module: nn.Module,
    x: Tensor,
    name: str,
    num_classes: int,
    input_text: str,
    training: bool = False,
    moved: list[Tensor] | None = None,
    gradients: list[Tensor] | None = None,
) -> Tensor:
    """Return a module's output for made-up samples; its arrays are as before afterwards, and ``moved`` has who changed.

    ``gradients`` gets those of its parameters. ``input_text`` describes the input in errors.
    """
    mode, when = module.training, " in training mode" if training else ""
    arrays = [(array, array.clone()) for array in (*module.parameters(), *module.buffers()) if training]
    module.train(training)
    kept = buffers_kept(module) if training else nullcontext()
    try:
        with global_state_kept(), _without_breakpoints(), kept:
            taken, wrong = x.clone(), f"does not take inputs of {input_text}{when}"
            with torch.set_grad_enabled(gradients is not None):
                out = module(taken)
                if gradients is not None and isinstance(out, Tensor) and out.requires_grad:
                    wrong = "gives no gradients"
                    gradients += _gradients(module, out)
                    out = out.detach()
    except _UNFIT as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError("model", name, f"{wrong}: {reason}") from error
    finally:
        module.train(mode)
        for array, before in arrays:
            if not torch.equal(array, before):  # a copy of the same numbers would count as a change of a buffer
                if moved is not None:
                    moved.append(array)
                array.copy_(before)
    if not torch.equal(taken, x):
        message = f"changes its inputs in place{when}, as x -= 0.5 and a first ReLU(inplace=True) do: others need them"
        raise ConfigError("model", name, f"{message}; write x = x - 0.5")
    if not isinstance(out, Tensor):
        message = f"gives {article(out)}{when}; must give a tensor of n x {num_classes} for n samples"
        raise ConfigError("model", name, message)
    # A number for each class; or for each class and pixel, or token.
    dense = (PROBES, num_classes, *x.shape[2:]) if x.is_floating_point() else (PROBES, *x.shape[1:], num_classes)
    if tuple(out.shape) not in ((PROBES, num_classes), dense):
        if not x.is_floating_point() and out.dim() == 3 and out.shape[1:2] == x.shape[1:]:
            message = f"has {out.shape[2]} tokens, and the data {num_classes}: num-classes, or vocabulary in a file"
            raise ConfigError("model", name, f"{message}, must be the model's")
        numbers = shown(tuple(out.shape[1:]))
        raise ConfigError("model", name, f"gives {numbers} numbers for a sample{when}; the data need {num_classes}")
    return out


def _gradients(module: nn.Module, out: Tensor) -> list[Tensor]:
    """Return the gradients of a module's parameters, of those on which its output depends."""
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    made = torch.autograd.grad((weights * out.float()).sum(), parameters, allow_unused=True)
    return [gradient for gradient in made if gradient is not None]


@contextmanager
def _without_breakpoints() -> Iterator[None]:
    """Let ``breakpoint()`` do nothing: in a user's model it is meant for the clients' batches."""
    hook, sys.breakpointhook = sys.breakpointhook, lambda *_, **__: None
    try:
        yield
    finally:
        sys.breakpointhook = hook


def _unknown(value: str, word: str, available: Sequence[str]) -> ConfigError:
    return ConfigError(
        "model", value, f"{value.partition(':')[0]} has no model {word!r}{did_you_mean(word, available)}"
    )


def torchvision_model(
    word: str, shape: Shape, num_classes: int, vocabulary: int, download: bool, tokens: bool = False
) -> BaseHeadModel:
    """Build one of ``torchvision.models``."""
    value = f"torchvision:{word}"
    zoo = extra("torchvision.models", "", "model", value)
    available = zoo.list_models(module=zoo)
    if word not in available:
        raise _unknown(value, word, available)
    build = partial(zoo.get_model, word)
    if not download:
        return with_head(_built(partial(build, weights=None, num_classes=num_classes), value), shape, num_classes,
                         vocabulary, name=value)  # fmt: skip
    module = _built(partial(build, weights="DEFAULT"), value)
    linear = [(path, layer) for path, layer in module.named_modules() if type(layer) is nn.Linear]
    if linear:
        last, layer = linear[-1]
        parent, _, short = last.rpartition(".")
        setattr(module.get_submodule(parent), short, nn.Linear(layer.in_features, num_classes))
    return with_head(module, shape, num_classes, vocabulary, name=value)


def timm_model(
    word: str, shape: Shape, num_classes: int, vocabulary: int, download: bool, tokens: bool = False
) -> BaseHeadModel:
    """Build a model of ``timm``; where it takes the size and the channels of the images, they are the data's."""
    value = f"timm:{word}"
    timm = extra("timm", "timm", "model", value)
    if not timm.is_model(word):
        raise _unknown(value, word, timm.list_models())
    build = partial(timm.create_model, word, pretrained=download, num_classes=num_classes)
    options: dict[str, Any] = {"in_chans": shape[0]} if len(shape) == 3 else {}

    def sized() -> nn.Module:
        # Transformers want to know the size of an image; most convolutional networks take no such word.
        try:
            return build(img_size=tuple(shape[1:]), **options)  # type: ignore[no-any-return]
        except TypeError:
            return build(**options)  # type: ignore[no-any-return]

    return with_head(_built(sized if options else build, value), shape, num_classes, vocabulary, name=value)


class Logits(nn.Module):
    """A model of transformers as a module that maps inputs to logits; in ``texts``, its padding tokens are masked."""

    def __init__(self, module: nn.Module, texts: bool) -> None:
        super().__init__()
        self.module = module
        self.texts = texts
        padding = getattr(getattr(module, "config", None), "pad_token_id", None)
        self.padding_token = PADDING if padding is None else int(padding)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to logits."""
        out = self.module(x, attention_mask=(x != self.padding_token).long()) if self.texts else self.module(x)
        logits: Tensor = out.logits
        return logits


class NextTokens(nn.Module):
    """A causal model of transformers as a module that maps tokens to the logits of the next one at each place.

    Texts begin at place 0: no token sees what fills up the end, so that nothing is masked.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (n, length) to logits (n, length, vocabulary)."""
        logits: Tensor = self.module(x, use_cache=False).logits
        return logits


def hf_model(
    word: str, shape: Shape, num_classes: int, vocabulary: int, download: bool, tokens: bool = False
) -> BaseHeadModel:
    """Read a model for images or for texts from a folder; one with a config.json and no weights starts afresh.

    With ``tokens`` it is a causal one.
    """
    value = f"hf:{word}"
    transformers = extra("transformers", "hf", "model", value)
    folder = Path(word).expanduser()
    there = (folder / "config.json").is_file()
    if not there and not download:
        message = (
            "is no folder with a config.json on this machine; download-weights = true would look for it on the hub"
        )
        raise ConfigError("model", value, message)
    place = str(folder) if there else word
    kind = "SequenceClassification" if vocabulary else "ImageClassification"
    auto = getattr(transformers, f"AutoModelFor{'CausalLM' if tokens else kind}")
    weights = there and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin"))

    def read() -> nn.Module:
        options = {"local_files_only": not download, **({} if tokens else {"num_labels": num_classes})}
        if weights:
            return auto.from_config(transformers.AutoConfig.from_pretrained(place, **options))  # type: ignore[no-any-return]
        return auto.from_pretrained(place, ignore_mismatched_sizes=not tokens, **options)  # type: ignore[no-any-return]

    module = _built(read, value)
    whole = NextTokens(module) if tokens else Logits(module, bool(vocabulary))
    return with_head(whole, shape, num_classes, vocabulary, name=value)


def _built(make: Callable[[], nn.Module], value: str) -> nn.Module:
    try:
        return make()
    except _UNREADABLE as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError("model", value, f"cannot be made on this machine ({reason})") from error


# (what stands behind the prefix, input shape, classes, vocabulary, whether to download weights, whether it predicts the
# next token at each place) → model.
BUILDERS: Mapping[str, Callable[[str, Shape, int, int, bool, bool], BaseHeadModel]] = {
    "torchvision": torchvision_model, "timm": timm_model, "hf": hf_model,
}  # fmt: skip
