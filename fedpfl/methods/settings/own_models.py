"""Settings of methods whose clients have models of their own, mixtures of models, or clusters."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.settings import setting
from . import settings_of

OWN = "own"  # stands for a model like the client's own


@settings_of("apfl")
@dataclass(frozen=True)
class APFLSettings:
    """Settings of APFL."""

    alpha: float = setting(0.5, "Initial share α of the client's own model, which learns it.", minimum=0, maximum=1)


@settings_of("ditto")
@dataclass(frozen=True)
class DittoSettings:
    """Settings of Ditto."""

    pull: float = setting(0.1, "Weight λ of the pull towards the received model. 0: local training.", minimum=0)
    p_epochs: int = setting(5, "Epochs per round for the personal model.", minimum=1)


@settings_of("pfedme")
@dataclass(frozen=True)
class PFedMeSettings:
    """Settings of pFedMe; the step η of w is ``learning-rate``. λ and K are the paper's for MNIST."""

    pull: float = setting(
        15.0,
        "Weight λ of the pull between v and w. 0: v trains alone and w never changes.",
        minimum=0,
    )
    steps: int = setting(5, "Number of steps K of v per batch.", minimum=1)
    personal_learning_rate: float = setting(
        0.02, "Learning rate of v; its product with λ should stay well below 2.", above=0
    )


@settings_of("pfedsd")
@dataclass(frozen=True)
class PFedSDSettings:
    """Settings of pFedSD."""

    distillation: float = setting(0.5, "Weight λ of the distillation.", minimum=0)


@settings_of("fedamp")
@dataclass(frozen=True)
class FedAMPSettings:
    """Settings of FedAMP."""

    alpha: float = setting(1.0, "Step α of the mixture. 0: every client keeps its own model.", minimum=0)
    sigma: float = setting(
        50.0,
        "Scale σ. The weights of all other clients must sum to less than 1.",
        above=0,
    )
    prox: float = setting(0.1, "Weight λ of the pull towards the client's mixture.", minimum=0)


@settings_of("fedala")
@dataclass(frozen=True)
class FedALASettings:
    """Settings of FedALA."""

    layers: int = setting(
        1,
        "Number of layers to mix, counted from the output. 0: FedAvg.",
        minimum=0,
    )


@settings_of("fedcac")
@dataclass(frozen=True)
class FedCACSettings:
    """Settings of FedCAC, the paper's for CIFAR-10 (0.4 and 170 for CIFAR-100).

    Each is the rule's option of the same name.
    """

    share: float = setting(
        0.5, "Share τ of each array's values that are critical; fewer if fewer changed.", above=0, maximum=1
    )
    beta: float = setting(100.0, "Number of rounds β over which collaboration on them fades out.", above=0)


@settings_of("fedfomo")
@dataclass(frozen=True)
class FedFomoSettings:
    """Settings of FedFomo."""

    models: int = setting(5, "Maximum number M of other clients' models sent to a client.", minimum=0)
    validation: float = setting(
        0.2,
        "Share of a client's training samples held out to compare models.",
        minimum=0,
        maximum=0.9,
    )


@settings_of("fedem")
@dataclass(frozen=True)
class FedEMSettings:
    """Settings of FedEM."""

    components: int = setting(3, "Number M of models in the mixture, each of full size.", minimum=1, maximum=100)


@settings_of("apple")
@dataclass(frozen=True)
class APPLESettings:
    """Settings of APPLE; the defaults are those of the authors' program for 200 rounds."""

    relation_learning_rate: float = setting(0.001, "Step η₂ of the weights p_ij. 0: they stay.", minimum=0)
    mu: float = setting(0.1, "Weight µ of the pull of p_ij to the clients' shares of samples.", minimum=0)
    pull_rounds: int = setting(20, "Number of rounds L in which the pull falls to a thousandth and ends.", minimum=0)


@settings_of("floco")
@dataclass(frozen=True)
class FlocoSettings:
    """Settings of Floco; the defaults are those of the authors' program."""

    endpoints: int = setting(10, "Number M of heads that span the simplex.", minimum=1, maximum=100)
    round: int = setting(10, "Round τ after which each client trains in a region of its own.", minimum=1)
    radius: float = setting(0.1, "Radius ρ of the regions. 0: their centres alone.", minimum=0)


@settings_of("pfedhn")
@dataclass(frozen=True)
class PFedHNSettings:
    """Settings of pFedHN."""

    learning_rate: float = setting(0.001, "Step α of the hypernetwork. 0: its models stay.", minimum=0)


@settings_of("fedphp")
@dataclass(frozen=True)
class FedPHPSettings:
    """Settings of FedPHP."""

    distillation: float = setting(0.1, "Weight λ of the distillation. 0: FedAvg in training.", minimum=0, maximum=1)
    trainings: int = setting(
        20, "Number K of times that a client trains until the inherited model weighs 0.9.", minimum=1
    )


@settings_of("fml", "fedmrl")
@dataclass(frozen=True)
class CommonModelSettings:
    """The model that all clients share beside their own."""

    common_model: str = setting(
        OWN,
        "Common model, which alone travels. own: one like the client's own.",
        form="own, or the name of a built-in model",
        of="",
    )


@settings_of("fedkd")
@dataclass(frozen=True)
class FedKDSettings(CommonModelSettings):
    """Settings of FedKD."""

    energy: float = setting(
        0.95, "Share T of the squares of an update's singular values that its factors keep.", above=0, maximum=1
    )


@settings_of("ifca")
@dataclass(frozen=True)
class IFCASettings:
    """Settings of IFCA."""

    clusters: int = setting(3, "Number M of clusters, of whose models a client is sent all.", minimum=2, maximum=100)


@settings_of("clustered-fl")
@dataclass(frozen=True)
class ClusteredFLSettings:
    """Settings of clustered federated learning."""

    epsilon1: float = setting(0.4, "A cluster may split if its mean update has a norm below ε1.", minimum=0)
    epsilon2: float = setting(1.6, "It then splits if some client's update has a norm above ε2.", minimum=0)
    first_split: int = setting(21, "First round after which clusters may split, as in the authors' code.", minimum=1)


@settings_of("knn-per")
@dataclass(frozen=True)
class KNNPerSettings:
    """Settings of kNN-Per."""

    weight: float = setting(
        0.5, "Weight λ of the neighbours. 0: FedAvg. 1: the neighbours alone.", minimum=0, maximum=1
    )
