"""The bench that an Ansible inventory describes, as far as one machine can stand in for it: ``fedpfl up --inventory``.

Only what decides who runs what is read: the devices by name, their clients, and where clients have data of their own.
Addresses are checked as far as a rehearsal can, so that a mistake shows before a board is unpacked.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, DamagedFile, FedpflError, did_you_mean
from ..core.files import read_regular
from ..core.metric_bounds import MAX_CLIENTS, MAX_THREADS
from .boards import BOARDS
from .mqtt.topics import checked_name, is_name
from .relay import Network

# Whether a value can be a variable's, and the words for one that cannot.
_Must = tuple[Callable[[Any], bool], str]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_port(value: object) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", str(value)) is not None and 0 < int(str(value)) < 65536


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and is_name(name) for name in value)


def _are_options(value: object) -> bool:
    return isinstance(value, list) and all(type(option) in (str, int) for option in value)


def _is_network(value: object) -> bool:
    try:
        return value == "" or (isinstance(value, str) and Network.parse(value) is not None)
    except ConfigError:
        return False


def _one_of(*choices: object) -> _Must:
    return (lambda value: value in choices), f"must be {', '.join(map(str, choices[:-1]))} or {choices[-1]}"


EXAMPLE = '"5mbit 50ms 2% off 60-660"'
_ANYTHING: _Must = (lambda value: True, "")
_TEXT: _Must = (_is_text, "must be a text")
_PATH: _Must = (lambda value: isinstance(value, str), "must be a path or ''")
_PORT: _Must = (_is_port, "must be a port, 1 to 65535")
_OPTIONS: _Must = (_are_options, "must be a list of texts")
# What an inventory must have, and what it may: the keys of deploy/ansible/roles/fedpfl/defaults/main.yml.
REQUIRED = ("fedpfl_address", "fedpfl_network", "fedpfl_bundle")
OPTIONAL: Mapping[str, _Must] = {
    "fedpfl_keys": _TEXT, "fedpfl_command": _TEXT, "fedpfl_collected": _TEXT,
    "fedpfl_first_settings": _TEXT,
    "fedpfl_superlink_port": _PORT, "fedpfl_broker_port": _PORT,
    "fedpfl_superlink_state": _one_of("database", "memory"),
    "fedpfl_watchers": (_are_names, "must be a list of names of letters, digits, '.', '_' and '-'"),
    "fedpfl_allowed_signers": _PATH,
    "fedpfl_server_python": _TEXT, "fedpfl_server_pip_options": _OPTIONS, "fedpfl_server_lock": _TEXT,
    "fedpfl_install": _one_of("bundle", "existing"), "fedpfl_target": _one_of("nano", "orin", "pi", "auto"),
    "fedpfl_install_options": _OPTIONS, "fedpfl_supernode_port": _PORT,
    "fedpfl_threads": (lambda value: type(value) is int and 1 <= value <= MAX_THREADS, f"must be 1 to {MAX_THREADS}"),
    "fedpfl_client_data": (_is_mapping, "must be a mapping of clients' numbers to paths"),
    "fedpfl_model": (lambda value: isinstance(value, str) and not set(value) & set("'\" "), "must be a model or ''"),
    "fedpfl_policy": (_is_mapping, "must be a mapping of the policy's keys to values"),
    "fedpfl_rehearsed_board": (lambda value: value in (*BOARDS, ""), f"must be {' or '.join(BOARDS)}, or ''"),
    "fedpfl_rehearsed_network": (_is_network, f"must be a network or '', as in {EXAMPLE}"),
    "fedpfl_during_a_run": _one_of(True, False),
    "fedpfl_data": _PATH, "fedpfl_partitions": _PATH, "fedpfl_time": _one_of(True, False),
}  # fmt: skip
# Keys of each device.
CLIENTS = "fedpfl_clients"
MAX_BYTES, MAX_NODES = 1_000_000, 100_000
# No number of an inventory has more digits.
MAX_DIGITS = 20


class InventoryError(FedpflError):
    """An inventory that describes no bench; the message tells what to change."""


@dataclass(frozen=True)
class Bench:
    """Which device runs which clients."""

    devices: Mapping[str, tuple[int, ...]]  # the clients of each device that is not absent, by its name
    data: Mapping[int, Path] = field(default_factory=dict)  # where the data of clients with their own are
    models: Mapping[int, str] = field(default_factory=dict)  # of clients on devices that have a model of their own
    absent: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the same of those that are absent
    boards: Mapping[str, str] = field(default_factory=dict)  # what devices are rehearsed as, by their names
    networks: Mapping[str, str] = field(default_factory=dict)  # and their way to the server

    @property
    def present(self) -> tuple[int, ...]:
        """The clients of the devices, in order."""
        return tuple(sorted(client for clients in self.devices.values() for client in clients))

    @property
    def clients(self) -> int:
        """How many clients a run has: a number that no device has now is that of a client that is missing."""
        return max(chain(*self.devices.values(), *self.absent.values())) + 1

    def node_settings(self, client: int) -> str:
        """Return the settings of one client, as they stand in a SuperNode's ``--node-config``."""
        settings = {"data": self.data.get(client), "model": self.models.get(client)}
        return "".join(f" {key}='{value}'" for key, value in settings.items() if value)


