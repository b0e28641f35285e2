"""Temperature, processor, memory, network and power of a board, as far as Linux and the board's drivers report them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Rails that are a module's whole input; the others are parts of it. An original Nano's; that of Xavier and Orin.
INPUT_RAILS = ("POM_5V_IN", "VDD_IN")
# A zone of the power chip has no sensor: a Nano's always says 100 °C.
_PLACEHOLDERS = re.compile(r"PMIC", re.IGNORECASE)
# What a sensor that is switched off says, such as -256 °C, is no temperature.
_POSSIBLE_DEGREES = (-40.0, 150.0)


def read(root: Path = Path("/")) -> dict[str, Any]:
    """Return what this machine reports; processor and network count from its start."""
    values = {
        "temperature_c": dict(_temperatures(root / "sys")),
        "memory_mib": dict(_memory(root / "proc" / "meminfo")),
        "power_mw": dict(_powers(root / "sys")),
        "cpu_s": _processor(root / "proc" / "stat"),
        "network_bytes": _network(root / "proc" / "net" / "dev"),
    }
    return {key: value for key, value in values.items() if value}


def total_power(rails: Mapping[str, float]) -> float | None:
    """Return a board's power: that of its input if it is measured, or else the sum of what is."""
    whole = [rails[name] for name in INPUT_RAILS if name in rails]
    return whole[0] if whole else sum(rails.values()) or None


def _temperatures(sys: Path) -> Iterator[tuple[str, float]]:
    for zone in sorted(sys.glob("class/thermal/thermal_zone*")):
        name, millidegrees = _text(zone / "type") or zone.name, _number(zone / "temp")
        if millidegrees is not None and not _PLACEHOLDERS.match(name):
            degrees = round(millidegrees / 1000, 1)
            if _POSSIBLE_DEGREES[0] < degrees < _POSSIBLE_DEGREES[1]:
                yield name, degrees


def _memory(meminfo: Path) -> Iterator[tuple[str, int]]:
    for line in _text(meminfo).splitlines():
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            yield key.removeprefix("Mem").lower(), int(value.split()[0]) // 1024


def _powers(sys: Path) -> Iterator[tuple[str, int]]:
    # The Jetson Nano's kernel 4.9: NVIDIA's driver of the INA3221, milliwatts by rail.
    for device in sorted(sys.glob("bus/i2c/drivers/ina3221x/*/iio:device*")):
        for rail in sorted(device.glob("in_power*_input")):
            milliwatts = _number(rail)
            number = rail.name.removeprefix("in_power").removesuffix("_input")
            if milliwatts is not None:
                yield _text(device / f"rail_name_{number}") or number, round(milliwatts)
    # Later kernels: the same chip under hwmon, millivolts and milliamperes of three channels. What has a higher
    # number is their sum, or the voltage at a shunt.
    for monitor in sorted(sys.glob("class/hwmon/hwmon*")):
        if _text(monitor / "name") != "ina3221":
            continue
        for number in "123":
            milliamperes = _number(monitor / f"curr{number}_input")
            millivolts = _number(monitor / f"in{number}_input")
            if milliamperes is not None and millivolts is not None:
                yield _text(monitor / f"in{number}_label") or number, round(milliamperes * millivolts / 1000)


def _processor(stat: Path) -> dict[str, float]:
    """Seconds of all cores together, of which they were ``busy``."""
    words = _text(stat).partition("\n")[0].split()
    if words[:1] != ["cpu"]:
        return {}
    ticks = [int(word) for word in words[1:9]]  # user nice system idle iowait irq softirq steal
    second = os.sysconf("SC_CLK_TCK")
    return {"busy": (sum(ticks) - ticks[3] - ticks[4]) / second, "all": sum(ticks) / second}


def _network(dev: Path) -> dict[str, int]:
    counts = [
        line.partition(":")[2].split() for line in _text(dev).splitlines()[2:] if line.split(":")[0].strip() != "lo"
    ]
    return {"in": sum(int(one[0]) for one in counts), "out": sum(int(one[8]) for one in counts)} if counts else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not there, or the sensor is switched off
        return ""


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.lstrip("-").isdecimal() else None
