"""A comparison to hand over: a folder with its file, what its settings name, the user's code, and hashes of these.

::

    BUNDLE/comparison.toml   `fedpfl compare comparison.toml`, in this folder, makes it again
    BUNDLE/files/…           the files and folders that settings name
    BUNDLE/*.py              the user's modules
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import user_code
from ..core.errors import ConfigError
from ..core.files import is_free, write_atomically
from ..results.identity import content_of
from ..setup.all_settings import code_in, places, tagged
from .run_store import PlannedRun, require_files

FILES = "files"


class Bundle:
    """A folder to hand over, new or empty, with the user's code that runs need.

    ``hashes`` are of what has been copied into it, by the path in it.
    """

    def __init__(self, folder: Path, runs: Iterable[PlannedRun]) -> None:
        if not is_free(folder):
            raise ConfigError("bundle", str(folder), "must be a new or an empty folder")
        runs = list(runs)
        require_files(runs)
        self.folder, self.hashes = folder, dict[str, str]()
        self._copies = dict[Path, str]()
        folder.mkdir(parents=True, exist_ok=True)
        for run in runs:
            for name, path in user_code.files(code_in(run.settings, "idle"), run.settings).items():
                if name not in self.hashes:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(folder / name, path.read_bytes())
                    self.hashes[name] = content_of(folder / name)

    def copied(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Copy what settings name, and return the settings with the copies; without folders of this machine."""
        named = places(settings, tagged("file"))
        left_out = places(settings).keys() - named.keys()
        copies = {key: self._copy(Path(place).expanduser()) for key, place in named.items()}
        return {**{key: value for key, value in settings.items() if key not in left_out}, **copies}

    def _copy(self, place: Path) -> str:
        source = place.absolute()
        if source not in self._copies:
            names_in_use = {*self._copies.values()}
            names = (f"{FILES}/{number}{source.name}" for number in ("", *(f"{count}-" for count in range(2, 10**6))))
            name = next(name for name in names if name not in names_in_use)
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)
            self._copies[source], self.hashes[name] = name, content_of(target)
        return self._copies[source]


def require_whole(file: Path, hashes: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a comparison whose bundle is not as it was handed over; it names all changes."""
    if not hashes:
        return
    folder = file.absolute().parent
    if folder.resolve() != Path.cwd().resolve():
        raise ConfigError("METHOD...", str(file), f"is part of a bundle; run it in the bundle's folder: cd {folder}")
    gone = [name for name in hashes if not (folder / name).exists()]
    other = [name for name in hashes if name not in gone and content_of(folder / name) != hashes[name]]
    faults = [f"{name} {what}" for names, what in ((gone, "is not there"), (other, "has changed")) for name in names]
    if faults:
        cure = (
            "copy the whole bundle again"
            if gone
            else "copy the bundle again, or delete [hashes] to run it as it is now"
        )
        allowed = f"{'; '.join(faults)} ({cure})"
        raise ConfigError("METHOD...", str(file), allowed)