@dataclass
class _Group:
    """What all mentions of a group say of it."""

    hosts: dict[str, None] = field(default_factory=dict)  # in order
    children: dict[str, None] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


class _Groups:
    """Groups and their hosts as Ansible joins them: a group may have hosts in one place and be a child in another."""

    def __init__(self, path: Path, content: Mapping[Any, Any]) -> None:
        self._path = path
        self._groups: dict[str, _Group] = {}
        self._host_variables: dict[str, dict[str, Any]] = {}  # those that stand at a host itself
        for name, group in content.items():
            self._add(_name(name, path), group)
        self._depths: dict[str, int] = {}
        for name in self._groups:
            self._set_depth(name, 0, ())
        # The hosts of each group and of those in it, in order.
        self.members: dict[str, list[str]] = {}
        for name in sorted(self._groups, key=self._depths.__getitem__, reverse=True):
            group = self._groups[name]
            within = chain(*(self.members[child] for child in group.children))
            self.members[name] = [*dict.fromkeys([*group.hosts, *within])]
        self.variables = self._join_variables()

    def _add(self, name: str, group: object) -> None:
        parts = _mapping(group, f"the group {name}", self._path)
        if unknown := parts.keys() - {"hosts", "children", "vars"}:
            reason = f"{min(map(str, unknown))!r} in the group {name}: only hosts, children and vars"
            raise InventoryError(f"{self._path}: {reason}")
        here = self._groups.setdefault(name, _Group())
        here.variables.update(_mapping(parts.get("vars"), f"vars of {name}", self._path))
        for host, variables in _mapping(parts.get("hosts"), f"hosts of {name}", self._path).items():
            here.hosts[_name(host, self._path)] = None
            self._host_variables.setdefault(host, {}).update(_mapping(variables, f"the host {host}", self._path))
        for child, part in _mapping(parts.get("children"), f"children of {name}", self._path).items():
            here.children[_name(child, self._path)] = None
            self._add(child, part)

    def _set_depth(self, name: str, depth: int, above: tuple[str, ...]) -> None:
        if name in above:
            raise InventoryError(f"{self._path}: the group {name} is within itself")
        if depth > self._depths.get(name, -1):
            self._depths[name] = depth
            for child in self._groups[name].children:
                self._set_depth(child, depth + 1, (*above, name))

    def _join_variables(self) -> dict[str, dict[str, Any]]:
        """Return each host's variables. A host's own replace its groups', and a group's replace its parents'."""
        variables: dict[str, dict[str, Any]] = {host: {} for host in self._host_variables}
        for name in sorted(self._groups, key=lambda name: (name != "all", self._depths[name], name)):
            for host in self._host_variables if name == "all" else self.members[name]:
                variables[host].update(self._groups[name].variables)
        return {host: {**of_groups, **self._host_variables[host]} for host, of_groups in variables.items()}


