"""Temperature, processor, memory, network and power of a board, as far as Linux and the board's drivers report them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Rails that are a module's whole input; the others are parts of it. An original Nano's; that of Xavier and Orin.
INPUT_RAILS = ("POM_5V_IN", "VDD_IN")
# A zone of the power chip has no sensor: a Nano's always says 100 °C.
_PLACEHOLDERS = re.compile(r"PMIC", re.IGNORECASE)
# What an AGX Orin calls a channel to which nothing is connected.
_NOTHING = "NC"
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_KIB = re.compile(r"\s*([0-9]{1,18})\b")
# user nice system idle iowait irq softirq, and steal where the kernel tells it
_TICKS = re.compile(r"cpu +((?:[0-9]{1,18} +){6,7}[0-9]{1,18})\b")
_INTERFACE = re.compile(r"\s*(\S+?):\s*((?:[0-9]{1,20}\s+){8,}[0-9]{1,20})\s*")
# The kinds of numbers in a report, with the lowest and highest that a board can have measured. What a sensor says that
# is switched off, such as -256 °C, is no temperature.
POSSIBLE: Mapping[str, tuple[float, float]] = {
    "temperature_c": (-40, 150),
    "memory_mib": (0, 2**30),
    "power_mw": (-1e7, 1e7),
    "cpu_s": (0, 2**53),
    "network_bytes": (0, 2**63),
}


def read(root: Path = Path("/")) -> dict[str, Any]:
    """Return this machine's report; processor and network count from its start."""
    values = {
        "temperature_c": _highest(_temperatures(root / "sys")),
        "memory_mib": dict(_memory(root / "proc" / "meminfo")),
        "power_mw": dict(_powers(root / "sys")),
        "cpu_s": _processor(root / "proc" / "stat"),
        "network_bytes": _network(root / "proc" / "net" / "dev"),
    }
    reported = {kind: possible(values, kind) for kind in values}
    return {kind: numbers for kind, numbers in reported.items() if numbers}


def possible(values: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Return the numbers of one kind in a report, by name; a board may report anything."""
    part, (lowest, highest) = values.get(kind), POSSIBLE[kind]
    numbers = part.items() if isinstance(part, dict) else ()
    return {name: value for name, value in numbers if type(value) in (int, float) and lowest <= value <= highest}


def total_power(rails: Mapping[str, float]) -> float | None:
    """Return a board's power: that of its input if it is measured, or else the sum of what is."""
    whole = [rails[name] for name in INPUT_RAILS if name in rails]
    return whole[0] if whole else sum(rails.values()) or None


def _highest(zones: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the temperature of each zone, of those with one name the highest."""
    highest: dict[str, float] = {}
    for name, degrees in zones:
        highest[name] = max(degrees, highest.get(name, degrees))
    return highest


def _temperatures(sys: Path) -> Iterator[tuple[str, float]]:
    for zone in sorted(sys.glob("class/thermal/thermal_zone*")):
        name, millidegrees = _text(zone / "type") or zone.name, _number(zone / "temp")
        if millidegrees is not None and not _PLACEHOLDERS.match(name):
            yield name, round(millidegrees / 1000, 1)


def _memory(meminfo: Path) -> Iterator[tuple[str, int]]:
    for line in _text(meminfo).splitlines():
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable") and (match := _KIB.match(value)):
            yield key.removeprefix("Mem").lower(), int(match[1]) // 1024


def _powers(sys: Path) -> Iterator[tuple[str, int]]:
    # The Jetson Nano's kernel 4.9: NVIDIA's driver of the INA3221, milliwatts by rail.
    for device in sorted(sys.glob("bus/i2c/drivers/ina3221x/*/iio:device*")):
        for rail in sorted(device.glob("in_power*_input")):
            milliwatts = _number(rail)
            number = rail.name.removeprefix("in_power").removesuffix("_input")
            name = _text(device / f"rail_name_{number}") or number
            if milliwatts is not None and name != _NOTHING:
                yield name, round(milliwatts)
    # Later kernels: the same chip under hwmon, millivolts and milliamperes of three channels. What has a higher
    # number is their sum, or the voltage at a shunt.
    for monitor in sorted(sys.glob("class/hwmon/hwmon*")):
        if _text(monitor / "name") != "ina3221":
            continue
        for number in "123":
            milliamperes = _number(monitor / f"curr{number}_input")
            millivolts = _number(monitor / f"in{number}_input")
            name = _text(monitor / f"in{number}_label") or number
            if milliamperes is not None and millivolts is not None and name != _NOTHING:
                yield name, round(milliamperes * millivolts / 1000)


def _processor(stat: Path) -> dict[str, float]:
    """Seconds of all cores together, of which they were ``busy``."""
    match = _TICKS.match(_text(stat))
    if match is None:
        return {}
    ticks = [int(word) for word in match[1].split()]
    second = os.sysconf("SC_CLK_TCK")
    return {"busy": (sum(ticks) - ticks[3] - ticks[4]) / second, "all": sum(ticks) / second}


def _network(dev: Path) -> dict[str, int]:
    lines = [_INTERFACE.fullmatch(line) for line in _text(dev).splitlines()]
    counts = [match[2].split() for match in lines if match and match[1] != "lo"]
    return {"in": sum(int(one[0]) for one in counts), "out": sum(int(one[8]) for one in counts)} if counts else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not there, or the sensor is switched off
        return ""


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if _INTEGER.fullmatch(text) else None
