"""Which method to try first: what ``fedpfl methods --choose`` prints and the methods' page shows.

A row follows the leaderboard where it has data of the kind, and names it. Where nothing was measured the row gives the
method that was made for the situation, and says that.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """A situation, the method to try first, what to take instead, and why. Methods' names are between backticks."""

    situation: str
    first: str
    instead: str
    evidence: str


ABOVE_LOCAL = "leaderboard: a higher mean than local training on all three data sets"
NOT_MEASURED = "made for this; not measured here"
ADVICE = (
    Advice(
        "always, to see whether personalisation can help",
        "`local` and `fedavg`",
        "`fedavg` with `tune-epochs`: one model that each client fine-tunes",
        "the yardsticks of every table",
    ),
    Advice(
        "clients have different classes or class shares (label skew)",
        "`fedper`",
        "`pfedfda` where its features suit all clients: best on CIFAR-10, behind local training on HAR",
        f"{ABOVE_LOCAL}, at FedAvg's cost; the default method",
    ),
    Advice(
        "the same classes look different (feature skew)",
        "`fedphp`; with BatchNorm `fedbn`",
        "`knn-per`: fifth on HAR, fifth of 14 with other cameras; `feddecomp`: third on HAR",
        "leaderboard: FedPHP first on HAR by person, FedBN first with other cameras",
    ),
    Advice(
        "training must not cost more than FedAvg's",
        "`knn-per`",
        "`fedphp`, second, or `fedper` if a client cannot keep the features of its samples for predictions",
        "leaderboard: best mean rank",
    ),
    Advice(
        "clients have different architectures",
        "`fedproto`",
        "`fedtgp` if the models differ much in quality",
        f"{ABOVE_LOCAL} (there with equal architectures)",
    ),
    Advice(
        "some devices are too weak for the whole model",
        "`heterofl`, which gives them slices of it",
        "`fedavg` with the narrow model for all clients",
        "digits: HeteroFL had the higher mean; with FedRolex narrow clients were no better than alone",
    ),
    Advice(
        "traffic is scarce",
        "`fedproto`",
        "`lg-fedavg` if clients share a head; below a hundredth of FedAvg's traffic, too",
        ABOVE_LOCAL,
    ),
    Advice(
        "a good global model is needed as well",
        "`fedrod`",
        "`fedreg` if clients lack whole classes",
        ABOVE_LOCAL,
    ),
    Advice(
        "clients fall into a few unknown groups",
        "`fedper` if the groups number the classes differently",
        "`ifca` if you can guess how many groups there are; it found them only with some seeds",
        "leaderboard, numbers of classes: FedPer first, IFCA third, Clustered-FL behind local training",
    ),
    Advice("few clients take part in a round", "`fedas`", "`fedrod`", NOT_MEASURED),
    Advice("new clients must start well", "`fedbabu`", "`fedavg` with `tune-epochs`", NOT_MEASURED),
    Advice(
        "a large pre-trained model",
        "`fedavg` of adapters",
        "`flexlora` if clients afford different ranks; `fedsa-lora` for half the traffic",
        "language models: both share whole adapters, and lead; all adapters outperform local training on average",
    ),
)