def read_inventory(path: Path) -> Bench:
    """Read an inventory in YAML."""
    groups = _Groups(path, _mapping(_load(path), "the file", path))
    variables = groups.variables
    servers, everybody, away = (groups.members.get(name, []) for name in ("server", "devices", "absent"))
    devices = [host for host in everybody if host not in away]
    if unknown := sorted({*away} - {*everybody}):
        raise InventoryError(f"{path}: {unknown[0]} is in the group absent, and not in devices")
    if len(servers) != 1:
        raise InventoryError(f"{path}: the group server must have one host, not {len(servers)}")
    if not devices:
        raise InventoryError(f"{path}: the group devices has no host")
    for host in (*servers, *everybody):
        _check_variables(path, host, variables[host])
    _check_addresses(path, variables, servers[0], everybody)
    _check_accounts(path, variables[servers[0]].get("fedpfl_watchers", []), everybody)
    numbers = {host: _clients(path, host, variables[host]) for host in everybody}
    _check_numbers(path, numbers)
    clients = {host: numbers[host] for host in devices}
    data: dict[int, Path] = {}
    for host in devices:
        data.update(_data(path, host, numbers[host], {*chain(*numbers.values())}, variables[host]))
    models = {client: str(variables[host].get("fedpfl_model", "")) for host in devices for client in clients[host]}
    absent = {host: numbers[host] for host in away}
    boards, networks = (
        {host: value for host in devices if (value := str(variables[host].get(f"fedpfl_rehearsed_{what}", "")))}
        for what in ("board", "network")
    )
    models = {client: model for client, model in models.items() if model}
    return Bench(clients, data, models, absent, boards, networks)


def _load(path: Path) -> object:
    try:
        import yaml
    except ImportError:
        raise InventoryError("--inventory needs PyYAML: pip install pyyaml") from None
    try:
        loader = yaml.SafeLoader(read_regular(path, MAX_BYTES).decode())
        root = loader.get_single_node()
        if root is None:
            return None
        _check_nodes(path, root)
        return loader.construct_document(root)
    except DamagedFile as error:
        raise InventoryError(f"--inventory {path}: {error.more}") from error
    except OSError as error:
        raise InventoryError(f"--inventory {path}: {error.strerror}") from error
    # PyYAML's builders of numbers and dates raise the others, as for !!bool x.
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise InventoryError(f"{path}: {where}{getattr(error, 'problem', None) or 'not YAML'}") from error


def _check_nodes(path: Path, root: Any) -> None:
    """Refuse a key that is there twice, of which YAML takes the last, and aliases that multiply what is there."""
    left, count = [root], 0
    while left:
        node, count = left.pop(), count + 1
        if count > MAX_NODES:
            raise InventoryError(f"{path}: has more than {MAX_NODES} values, or an alias within itself")
        if node.tag.endswith(":int") and len(node.value) > MAX_DIGITS:
            raise InventoryError(f"{path}: line {node.start_mark.line + 1}: a number of {len(node.value)} characters")
        if isinstance(node.value, str):
            continue
        pairs = [child for child in node.value if isinstance(child, tuple)]
        for key, times in Counter(str(key.value) for key, _ in pairs).items():
            if times > 1 and key != "<<":
                raise InventoryError(f"{path}: line {node.start_mark.line + 1}: {key:.60} is there {times} times")
        left += [one for child in node.value for one in (child if isinstance(child, tuple) else [child])]


def _name(name: object, path: Path) -> str:
    """Return the name of a host or group, unless YAML has read another value, as of a board that is called off."""
    if not isinstance(name, str):
        raise InventoryError(f"{path}: YAML reads the name of a host or group as {name!r:.60}: put it into quotes")
    return name


def _mapping(value: object, what: str, path: Path) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InventoryError(f"{path}: {what} must be a mapping, not {value!r:.60}")
    return value


def _check_variables(path: Path, host: str, variables: Mapping[str, Any]) -> None:
    allowed = (*REQUIRED, *OPTIONAL, CLIENTS)
    for name, value in variables.items():
        if not str(name).startswith("fedpfl_"):
            continue
        if name not in allowed:
            raise InventoryError(f"{path}: {host}: there is no {name}{did_you_mean(name, allowed)}")
        if any("{{" in text for text in _texts(value)):
            raise InventoryError(f"{path}: {host}: {name} is a template; a rehearsal needs its value")
        fits, expected = OPTIONAL.get(str(name), _ANYTHING)
        if not fits(value):
            raise InventoryError(f"{path}: {host}: {name}: {expected}, not {value!r:.60}")
    _check_policy(f"{path}: {host}: fedpfl_policy", variables.get("fedpfl_policy", {}))
    for name in REQUIRED:
        if not variables.get(name) or not isinstance(variables[name], str):
            raise InventoryError(f"{path}: {host}: {name} is missing")


