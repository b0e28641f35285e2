"""How methods serve clients that did not train."""

from __future__ import annotations

from collections.abc import Sequence

from fedpfl.core.errors import ConfigError
from fedpfl.results.new_clients import MODES, try_new_clients
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Spread, Table
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import RunGroup, bars, grouped, require

# If a method shares everything, local-train is its global model, and fine-tune what FedFac calls FedAvg+.
HEADS = {"local-train": "LocalTrain, %", "ensemble": "Ensemble, %", "fine-tune": "fine-tuned (+), %"}


@analysis(
    "new-clients", "Accuracy on clients held out as new: LocalTrain, Ensemble, fine-tuned (FedFac, table 3)",
    computes=True,
)  # fmt: skip
def new_clients(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Test the clients that runs held out, in every mode of :func:`fedpfl.results.new_clients.try_new_clients`.

    The accuracy is the share of all new clients' test samples, as the paper weighs them.
    """
    held_out = [group for group in grouped(runs) if group.setting("new-clients")]
    require(held_out, "clients that were held out", "new-clients = 0.1 holds a tenth of them out")
    rows: list[list[Cell]] = []
    without = []
    for group in held_out:
        try:
            rows.append([group.label, *(_accuracy(group, mode) for mode in MODES)])
        except ConfigError as error:  # a method that has no model for new clients
            without.append(f"{group.label}: {error}.")
    require(rows, "a model for new clients", "; ".join(without))
    note = "If a method shares everything, LocalTrain is its global model, and + is FedFac's FedAvg+ or FedProx+."
    table = Table("New clients", ["run", *(HEADS[mode] for mode in MODES)], rows, note=" ".join([note, *without]))
    return Result([table], [bars("New clients", "percent", [HEADS[mode] for mode in MODES], rows)])


def _accuracy(group: RunGroup, mode: str) -> Spread:
    return Spread.of([100 * try_new_clients(run, mode)["weighted"] for run in group.runs])
