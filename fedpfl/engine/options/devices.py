"""The devices of a plan, as a file describes them (``devices-model``): which clients each has, and how fast it is.

docs/how-to/virtual-time.md has the keys, and where the shipped numbers come from.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...bench.device.profile import STANDARD, STANDARD_INPUT, Profile
from ...core.errors import ConfigError, DamagedFile, did_you_mean
from ...core.files import read_regular
from ...core.names import shown
from ...core.settings import keys, parse, setting
from ...core.stored import MAX_TOML
from ...setup.config import Config
from ...setup.options.virtual_time import VirtualTimeSettings

KEY = "devices-model"
DAY = 24.0
_CLIENTS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_HOURS = re.compile(r"(\d{1,2}(?:\.\d+)?)-(\d{1,2}(?:\.\d+)?)")


class Shipped(NamedTuple):
    """The figures of a kind of device without a measurement of the run: see docs/how-to/virtual-time.md."""

    train: float  # samples a second with STANDARD
    test: float
    watts: float = 0.0  # while it computes; 0: not known


# `laptop` was measured (docs/results/performance.md). The others are estimates: laptop's numbers times the ratio of two
# results of HPL, the whole board's and one core's of a desktop processor. docs/how-to/virtual-time.md has the sources
# and the sums.
SHIPPED: Mapping[str, Shipped] = {
    "nano": Shipped(470.0, 1_950.0, 10.0),
    "orin-nano": Shipped(1_820.0, 7_580.0, 7.6),
    "pi4": Shipped(590.0, 2_450.0, 7.2),
    "laptop": Shipped(1_900.0, 7_900.0),
}
# Where a file has only the speed of training: a test is the forward one of a step's three passes.
TEST_PER_TRAIN = 3.0


@dataclass(frozen=True)
class Device:
    """A machine that runs its clients one after the other."""

    clients: tuple[int, ...]
    train: float  # samples a second, each counted once an epoch
    test: float
    up: float = math.inf  # bytes a second
    down: float = math.inf
    delay: float = 0.0  # seconds that a message or a reply takes besides its bytes
    offline: tuple[tuple[float, float], ...] = ()  # hours of the day, from and to
    watts: float = 0.0  # while it computes
    idle_watts: float = 0.0


@dataclass(frozen=True)
class DevicesModel:
    """All devices of a plan, and their server."""

    devices: tuple[Device, ...]
    starts_at: float = 0.0  # hour of the day at which round 1 begins
    server_seconds: float = 0.0  # of the server for each message and its reply, one after the other


@dataclass(frozen=True)
class _Common:
    """The keys above a file's groups."""

    starts_at: float = setting(0.0, "Hour of the day at which round 1 begins.", minimum=0, maximum=DAY)
    measured: str = setting("", "Profile of this run's method and model, measured on any machine.")
    server_seconds: float = setting(0.17, "Seconds of the server for each message and its reply.", minimum=0)
    exchange_seconds: float = setting(1.3, "Additional seconds for a message and its reply.", minimum=0)
    round_trips: int = setting(5, "Times that a message and its reply cross the network and back.", minimum=1)


@dataclass(frozen=True)
class _Group:
    """The keys of a group of equal devices."""

    clients: str = setting("", "Numbers of clients, from 0.")
    clients_per_device: int = setting(1, "Clients that a device runs, one after the other.", minimum=1)
    profile: str = setting("", "Built-in profile by name, or the file of a measured one.")
    samples_per_second: float = setting(0.0, "Training samples a second, instead of a profile.", minimum=0)
    test_samples_per_second: float = setting(0.0, "Test samples a second.", minimum=0)
    up_mbit: float = setting(0.0, "Rate to the server; 0: no limit.", minimum=0)
    down_mbit: float = setting(0.0, "Rate from the server.", minimum=0)
    latency_ms: float = setting(0.0, "Delay of each byte, in each direction.", minimum=0)
    offline: str = setting("", "Hours of the day without network.")
    watts: float = setting(0.0, "Power while the device computes.", minimum=0)
    idle_watts: float = setting(0.0, "Power at all other times.", minimum=0)


