"""Data sets by name, a file for each kind.

To add one, write one function, and name it with its file in :data:`fedpfl.data.registry.DATASETS`::

    @dataset("my-set", description="…", size="1,000", classes="10", shape="28×28×1", source="…")
    def my_set(settings: DataSettings) -> Dataset:
        return Dataset.of("my-set", x_train, y_train, num_classes=10)

Images stay uint8 in the layout samples × height × width × channels, texts the smallest whole numbers that hold their
tokens, everything else is float32; only the samples of one client at a time become tensors (see
:mod:`fedpfl.data.federation`).
"""