def _check_policy(where: str, keys: Mapping[str, Any]) -> None:
    """Refuse a policy that its device could not read: its worker would answer nothing."""
    from ..client.policy import PolicyError, policy_of

    try:
        policy_of(where, keys)
    except PolicyError as error:
        raise InventoryError(str(error)) from error


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


def _check_accounts(path: Path, watchers: Sequence[str], devices: Sequence[str]) -> None:
    """Refuse a name that two accounts at the broker would have."""
    for name, times in Counter(["server", *watchers, *devices]).items():
        if times > 1:
            raise InventoryError(f"{path}: {name} is the name of {times} accounts at the broker (fedpfl_watchers)")


def _check_addresses(
    path: Path, of_hosts: Mapping[str, Mapping[str, Any]], server: str, devices: Sequence[str]
) -> None:
    variables = of_hosts[server]
    try:
        network = ipaddress.ip_network(variables["fedpfl_network"])
    except ValueError as error:
        raise InventoryError(f"{path}: fedpfl_network: {error}") from None
    try:
        used = {ipaddress.ip_address(variables["fedpfl_address"]): server}
    except ValueError as error:
        raise InventoryError(f"{path}: fedpfl_address: {error}") from None
    if next(iter(used)) not in network:
        raise InventoryError(f"{path}: fedpfl_address {variables['fedpfl_address']} is not in {network}")
    for host in devices:
        checked_name("device", host)
        text = str(of_hosts[host].get("ansible_host", host))
        if not re.fullmatch(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:]*", text):
            continue  # a name, which another network knows
        try:
            address = ipaddress.ip_address(text)
        except ValueError as error:
            raise InventoryError(f"{path}: {host}: ansible_host: {error}") from None
        if address not in network:
            raise InventoryError(f"{path}: {host}: ansible_host {address} is not in {network}")
        if address in used:
            raise InventoryError(f"{path}: {host}: ansible_host {address} is {used[address]}'s")
        used[address] = host


def _clients(path: Path, host: str, variables: Mapping[str, Any]) -> tuple[int, ...]:
    numbers = variables.get(CLIENTS)
    if (
        not isinstance(numbers, list)
        or not numbers
        or not all(type(number) is int and 0 <= number < MAX_CLIENTS for number in numbers)
    ):
        raise InventoryError(f"{path}: {host}: {CLIENTS} must be a list of clients' numbers, not {numbers!r:.60}")
    return tuple(numbers)


def _check_numbers(path: Path, clients: Mapping[str, tuple[int, ...]]) -> None:
    owner: dict[int, str] = {}
    for host, numbers in clients.items():
        for number in numbers:
            if number in owner:
                raise InventoryError(f"{path}: client {number} is on {owner[number]} and on {host}")
            owner[number] = host


def _data(
    path: Path, host: str, numbers: tuple[int, ...], clients: Collection[int], variables: Mapping[str, Any]
) -> Iterator[tuple[int, Path]]:
    """Yield the clients of a host that have data of their own, and where."""
    paths: dict[int, Path] = {}
    for key, place in variables.get("fedpfl_client_data", {}).items():
        if str(key) not in map(str, clients):
            raise InventoryError(f"{path}: fedpfl_client_data: there is no client {key!s:.60}")
        paths[int(key)] = _expanded(path, str(place))
    partitions = variables.get("fedpfl_partitions")
    for number in numbers:
        place = paths.get(number)
        if place is None and partitions:
            place = _expanded(path, str(partitions)) / f"client-{number}.npz"
        if place is None:
            continue
        if not place.is_absolute():
            raise InventoryError(f"{path}: {host}: the data of client {number}, {place}, need an absolute path")
        if "'" in str(place) or not str(place).isprintable():
            reason = "a path without apostrophes, line ends and the like"
            raise InventoryError(f"{path}: {host}: the data of client {number}: {reason}")
        if not place.exists():
            raise InventoryError(f"{path}: {host}: the data of client {number}, {place}, are not on this machine")
        yield number, place


def _expanded(path: Path, place: str) -> Path:
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise InventoryError(f"{path}: {place}: this machine has no such user") from None
