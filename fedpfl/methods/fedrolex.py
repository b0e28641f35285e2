"""FedRolex: a client trains a slice of each layer, which moves on by a channel in each round.

Alam, Liu, Yan, Zhang: FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS 2022,
Section 3 and Algorithm 1.

As in the authors' program, which extends HeteroFL's, clients have equal weights, and the Scaler, the mask and the
head's rows are HeteroFL's; the program can weight clients by their widths instead, and move a slice by more than one
channel. It moves slices to lower channels; here they move to higher ones, as in the paper. A test uses the slice of its
round, so a narrow client's accuracy belongs to another part of the model in each round; the paper tests the whole model
alone. The program limits the norm of each gradient to 1 (`clip-norm`), and has no running statistics of BatchNorm.
"""

from __future__ import annotations

from ..rules.slices import MeanOfSlices
from .base import Aggregation
from .bases.submodels import SubModelMethod
from .settings import SubModelSettings


class FedRolex(SubModelMethod):
    """Share the model; a client of width r has ⌈r·K⌉ of the K channels of each hidden layer, from j mod K on.

    j ← 0, and one more in each round
    client i, of width r:
        S_K ← {j, j + 1, …, j + ⌈r·K⌉ − 1} mod K
        W_i ← W[S_K_out, S_K_in] of each layer
        train W_i on f_i, with hidden outputs times 1/r and logits 0 for classes that it lacks
        send W_i
    server: each value of W ← plain mean over the clients that sent it; one that nobody sent stays
    predict: W_i of the new W;  global model: W

    K is the number of a layer's channels: K_in of its inputs, K_out of its outputs. In the head's row of a class only
    clients that have the class count. S_K is the set of the channels in a slice.
    """

    name = "fedrolex"
    paper = (
        "Alam et al., FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS 2022"
    )
    Settings = SubModelSettings
    aggregation = Aggregation(MeanOfSlices, {"rolls": True})
