"""What a device takes part in: its owner's policy, a TOML file that no server can change.

``fedpfl-worker --policy FILE`` or the environment variable ``FEDPFL_POLICY`` names the file. The process that answers
for a client checks each message against it before data are read or custom code is imported. Settings of a run come from
the server; this file and the environment are the device's own. docs/how-to/what-leaves-a-client.md has the keys.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import socket
import sysconfig
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Collection, ContextManager, Iterable, Iterator, Mapping, Tuple

import numpy as np

from ..core import code_hash, references, user_code
from ..core.checksummed_files import MAX_TOML, from_json_line, json_line, parse_toml, read_arrays, write_arrays
from ..core.errors import FedpflError, StateError, did_you_mean
from ..core.extra_arrays import SERVER
from ..core.files import locked, private_folder, read_regular, write_atomically
from ..core.metric_bounds import shown
from ..core.privacy_accounting import epsilon
from ..core.settings import Value
from ..setup.all_settings import all_settings, code_in, places, tagged
from ..setup.options.client_settings import KEY, ClientSettingsOption, tables
from ..setup.options.evaluate_global import EvaluateGlobalSettings
from ..setup.options.privacy import PrivacySettings

if TYPE_CHECKING:
    from ..setup.config import Config

# Names the policy's file.
VARIABLE = "FEDPFL_POLICY"
# What the smallest file takes on a disk.
FILE_BYTES = 4096
# In the first state folder: how often this device has answered with arrays, in all runs together, and the µ² that the
# answers with noise have spent.
LEDGER = "releases.json"
# So many threads an app may have for each core.
THREADS_A_CORE = 4
# A run uses one of them in the place of the other.
_LENGTHS = ("local-epochs", "local-steps")
# Whose 0 is no bound.
_FREE_AT_0 = ("clip-norm", "dp-epsilon")
# A model's name with this prefix continues with a folder. A name on Hugging Face's hub is below no data folder, and
# what is there is the choice of the one who started the run.
_HF = "hf:"
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")

# Rounds of which a client stores its answer: a server whose newest checkpoint is damaged goes back by a round.
ANSWERS = 2
_ANSWER = re.compile(r"answer-(\d{6,})\.safetensors")

Names = Tuple[str, ...]


class PolicyError(FedpflError):
    """The device's policy cannot be read, or refuses what a run asks for."""


