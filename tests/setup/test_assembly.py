"""The model of a run and its sharing: one reads and writes the arrays of the other."""

from __future__ import annotations

import numpy as np
from support import needed

from fedpfl.core.sharing import Sharing
from fedpfl.methods import methods
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config


def test_a_sharing_writes_to_the_model_of_every_method():
    """Also to buffers, of which the move to the device and the order of convolutions makes new ones."""
    kinds = set()
    for method in methods():
        model, sharing = assemble(Config.parse({"method": method, **needed(method)}), (3, 16, 16), 10)
        if type(sharing) is not Sharing:
            continue
        sharing.set_shared(np.full(sharing.layout.size, 3, np.float32))
        sharing.set_personal({name: np.full_like(array, 3) for name, array in sharing.get_personal().items()})
        arrays = model.state_dict()
        assert all((arrays[name] == 3).all() for name in [*sharing.shared, *sharing.personal]), method
        kinds.add(bool(sharing.personal))
    assert kinds == {True, False}
