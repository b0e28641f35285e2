"""The options, each in a folder: settings and checks in ``__init__.py``, what it brings in the files beside it.

Those, above all ``client.py`` and ``server.py``, are imported in runs that want them alone. To add an option, write a
subclass of :class:`~fedpfl.core.option.Option` in a new folder, or a file if it brings nothing, and name it here.
Two files serve data, models and methods as well: ``own_code.py`` finds the user's code, ``inputs.py`` packs inputs.
"""

from __future__ import annotations

from .after_the_end import BestRoundOption, DeviceModelOption, MissedOption, PersonaliseOption
from .buffered import BufferedOption
from .client_settings import ClientSettingsOption
from .diagnostics import DiagnosticsOption
from .evaluate_global import EvaluateGlobalOption, EvaluateTrainedOption
from .keep_momentum import KeepMomentumOption
from .listeners import ListenersOption
from .norm_limit import NormLimitOption
from .participation import ParticipationOption
from .privacy import PrivacyOption
from .robust import RobustOption
from .server_step import ServerStepOption
from .tests_at_server import ServerTestOption
from .trainable import InitialWeightsOption, TrainableOption
from .virtual_time import VirtualTimeOption
from .worker_limits import WorkerLimitsOption

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
    BufferedOption,
    ParticipationOption,
    VirtualTimeOption,
    ClientSettingsOption,
    PersonaliseOption,
    DeviceModelOption,
    MissedOption,
    BestRoundOption,
    ListenersOption,
    WorkerLimitsOption,
)