@dataclass(frozen=True)
class Policy:
    """What the device's owner allows; a key that the file lacks has its default here."""

    data_folders: Names = ("~/.fedpfl/data",)  # a run reads data and initial weights only below these
    state_folders: Names = ("~/.fedpfl/state",)  # clients store their arrays only below these
    methods: Names | None = None  # None: all that are installed here
    parts: Names = ()  # custom methods, models and data sets, as MODULE:NAME
    # allowed results of code_hash.of_package, and hashes of apps with custom code; None: fedpfl's may be any
    code_hashes: Names | None = None
    personal_arrays: bool = False  # whether personal arrays may leave the device
    least_dp_noise_multiplier: float = 0.0  # the least noise that clients add themselves
    most_state_bytes: int | None = None  # what state_folders may hold together; None: any size
    most_releases: float = math.inf  # how often clients of this device answer with arrays, in all runs
    most_epsilon: float = math.inf  # what the noise of all these answers may leave of privacy, at delta
    delta: float = 1e-5
    most_seconds: float = 86_400.0  # for a message
    most_memory_bytes: int | None = None  # of the process that answers; None: any
    most: Mapping[str, float] = field(default_factory=dict)  # the largest values of a run's settings

    def check(self, run_config: Mapping[str, Value], own_data: str, sent: Collection[str] | None = None) -> None:
        """Raise :class:`PolicyError` for a run that the policy refuses; ``sent`` are the settings that a server chose.

        What this device's own program says needs no permission: whoever could change it could do without the policy.
        """
        from .run_settings import parse_once  # imports torch; a worker listens before that

        # First, because checking the settings imports a custom method, and some cost memory when they are checked.
        chosen = {key: value for key, value in run_config.items() if sent is None or key in sent}
        self._check_largest(chosen)
        self._check_code(chosen)
        config = parse_once(run_config)
        self._check_largest({key: value for key, value in config.flat().items() if sent is None or key in sent})
        if config.wants(ClientSettingsOption) and KEY in chosen:
            for table in tables(config).values():
                self._check_largest(table)
        self._check_method(config)
        self._check_privacy(config)
        for key, place in _read_places(config, own_data):
            if sent is None or key in sent:
                _require_below(key, place, self.data_folders, "data-folders")
        if sent is None or "state-dir" in sent:
            _require_below("state-dir", config.run.state_dir, self.state_folders, "state-folders")

    def check_model(self, model: str) -> None:
        """Raise :class:`PolicyError` for a model that the policy refuses, before it is built."""
        for kind, text in code_in({"model": model}):
            self._check_part(kind, text)
        if model.startswith(_HF):
            _require_below("model", model[len(_HF) :], self.data_folders, "data-folders")

    @property
    def counts_answers(self) -> bool:
        """Whether a round has one answer, which is counted: where noise hides it, or there may not be many."""
        return self.least_dp_noise_multiplier > 0 or min(self.most_releases, self.most_epsilon) < math.inf

    def count_release(self, noise: float) -> None:
        """Raise :class:`PolicyError` if there may be no more answers, else count this one; ``noise`` is its z."""
        folder = _resolved(self.state_folders[0]) if self.state_folders else None
        if folder is None:
            raise PolicyError(f"{_device()}: answers are counted in the first of state-folders, and there is none")
        refusal, path = "", folder / LEDGER
        private_folder(folder)
        with locked(folder / f".{LEDGER}.lock"):
            before = from_json_line(path.read_bytes(), path, "releases") if path.is_file() else {}
            number = before.get("releases", 0) + 1
            spent = before.get("mu-squared", 0.0) + (1 / noise**2 if noise else 0.0)
            total = epsilon(math.sqrt(spent), self.delta)
            if number > self.most_releases:
                refusal = f"it has answered {number - 1} times, and most-releases is {self.most_releases:g}"
            elif total > self.most_epsilon:
                refusal = f"its answers would spend ε = {total:.2f} together, and most-epsilon is {self.most_epsilon:g}"
            else:
                counted = json_line({"releases": number, "mu-squared": spent})
                write_atomically(path, counted.encode(), private=True)
        if refusal:
            raise PolicyError(f"{_device()} refuses to answer: {refusal}")

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """End the work on a message when it has taken too long, or needs more memory than is allowed."""
        # The clock is a thread and starts before the limit: without memory for it, Python would wait indefinitely.
        with ended_after(self.most_seconds) as clock, _limited_memory(self.most_memory_bytes):
            try:
                yield
            except MemoryError:
                raise self._too_much_memory() from None
            except RuntimeError as error:
                if "can't allocate memory" not in str(error):  # so torch says it
                    raise
                raise self._too_much_memory() from None
        if clock.is_over:
            raise PolicyError(f"{_device()} ended the work: it took more than most-seconds = {self.most_seconds:g}")

    def _too_much_memory(self) -> PolicyError:
        limit = "this machine" if self.most_memory_bytes is None else f"most-memory-bytes = {self.most_memory_bytes}"
        return PolicyError(f"{_device()} ended the work: it needs more memory than {limit} has")

    def require_room(self, size: int) -> None:
        """Raise :class:`PolicyError` if ``size`` bytes more would be too many in the state folders."""
        if self.most_state_bytes is None:
            return
        used = 0
        folders = [folder for folder in map(_resolved, self.state_folders) if folder is not None]
        for path in {path for folder in folders for path in folder.rglob("*")}:
            with suppress(FileNotFoundError):  # another process has just removed it
                used += max(FILE_BYTES, path.stat().st_size)
        if used + size > self.most_state_bytes:
            reason = f"state-folders hold {used}, and most-state-bytes is {self.most_state_bytes}"
            raise PolicyError(f"{_device()} refuses {size} more bytes of state: {reason}")

    def _check_code(self, run_config: Mapping[str, Value]) -> None:
        mine, allowed = code_hash.of_package(), self.code_hashes
        if allowed is not None and mine not in allowed:
            raise _refused("fedpfl's code", mine, "it is not in code-hashes")
        for kind, text in code_in(run_config):
            self._check_part(kind, text)

    def _check_largest(self, run_config: Mapping[str, Value]) -> None:
        for key, most in {"threads": THREADS_A_CORE * (os.cpu_count() or 1), **self.most}.items():
            value: Any = run_config.get(key)
            if isinstance(value, str):  # a number of layers may be a text
                with suppress(ValueError):
                    value = float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > most:
                raise _refused(key, run_config[key], f"at most {most:g} is allowed")
            if key in _FREE_AT_0 and value == 0:
                raise _refused(key, value, f"0 is no limit, and at most {most:g} is allowed")

    def _check_part(self, kind: str, text: str) -> None:
        if text in references.objects:  # of this very process: no message can bring one
            return
        if text not in self.parts:
            raise _refused(kind, text, "it is not in parts")
        folder = user_code.folder_of(text)
        if folder is None:  # or a package without an __init__.py, which would be imported all the same
            raise _refused(kind, text, "there is no file of this module")
        if folder.resolve() in {Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED}:
            return
        # The server's app brings this code.
        theirs = code_hash.of_folder(folder)
        if theirs not in (self.code_hashes or ()):
            raise _refused(f"the code of {text}", theirs, "it is not in code-hashes")

    def _check_method(self, config: Config) -> None:
        name, method = config.run.method, config.method
        if self.methods is not None and not references.is_reference(name) and not {name, method.name} & {*self.methods}:
            raise _refused("method", name, f"methods has {', '.join(self.methods) or 'none'}")
        if self.personal_arrays:
            return
        if config.of(EvaluateGlobalSettings).evaluate_global:
            raise _refused("evaluate-global", True, "personal-arrays is false")
        copies = any(extra.copy_of is not None and extra.goes(SERVER) for extra in method.extras)
        if method.aggregation.rule.sees_personal or copies:
            raise _refused("method", name, "it sends personal arrays, and personal-arrays is false")

    def _check_privacy(self, config: Config) -> None:
        privacy, least = config.of(PrivacySettings), self.least_dp_noise_multiplier
        rule = f"least-dp-noise-multiplier is {least:g}"
        if self.most_epsilon < math.inf:
            least, rule = max(least, 1e-3), f"most-epsilon is {self.most_epsilon:g}"
        if privacy.dp_noise_multiplier < least:
            raise _refused("dp-noise-multiplier", privacy.dp_noise_multiplier, rule)
        if least and privacy.dp_where != "client":
            raise _refused("dp-where", privacy.dp_where, f"it must be client, because {rule}")
        if least and privacy.dp_reproducible:
            raise _refused("dp-reproducible", True, f"the server could subtract the noise, and {rule}")


