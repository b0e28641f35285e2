"""HeteroFL: a client trains the first channels of each layer, as many as its device can.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients, ICLR
2021, Section 3 and Algorithm 1.

As in the authors' program, the head has all classes at every width, clients have equal weights, the Scaler follows each
layer except the head, the masked logits are 0, and only clients with a class count in its row of the head. Here a
client is tested with its slice, so that the Scaler acts in tests, too; there with the whole model. BatchNorm's running
statistics are arrays like the others; in the paper clients keep none, and the server requests them after the training.
The program clips each gradient to the norm 1 (here `clip-norm` does). In its mode "dynamic" it draws a client's width
in each round; here a device keeps its width, as in the mode "fix".
"""

from __future__ import annotations

from ..rules.slices import MeanOfSlices
from .base import Aggregation
from .bases.submodels import SubModelMethod
from .settings import SubModelSettings


class HeteroFL(SubModelMethod):
    """Share the model; a client of width r has the first ⌈r·K⌉ of the K channels of each hidden layer.

    client i, of width r:
        W_i ← W[: ⌈r·K_out⌉, : ⌈r·K_in⌉] of each layer
        train W_i on f_i, with hidden outputs times 1/r and logits 0 for classes that it lacks
        send W_i
    server: each value of W ← plain mean over the clients that sent it; one that nobody sent stays
    predict: W_i of the new W;  global model: W

    K is the number of a layer's channels: K_in of its inputs, K_out of its outputs. In the head's row of a class only
    clients that have the class count.
    """

    name = "heterofl"
    paper = (
        "Diao et al., HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients, "
        "ICLR 2021"
    )
    Settings = SubModelSettings
    aggregation = Aggregation(MeanOfSlices)
