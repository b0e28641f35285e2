"""What a run may have beyond training and testing a federation: each option's settings and checks, in a file each.

To add one, write a subclass of :class:`~fedpfl.core.option.Option` in a new file and name it here. What it does on a
client is called in ``client/options/__init__.py``, what it does on the server in ``engine/options/__init__.py``.
"""

from __future__ import annotations

from .after_the_end import BestRoundOption, DeviceModelOption, PersonaliseOption
from .availability import AvailabilityOption
from .client_settings import ClientSettingsOption
from .diagnostics import DiagnosticsOption
from .evaluate_global import EvaluateGlobalOption, EvaluateTrainedOption
from .keep_momentum import KeepMomentumOption
from .listeners import ListenersOption
from .norm_limit import NormLimitOption
from .privacy import PrivacyOption
from .robust import RobustOption
from .server_step import ServerStepOption
from .tests_at_server import ServerTestOption
from .trainable import InitialWeightsOption, TrainableOption

# In the order in which they are called.
OPTIONS = (
    InitialWeightsOption,
    TrainableOption,
    ServerStepOption,
    NormLimitOption,
    RobustOption,
    PrivacyOption,
    EvaluateGlobalOption,
    DiagnosticsOption,
    KeepMomentumOption,
    EvaluateTrainedOption,
    ServerTestOption,
    AvailabilityOption,
    ClientSettingsOption,
    PersonaliseOption,
    DeviceModelOption,
    BestRoundOption,
    ListenersOption,
)
