"""Data sets by name, a file for each kind.

To add one, write one function::

    @dataset("my-set", description="…", size="1,000", classes="10", shape="28×28×1", source="…")
    def my_set(settings: DataSettings) -> Dataset:
        return Dataset("my-set", x_train, y_train, num_classes=10)

Images stay uint8 in the layout samples × height × width × channels, texts the smallest whole numbers that hold their
tokens, everything else is float32; only the samples of one client at a time become tensors (see
:mod:`fedpfl.data.federation`).
"""

from __future__ import annotations

# Importing a module registers its data sets; `fedpfl datasets` lists them in this order.
# isort: off
from . import npz  # noqa: F401
from . import folder, table, series, huggingface, own, digits, published, text  # noqa: F401

# isort: on
from .custom import entry
from .folder import read_image_folder
from .npz import read_npz
from .own import read_own
from .places import data_dir, no_downloads
from .reading import fetch, load, load_once, owners

__all__ = [
    "data_dir", "entry", "fetch", "load", "load_once", "no_downloads", "owners", "read_image_folder", "read_npz",
    "read_own",
]  # fmt: skip