def guard() -> Policy | None:
    """Return the policy of this device's owner, read once in a process; None if it has none."""
    path = os.environ.get(VARIABLE)
    return _read(Path(path).absolute()) if path else None


def bounded() -> ContextManager[None]:
    """Return the bounds of the work on a message, if this device has a policy."""
    owner = guard()
    return nullcontext() if owner is None else owner.bounded()


def answer_once(
    owner: Policy, folder: Path, server_round: int, noise: float, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the arrays that a client sends in a round: those of its first answer to it, else these.

    A server could ask for a round again with other settings, and so have the noise of differential privacy drawn anew.
    ``noise`` is the noise multiplier of the arrays, which are counted and stored.
    """
    path = folder / f"answer-{server_round:06d}.safetensors"
    if path.is_file():
        earlier = read_arrays(path)
        if {name: array.shape for name, array in earlier.items()} != {n: a.shape for n, a in arrays.items()}:
            raise StateError(f"round {server_round} was answered with arrays of other shapes: it has one answer")
        return earlier
    matches = [_ANSWER.fullmatch(file.name) for file in folder.iterdir()] if folder.is_dir() else []
    answered = sorted(int(match.group(1)) for match in matches if match)
    if answered and server_round < answered[-1]:
        raise StateError(f"round {server_round} is over: this client has answered round {answered[-1]}")
    owner.require_room(sum(array.nbytes for array in arrays.values()))
    owner.count_release(noise)
    private_folder(folder)
    write_arrays(path, arrays)
    for number in answered[: 1 - ANSWERS]:
        (folder / f"answer-{number:06d}.safetensors").unlink()
    return dict(arrays)


# -- the file --------------------------------------------------------------------------------------------------------


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _are_places(value: Any) -> bool:
    return _are_texts(value) and all(text.startswith(("/", "~")) and _resolved(text) is not None for text in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _numbers() -> set[str]:
    return {key for key, field in all_settings(look=False).items() if type(field.default) in (int, float)}


_PLACES = (_are_places, "must be a list of paths that are absolute or start with ~")
_TEXTS = (_are_texts, "must be a list of texts")
_NUMBER = (_is_number, "must be a number of at least 0")
_WHOLE = (_is_whole, "must be a whole number of at least 0")
_KEYS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "data-folders": _PLACES,
    "state-folders": _PLACES,
    "methods": _TEXTS,
    "parts": _TEXTS,
    "code-hashes": _TEXTS,
    "personal-arrays": (lambda value: isinstance(value, bool), "must be true or false"),
    "least-dp-noise-multiplier": _NUMBER,
    "most-state-bytes": _WHOLE,
    "most-releases": _WHOLE,
    "most-epsilon": _NUMBER,
    "delta": (lambda value: type(value) is float and 0 < value < 1, "must be a number above 0 and below 1"),
    "most-seconds": _NUMBER,
    "most-memory-bytes": _WHOLE,
    "most": (lambda value: isinstance(value, dict), "must be a table of settings, with the largest value of each"),
}


@lru_cache(maxsize=None)
def _read(path: Path) -> Policy:
    try:
        content = parse_toml(read_regular(path, MAX_TOML).decode())
    except (OSError, ValueError, RecursionError, StateError) as error:  # ValueError: neither UTF-8 nor TOML
        raise PolicyError(f"the policy {path} cannot be read: {error}") from error
    return policy_of(str(path), content)


def policy_of(where: str, content: Mapping[str, Any]) -> Policy:
    """Return the policy with these keys; raise :class:`PolicyError` for one that there is not, or for a wrong value."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in _KEYS:
            raise PolicyError(f"{where}: there is no key {shown(key)}{did_you_mean(str(key), _KEYS)}")
        fits, allowed = _KEYS[key]
        if not fits(value):
            raise PolicyError(f"{where}: {key} = {shown(value)}: {allowed}")
        for setting, most in value.items() if key == "most" else ():
            if setting not in _numbers() or not _is_number(most):
                hint = did_you_mean(setting, _numbers())
                wrong = f"{shown(setting)} = {shown(most)}: must be a setting that is a number, and its largest value"
                raise PolicyError(f"{where}: most: {wrong}{hint if setting not in _numbers() else ''}")
        if key == "most" and len(bounded_lengths := [name for name in _LENGTHS if name in value]) == 1:
            message = f"bounds {bounded_lengths[0]} alone: bound {' and '.join(_LENGTHS)}, since a run may use either"
            raise PolicyError(f"{where}: most: {message}")
        values[key.replace("-", "_")] = tuple(value) if isinstance(value, list) else value
    return Policy(**values)


# -- what a run asks for ---------------------------------------------------------------------------------------------


def _read_places(config: Config, own_data: str) -> Iterator[tuple[str, str]]:
    """Yield (key, path) of all that a run reads on this device."""
    from ..data.reading import entry

    # Data of the device's own stand in the place of what the run names; a data set is downloaded, or it is the user's.
    left_out = (
        {"data", "data-dir"} if own_data else {"data-dir"} if entry(config.data.dataset)[0].from_path else {"data"}
    )
    yield from {"data-path": own_data}.items() if own_data else ()
    left_out |= {"state-dir", *tagged("server")}
    yield from places(config.flat(), tagged("place") - left_out).items()
    for model in (config.run.model, *(model for _, model in config.run.listed_models())):
        if model.startswith(_HF):
            yield "model", model[len(_HF) :]


def _require_below(key: str, place: str, folders: Iterable[str], rule: str) -> None:
    path = _resolved(place)
    if key == "model" and not place.startswith(("/", "~")):  # a name on the hub: a run could have it loaded from there
        path = None
    if path is None or not {path, *path.parents} & {_resolved(folder) for folder in folders}:
        raise _refused(key, place, f"it is not below {rule}")


def _resolved(place: str) -> Path | None:
    """Return where a path leads to, without links and ``..``; None if it is no path."""
    try:
        return Path(place).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a home that there is not, a zero byte
        return None


@contextmanager
def _limited_memory(most: int | None) -> Iterator[None]:
    """Have the process get no more memory meanwhile; afterwards it may belong to another run, or to a simulation."""
    if most is None:
        yield
        return
    try:
        import resource
    except ImportError:  # Windows
        raise PolicyError(f"{_device()}: most-memory-bytes has no effect on this system") from None
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min(n for n in (most, soft, hard) if n >= 0), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _refused(key: str, value: object, rule: str) -> PolicyError:
    return PolicyError(f"{_device()} refuses {key} = {value!r}: {rule}")


def _device() -> str:
    return f"the policy of {socket.gethostname()}"


class _TimeIsOver(BaseException):
    """Is raised in a thread from outside: not even ``except Exception`` of a user's code goes on then."""


class Deadline:
    """Whether the time of a piece of work is over."""

    is_over = False


@contextmanager
def ended_after(seconds: float) -> Iterator[Deadline]:
    """End the block at the next step of Python's once it has taken so long; ``is_over`` then is true after it."""
    deadline, thread, lock, finished = Deadline(), threading.get_ident(), threading.Lock(), False

    def end() -> None:
        with lock:
            if not finished:
                deadline.is_over = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TimeIsOver))

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
        yield deadline
        with lock:
            finished = True
    except _TimeIsOver:
        pass
    finally:
        timer.cancel()
