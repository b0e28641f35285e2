"""What a method moves over the network, counted and computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedpfl.core.name_lists import shape_of
from fedpfl.core.server_view import new_clients
from fedpfl.core.sharing import SPLIT, UNUSED_BUFFER, Sharing
from fedpfl.models.adapters import merged
from fedpfl.results.history import traffic as moved_in
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.setup.assembly import assemble, plain_model
from fedpfl.study.analysis.figure import Lines, Points
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import array, grouped, require, score_of

WIDTHS = {"float32": 4, "float16": 2}
MB = 1e6


@dataclass(frozen=True)
class Traffic:
    """Bytes of a whole run.

    ``up`` and ``down`` are counted; the theory is shared values times their width times transfers. ``whole`` is as many
    transfers of the whole plain model in float32. ``values`` travel in the last round, ``model`` is the whole model.
    """

    up: int
    down: int
    up_theory: int
    down_theory: int
    whole: int
    values: int
    model: int


@analysis(
    "communication", "Measured bytes against theory, and accuracy over traffic (Factorized-FL, table 1, figures 7, 9)"
)
def communication(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Compare the bytes that were counted with shared values × width × transfers.

    A client that trains receives and sends the shared values once. It receives them again whenever clients are tested.
    """
    rows: list[list[Cell]] = []
    series, sizes, bubbles = {}, {}, {}
    score = score_of(runs)
    for group in grouped(runs):
        run = group.runs[0]
        history = run.history()
        if not history.lines:
            continue
        t = traffic(run)
        rows.append([
            group.label, t.values, t.model, t.up / MB, t.up_theory / MB, t.down / MB, t.down_theory / MB,
            100 * (t.up + t.down) / t.whole,
        ])  # fmt: skip
        moved, tests = moved_in(history), history.curve("personalised.accuracy")
        series[group.label] = (
            [moved[round_number] / MB for round_number in tests],
            [score.factor * accuracy for accuracy in tests.values()],
        )
        accuracy = history.best("personalised.accuracy")
        if accuracy is not None:
            # Methods whose models are sparse count their parameters themselves.
            size = history.last("details.parameters") or t.model
            sizes[group.label], bubbles[group.label] = (size, score.factor * accuracy), [(t.up + t.down) / MB]
    require(rows, "a finished round", "nothing was sent")
    columns = ["run", "values shared", "of the model's", "up, MB", "up in theory", "down, MB", "down in theory",
               "% of whole models"]  # fmt: skip
    note = (
        "Theory: shared values × bytes × transfers, of the first run of each group. Measured traffic also has names, "
        "layouts, numbers and a method's additional arrays; sparse arrays and failed clients reduce it."
    )
    lines = Lines(
        f"{score.title} over traffic", "MB up and down", score.axis, {k: v for k, v in series.items() if v[0]}
    )
    largest = max((size for size, _ in sizes.values()), default=0)
    unit, factor = ("million", 1e6) if largest >= 1e6 else ("thousand", 1e3)
    places = {label: ([size / factor], [accuracy]) for label, (size, accuracy) in sizes.items()}
    model = Points(
        f"{score.title} over model size", f"{unit} values", f"best {score.axis}", places, bubbles, "MB up and down"
    )
    return Result([Table("Communication of the whole run", columns, rows, note=note)], [lines, model])


def traffic(run: RunFolder) -> Traffic:
    """Return the bytes of a run, counted and computed."""
    config, task, lines = run.parsed(), run.described(), run.history().lines
    shape, vocabulary = shape_of(task["input_shape"]), task.get("vocabulary", 0)
    _, sharing = assemble(config, shape, task["num_classes"], vocabulary=vocabulary)
    plain = merged(plain_model(config, shape, task["num_classes"], vocabulary))
    model = sum(values.numel() for name, values in plain.items() if not name.endswith(UNUSED_BUFFER))
    participants = task["clients"] - len(new_clients(config.run.seed, config.run.new_clients, task["clients"]))
    width, up, down, transfers, size = WIDTHS[config.run.wire_dtype], 0, 0, 0, 0
    for line, (size, after) in zip(lines, _sizes(run, sharing, [line["round"] for line in lines]), strict=True):
        trained, tested = len(line["clients"]), participants if "personalised" in line else 0
        up += trained * size * width
        down += (trained * size + tested * after) * width
        transfers += 2 * trained + tested
    measured_up, measured_down = (sum(line[way] for line in lines) for way in ("bytes_up", "bytes_down"))
    return Traffic(measured_up, measured_down, up, down, transfers * model * WIDTHS["float32"], size, model)


def _sizes(run: RunFolder, sharing: Sharing, rounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the values that travel before and after the mean of each round; a split of channels changes them."""
    splits = array(run, SPLIT)
    if sharing.rule_options and not splits:  # the split was given, and so it is that of the last checkpoint
        splits = {0: run.checkpoint()[1][SPLIT]}
    sizes = {0: sharing.layout.size}
    for number, split in splits.items():
        sharing.accept({SPLIT: split})
        sizes[number] = sharing.layout.size
    for number in rounds:
        yield sizes[max(n for n in sizes if n < number)], sizes[max(n for n in sizes if n <= number)]