@dataclass
class _Reader:
    """Reads a file for a run; every complaint names the file, and the group if it is about one."""

    path: Path
    config: Config
    input_shape: tuple[int, ...] | None
    group: str = field(default="", init=False)

    def bench(self, content: dict[str, Any], num_clients: int) -> DevicesModel:
        groups = {name: value for name, value in content.items() if isinstance(value, dict)}
        common = self.parsed(_Common, {key: value for key, value in content.items() if key not in groups})
        if self.config.run.client_models:
            raise self.error("does not work with client-models: a speed is measured with one model")
        measured = self.profile(common.measured) if common.measured else None
        devices: list[Device] = []
        for self.group, values in groups.items():
            devices += self.devices(self.parsed(_Group, values), common, measured)
        self.group = ""
        devices_of = Counter(client for device in devices for client in device.clients)
        for client in sorted({*range(num_clients), *devices_of}):
            if client >= num_clients:
                raise self.error(f"has a device for client {client}, but num-clients is {num_clients}")
            if devices_of[client] != 1:
                raise self.error(f"client {client} has {devices_of[client] or 'no'} devices, and must have one")
        return DevicesModel(tuple(devices), common.starts_at, common.server_seconds)

    def devices(self, group: _Group, common: _Common, measured: Profile | None) -> Iterator[Device]:
        clients = self.clients(group.clients)
        train, test, watts = self.speeds(group, measured)
        delay = common.exchange_seconds / 2 + common.round_trips * group.latency_ms / 1e3
        for first in range(0, len(clients), group.clients_per_device):
            yield Device(
                tuple(clients[first : first + group.clients_per_device]), train, test, _bytes(group.up_mbit),
                _bytes(group.down_mbit), delay, self.hours(group.offline), watts, group.idle_watts,
            )  # fmt: skip

    def clients(self, text: str) -> list[int]:
        clients: list[int] = []
        for part in text.split(","):
            match = _CLIENTS.fullmatch(part.strip())
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not numbers:
                raise self.error(f"clients = {text!r}: must be numbers and ranges of clients, such as 0-8,12")
            clients += numbers
        return clients

    def hours(self, text: str) -> tuple[tuple[float, float], ...]:
        hours: list[tuple[float, float]] = []
        for part in filter(None, text.split(",")):
            match = _HOURS.fullmatch(part.strip())
            begin, end = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
            if not match or begin % DAY == end % DAY or max(begin, end) > DAY:
                raise self.error(f"offline = {text!r}: must be hours of the day, such as 22-6,12-13.5")
            hours.append((begin, end))
        if back_online(hours, 0.0) >= DAY:
            raise self.error(f"offline = {text!r}: leaves no hour of the day")
        return tuple(hours)

    def speeds(self, group: _Group, measured: Profile | None) -> tuple[float, float, float]:
        """Return training and test samples a second, and watts."""
        if bool(group.profile) == bool(group.samples_per_second):
            raise self.error("must have either profile or samples-per-second")
        if group.samples_per_second:
            test = group.test_samples_per_second or TEST_PER_TRAIN * group.samples_per_second
            return group.samples_per_second, test, group.watts
        if group.profile not in SHIPPED:
            if not group.profile.endswith(".toml"):
                message = f"must be a .toml file or one of {', '.join(SHIPPED)}{did_you_mean(group.profile, SHIPPED)}"
                raise self.error(f"profile = {group.profile!r}: {message}")
            profile = self.profile(group.profile)
            return profile.train, profile.test, group.watts
        shipped = SHIPPED[group.profile]
        watts = group.watts or shipped.watts
        if measured is not None:
            ratios = measured.train / measured.standard_train, measured.test / measured.standard_test
            return shipped.train * ratios[0], shipped.test * ratios[1], watts
        self.require_fitting(STANDARD, STANDARD_INPUT, f"the profile {group.profile}", "needs `measured`, a profile")
        return shipped.train, shipped.test, watts

    def profile(self, name: str) -> Profile:
        path = self.path.parent / Path(name).expanduser()
        values = _read(path, self)
        lacking = [key for key in keys(Profile) if key not in values]
        if lacking:
            raise self.error(f"{path} is not a profile: it lacks {lacking[0]} (fedpfl-worker profile FILE writes one)")
        profile: Profile = self.parsed(Profile, values)
        self.require_fitting(profile.settings, profile.input, str(path), "measure again")
        return profile

    def require_fitting(self, settings: Mapping[str, Any], shape: str, what: str, advice: str) -> None:
        """Refuse speeds of another method, model or input than the run's."""
        flat = self.config.flat()
        wanted = {key: flat[key] for key in settings}
        theirs = shape if self.input_shape is None else shown(self.input_shape)
        for key, value, ours in (*((key, settings[key], wanted[key]) for key in settings), ("input", shape, theirs)):
            if value != ours:
                raise self.error(f"{what} is for {key} = {value!r}, and this run has {ours!r}: {advice} "
                                 "(fedpfl-worker profile FILE)")  # fmt: skip

    def parsed(self, kind: Any, values: Mapping[str, Any]) -> Any:
        allowed_keys = keys(kind)
        for key in values:
            if key not in allowed_keys:
                raise self.error(f"there is no key {key!r}{did_you_mean(key, allowed_keys)}")
        try:
            return parse(kind, values)
        except ConfigError as error:
            raise self.error(str(error)) from error

    def error(self, message: str) -> ConfigError:
        return ConfigError(KEY, str(self.path), f"[{self.group}] {message}" if self.group else message)


def read_bench(config: Config, input_shape: tuple[int, ...] | None = None) -> DevicesModel:
    """Read the file that ``devices-model`` names; ``ConfigError`` for one that is not as it must be.

    ``input_shape`` is that of a sample, where it is known: profiles are for one.
    """
    reader = _Reader(Path(config.of(VirtualTimeSettings).devices_model).expanduser(), config, input_shape)
    return reader.bench(_read(reader.path, reader), config.data.num_clients)


def back_online(offline: tuple[tuple[float, float], ...] | list[tuple[float, float]], hour: float) -> float:
    """Return in how many hours, from an hour of the day on, a device is on the network; a day or more: never."""
    waited = 0.0
    while waited < DAY:
        now = (hour + waited) % DAY
        lasting = [(end - now) % DAY for begin, end in offline if (now - begin) % DAY < (end - begin) % DAY]
        left = max(lasting, default=0)
        if not left:
            break
        waited += left
    return waited


def _bytes(mbit: float) -> float:
    return mbit * 1e6 / 8 or math.inf


def _read(path: Path, reader: _Reader) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, MAX_TOML).decode())
    except (OSError, ValueError, RecursionError, DamagedFile) as error:  # ValueError: neither UTF-8 nor TOML
        reason = error.more if isinstance(error, DamagedFile) else getattr(error, "strerror", None) or error
        raise reader.error(f"{path} cannot be read: {reason}") from error
