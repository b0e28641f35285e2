"""Builds a model by its name: one of the package, one of another library, or a custom function."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..core import references, user_code
from ..core.errors import ConfigError
from ..core.name_lists import shown
from .registry import MODELS, BaseHeadModel, Shape, takes_width
from .sources import AUTO, SOURCES, split_width

# The first that takes an input is what auto stands for; a stored run is built again by this list.
AUTOMATIC, AUTOMATIC_FOR_TOKENS = ("small-cnn", "cnn-1d", "gru", "transformer", "mlp"), "decoder"


def build(
    name: str, input_shape: Shape, num_classes: int, vocabulary: int = 0, download: bool = False, tokens: bool = False
) -> BaseHeadModel:
    """Build a model, drawing its initial weights from torch's global random generator; ``ConfigError`` if it cannot.

    ``name`` is one of :func:`names`, a prefix of :func:`sources` with a word behind it, or what
    :func:`fedpfl.core.user_code.find` takes; a width may stand behind it. ``input_shape`` is of one sample: (channels,
    height, width) of an image, (channels, time) of a series, (length,) of a text with ``vocabulary`` different tokens,
    for example (features,) otherwise. ``download``: a source may fetch pretrained weights from the internet.
    ``tokens``: a source with models of several kinds gives one that predicts the next token at each place of a text.
    """
    name = chosen(name, input_shape, vocabulary, tokens)
    plain, width = split_width(name)
    source = _source_of(plain)
    if source and width < 1:
        raise ConfigError("model", name, f"has one width; {_those_of_any_width()}")
    if source:
        from fedpfl.models.external import BUILDERS

        model = BUILDERS[source](name.partition(":")[2], input_shape, num_classes, vocabulary, download, tokens)
    elif _is_registered(plain):
        model = _registered(plain, input_shape, num_classes, vocabulary, width)
    else:
        model = _of_the_user(plain, input_shape, num_classes, vocabulary, width)
    model.called = name
    model.input_shape, model.vocabulary, model.width = input_shape, vocabulary, width
    model.another = partial(build, name, input_shape, num_classes, vocabulary, download, tokens)
    return model


def chosen(name: str, input_shape: Shape, vocabulary: int = 0, tokens: bool = False) -> str:
    """Return a model's name, and in place of auto that of the model for such an input."""
    if split_width(name)[0] != AUTO:
        return name
    fitting = (other for other in AUTOMATIC if not MODELS[other].complaint(input_shape, vocabulary))
    return name.replace(AUTO, AUTOMATIC_FOR_TOKENS if tokens else next(fitting, AUTOMATIC[-1]), 1)


def require_known(name: str) -> None:
    """Raise :class:`ConfigError` for an unknown model; whether a known one fits the data is not checked."""
    name = split_width(name)[0]
    if name != AUTO and not _source_of(name) and not _is_registered(name):
        user_code.find("model", name, MODELS)


def _source_of(name: str) -> str:
    """Return the prefix of a name that another library's models have; empty for other names."""
    prefix, colon, _ = name.partition(":")
    return prefix if colon and prefix in SOURCES else ""


def _is_registered(name: str) -> bool:
    return name in MODELS and name not in references.entry_point_names("model")


def _those_of_any_width() -> str:
    """Say which models can be narrower."""
    named = ", ".join(name for name in MODELS if MODELS[name].takes_width)
    return f"{named} can be narrower, and what you build with an argument 'width', the share of its channels"


def _registered(name: str, input_shape: Shape, num_classes: int, vocabulary: int, width: float) -> BaseHeadModel:
    entry = MODELS[name]
    complaint = entry.complaint(input_shape, vocabulary)
    if complaint:
        input_text = f"{shown(input_shape)}{' tokens of text' * bool(vocabulary)}"
        fitting = ", ".join(other for other in MODELS if not MODELS[other].complaint(input_shape, vocabulary))
        hint = f"; models that fit: {fitting}" if fitting else ""
        raise ConfigError("model", name, f"{complaint}, but the input is {input_text}{hint}")
    if width < 1 and not entry.takes_width:
        raise ConfigError("model", f"{name}@{width:g}", f"has one width; {_those_of_any_width()}")
    narrower = {"width": width} if width < 1 else {}
    return entry.builder(input_shape, num_classes, *([vocabulary] if vocabulary else []), **narrower)


def _of_the_user(name: str, input_shape: Shape, num_classes: int, vocabulary: int, width: float) -> BaseHeadModel:
    """Build what the function that a setting names makes; it gets those of :func:`build`'s arguments that it names."""
    function = user_code.find("model", name, MODELS)
    if isinstance(function, nn.Module):
        raise ConfigError(
            "model", name, f"is a {type(function).__name__} that is built; give a function that builds one"
        )
    offered = {
        "input_shape": tuple(input_shape), "num_classes": num_classes, "vocabulary": vocabulary, "width": width
    }  # fmt: skip
    unset = [key for key, usual in (("vocabulary", 0), ("width", 1)) if offered[key] == usual]
    if width < 1 and not takes_width(function):
        raise ConfigError("model", f"{name}@{width:g}", f"takes no argument 'width'; {_those_of_any_width()}")
    built = user_code.call("model", name, function, offered, unset)
    if not isinstance(built, nn.Module):
        raise ConfigError("model", name, f"returns {references.article(built)}; it must return a torch.nn.Module")
    from fedpfl.models.external import with_head

    return with_head(built, input_shape, num_classes, vocabulary, name=name)
