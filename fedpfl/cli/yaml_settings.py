"""Settings in YAML, with the meaning that the same words have in TOML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..core.errors import ConfigError

# Size of a file with all settings; a larger file is something else.
MAX_BYTES = 2**20
# YAML 1.1 takes 1e-3 for a text, no for false and 1:30 for 90: here plain words mean what they mean in TOML.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9_]{0,30})")
_FLOAT = re.compile(r"[+-]?([0-9][0-9_]*)?\.?[0-9]+([eE][+-]?[0-9]+)?|[+-]?[0-9]+\.")
_WORDS = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}


def read_yaml(path: Path, option: str) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    The file's events are looked at one by one: sections, lists, anchors, tags and several documents are refused where
    they stand, so that no file can grow when it is read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(option, str(path), f"is longer than {MAX_BYTES} bytes, too long for settings")
        return _flat(path, option, content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(option, str(path), f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(option, str(path), f"is not valid YAML ({reason})") from error


def _flat(path: Path, option: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    key: str | None = None
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1

        def refuse(what: str, line: int = line) -> ConfigError:
            return ConfigError(option, str(path), f"line {line}: {what}")

        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise refuse("a second document; settings must be one document")
        elif isinstance(event, yaml.MappingStartEvent):
            if depth or event.anchor or event.tag:
                raise refuse(f"{key or 'the file'}: must be one value; settings have no sections")
            depth = 1
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor or event.tag:
                raise refuse("anchors and tags are not allowed")
            if not depth:
                if event.value:
                    raise refuse("must be lines of key: value")
            elif key is None:
                key = event.value
                if key in found:
                    raise refuse(f"{key} is set twice")
            else:
                value = _value(event.value) if event.implicit[0] else event.value
                if value is None:
                    raise refuse(f"{key} has no value; an empty text is written ''")
                found[key], key = value, None
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.AliasEvent)):
            raise refuse(f"{key or 'the file'}: must be one value, no list or reference")
    return found


def _value(word: str) -> Any:
    """Return what a word without quotes means; None for nothing."""
    if word in ("", "~", "null"):
        return None
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return int(word.replace("_", ""))
    return float(word.replace("_", "")) if _FLOAT.fullmatch(word) else word
