"""Temperature, memory and power of a board, as far as Linux and the board's drivers report them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(root: Path = Path("/")) -> dict[str, Any]:
    """Return what this machine reports."""
    found = {
        "temperature_c": dict(_temperatures(root / "sys")),
        "memory_mib": dict(_memory(root / "proc" / "meminfo")),
        "power_mw": dict(_powers(root / "sys")),
    }
    return {key: value for key, value in found.items() if value}


def _temperatures(sys: Path) -> Iterator[tuple[str, float]]:
    for zone in sorted(sys.glob("class/thermal/thermal_zone*")):
        degrees = _number(zone / "temp")
        if degrees is not None:
            yield _text(zone / "type") or zone.name, round(degrees / 1000, 1)


def _memory(meminfo: Path) -> Iterator[tuple[str, int]]:
    for line in _text(meminfo).splitlines():
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            yield key.removeprefix("Mem").lower(), int(value.split()[0]) // 1024


def _powers(sys: Path) -> Iterator[tuple[str, int]]:
    # The Jetson Nano's kernel 4.9: NVIDIA's driver of the INA3221, milliwatts by rail.
    for device in sorted(sys.glob("bus/i2c/drivers/ina3221x/*/iio:device*")):
        for rail in sorted(device.glob("in_power*_input")):
            watts = _number(rail)
            number = rail.name.removeprefix("in_power").removesuffix("_input")
            if watts is not None:
                yield _text(device / f"rail_name_{number}") or number, round(watts)
    # Later kernels: the same chip under hwmon, millivolts and milliamperes.
    for monitor in sorted(sys.glob("class/hwmon/hwmon*")):
        if _text(monitor / "name") != "ina3221":
            continue
        for current in sorted(monitor.glob("curr?_input")):
            number = current.name[4]
            milliamperes, millivolts = _number(current), _number(monitor / f"in{number}_input")
            if milliamperes is not None and millivolts is not None:
                yield _text(monitor / f"in{number}_label") or number, round(milliamperes * millivolts / 1000)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not there, or the sensor is switched off
        return ""


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.lstrip("-").isdecimal() else None
