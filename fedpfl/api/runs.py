"""One run: loaded, looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import references, user_code
from ..core.errors import ConfigError, FedpflError
from ..core.metrics import ACCURACY, score_in_words, score_name
from ..core.user_code import global_state_kept
from ..launch.plan import Plan
from ..results.export import FORMS, STATE_DICT, export_personal, trained_model
from ..results.run_folder import RunFolder, find_run
from ..results.summary import Summary, outcome
from ..setup.all_settings import code_in, tagged
from ..setup.config import RunSettings
from ..setup.objects import as_setting, functions_as_text
from ..study.analysis.figure import Lines
from ..study.run_store import find_stored
from . import dataframes
from .figures import Plot, require_drawing

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from ..study.report.draw import Style


# A figure of one run has two curves.
CURVES = ("personalised", "global", "validation")


class Run:
    """A run that has been made, or is being made by another process: what its folder holds.

    Parameters
    ----------
    folder : RunFolder
        The folder.
    objects : mapping of str to object
        Python objects among its settings, which a folder cannot hold, by the text that stands for each.

    Examples
    --------
    >>> import fedpfl, torch
    >>> run = fedpfl.run(
    ...     method="fedavg", dataset="digits", model="mlp", num_clients=4, num_server_rounds=2, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> run.rounds["clients_trained"].tolist()
    [4, 4]
    >>> run.clients.columns.tolist()
    ['trained', 'accuracy', 'samples', 'failed', 'unwritten']
    >>> run.model()(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 10])
    """

    def __init__(self, folder: RunFolder, objects: Mapping[str, object] | None = None) -> None:
        self._folder, self._objects = folder, dict(objects or {})

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def name(self) -> str:
        """The run's name, by which :func:`load` and the command line know it."""
        return self._folder.path.name

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its key, as it was used."""
        return dict(self._folder.config())

    @property
    def summary(self) -> Summary:
        """The outcome: accuracies between 0 and 1 of the last and the best round, metrics, seconds, bytes, ε."""
        return outcome(self._folder)

    @property
    def rounds(self) -> DataFrame:
        """A row for each round: accuracies and losses, bytes, seconds, and what the method measures itself."""
        return dataframes.rounds(self._folder.history().lines)

    @property
    def clients(self) -> DataFrame:
        """A row for each round and client: whether it trained, its accuracy, its number of test samples."""
        return dataframes.clients(self._folder.history().lines, self._folder.task().get("client_names", ()))

    @property
    def best(self) -> Run:
        """The run up to the round that is best on the validation samples, with the models of that round.

        ``ConfigError`` without validation samples (``validation_fraction``).
        """
        from ..results.resumed_run import best_of

        return Run(best_of(self._folder), self._objects)

    def model(self, client: int | str | None = None) -> nn.Module:
        """Return a trained model on the CPU, in evaluation mode.

        Parameters
        ----------
        client : int or str, optional
            Whose personalised model: an int is the client's number, from 0; a text is its name in the data, or, if
            nobody has this name, its number. It is the one that was tested after the last round, adapted to the test if
            the method does that. By default the model that all clients share.

        Returns
        -------
        nn.Module
            A plain model, without what the method adds; of a model of your own, what your function has built. It takes
            tables and series as the data have them: where ``standardize`` or ``impute`` changed them, a hook before its
            forward does so by the client's numbers. Images are scaled, channels first.

        Raises
        ------
        ConfigError
            The client is not there, or its arrays are not on this machine.
        NoPlainModel
            The method has no such model, or it is made for a test and there was none at the run's end.
        """
        with self.objects():
            return trained_model(self._folder, client)

    def export(self, form: str = STATE_DICT, *, client: int | str | None = None) -> list[Path]:
        """Write personalised models for use without fedpfl, as ``fedpfl export`` does.

        Parameters
        ----------
        form : {"state-dict", "torchscript", "onnx"}
            Weights, or a program that needs no Python code of the model (``onnx`` needs the extra of this name).
        client : int or str, optional
            Whose model, by number or name as in :meth:`model`; by default each client's.

        Returns
        -------
        list of Path
            The files; a JSON file of the same name describes input and output, and is what :func:`load_model` takes.
            Programs take tables and series as the data have them. Where all clients share one model, it is
            ``global.onnx`` or ``global.pt``; its weights are there already, as ``global.safetensors`` of the run.

        Raises
        ------
        ConfigError
            The form or the client is not there, or the client's arrays are not on this machine.
        NoPlainModel
            The method has no such model, or the form cannot hold it.
        """
        if form not in FORMS:
            raise ConfigError("form", form, f"must be one of {', '.join(FORMS)}")
        with self.objects():
            return export_personal(self._folder, None if client is None else [client], form)

    def plot(self, title: str = "", style: Style | Sequence[Style] = ()) -> Plot:
        """Draw the accuracies over the rounds."""
        curves = {name: self._folder.history().curve(f"{name}.accuracy") for name in CURVES}
        called = score_name(self._folder.config()["loss"])
        factor, axis = (100, "accuracy in percent") if called == ACCURACY else (1, called)
        series = {
            name: ([*scores], [factor * score for score in scores.values()])
            for name, scores in curves.items()
            if scores
        }
        if not series:
            raise FedpflError(f"{self.path}: has no tested round yet")
        return Plot(Lines(self.name, "round", axis, series), (), title, style)

    def report(self, path: str | PathLike[str] = "report.html", title: str = "") -> Path:
        """Write a page about the run that needs no network; return where it is."""
        return report([self], path, title)

    @contextmanager
    def objects(self) -> Iterator[None]:
        """Provide the settings that were given as Python objects, and let models draw without a trace."""
        with ExitStack() as stack:
            stack.enter_context(global_state_kept())
            for text, thing in self._objects.items():
                stack.enter_context(as_setting("", thing, text))
            yield

    def __repr__(self) -> str:
        config, result = self._folder.config(), self.summary
        accuracy = result["personalised_accuracy"]
        called = score_name(config["loss"])
        achieved = ""
        if accuracy is not None:
            score = score_in_words(accuracy, config["loss"])
            achieved = f", personalised {score}" if called == ACCURACY else f", personalised {called} {score}"
        what = f"{references.short_name(config['method'])} on {references.short_name(config['dataset'])}"
        return f"<Run {self.name}: {what}, {result['rounds']} of {config['num-server-rounds']} rounds{achieved}>"

    def _repr_markdown_(self) -> str:
        return (self.path / "summary.md").read_text(encoding="utf-8") if self._folder.finished else repr(self)


def load(
    run: str | PathLike[str], *, output_dir: str | PathLike[str] | None = None, method: Any = None, model: Any = None,
    data: Any = None, client_models: Any = None,
) -> Run:  # fmt: skip
    """Open a run.

    Parameters
    ----------
    run : str or path
        Its name in ``output_dir`` or among the runs of sweeps and experiments, or its folder.
    output_dir : str or path, optional
        The folder of runs; by default that of the settings.
    method, model, data, client_models : optional
        What was given to :func:`run` as Python objects that no file holds; models of the run need them again.

    Raises
    ------
    ConfigError
        There is no such run.

    Examples
    --------
    >>> import fedpfl
    >>> made = fedpfl.run(
    ...     method="local", dataset="digits", model="mlp", num_clients=4, num_server_rounds=1, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> fedpfl.load(made.name).summary == made.summary
    True
    """
    root = Path(output_dir if output_dir is not None else RunSettings.output_dir)
    user_code.set_folder(Path())
    folder, objects = find_stored(str(run), root), dict[str, object]()

    def keep(thing: object, before: str) -> str:
        if before:
            objects[before] = thing
        return before

    things = python_objects(method, model, None, data)
    for kind, thing in things.items():  # a list of clients is one object, too
        text = str(folder.config().get(kind, ""))
        keep(thing, text if text.startswith(f"{references.PYTHON}:") else "")
    if client_models is not None:
        functions_as_text("client-models", client_models, keep, str(folder.config().get("client-models", "")))
    return Run(folder, objects)


def report(runs: list[Run], path: str | PathLike[str], title: str) -> Path:
    """Write a page about runs; see :meth:`Run.report`."""
    require_drawing("a report")
    from ..study.report import sections, write_page

    page = Path(path).expanduser()
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.objects())
        parts, labels = sections([run._folder for run in runs])
        try:
            write_page(page, title or ", ".join(labels) or "Runs", parts, labels)
        except OSError as error:
            raise ConfigError("path", str(error.filename or page), f"cannot be written ({error.strerror})") from error
    return page.absolute()


def python_objects(method: Any, model: Any, dataset: Any, data: Any) -> dict[str, object]:
    """Return the Python objects among these arguments, by setting; a method of the package is its name."""
    objects: dict[str, object] = {}
    for kind, thing in (("method", method), ("model", model), ("dataset", dataset), ("dataset", data)):
        if thing is None or isinstance(thing, (str, PathLike)):
            continue
        if kind in objects or (kind == "dataset" and thing is data and dataset is not None):
            raise ConfigError(
                "data", references.article(thing), "is a data set, but the setting dataset names another one"
            )
        objects[kind] = thing
    return objects


def place_of(stack: ExitStack, run: str | PathLike[str] | Run | None, objects: dict[str, object]) -> str | None:
    """Return where a run is, and provide its Python objects, which ``objects`` gets as well."""
    if not isinstance(run, Run):
        return None if run is None else str(run)
    stack.enter_context(run.objects())
    objects.update(run._objects)
    return str(run.path)


def stored_texts(resume: str | PathLike[str] | Run | None, values: Mapping[str, Any]) -> dict[str, str]:
    """Return under which texts the run that is resumed knows its Python objects."""
    if resume is None:
        return {}
    root = Path(str(values.get("output-dir", RunSettings.output_dir)))
    config = (resume._folder if isinstance(resume, Run) else find_run(str(resume), root)).config()
    texts = {kind: str(config.get(kind, "")) for kind in tagged("code")}
    return {kind: text for kind, text in texts.items() if f"{references.PYTHON}:" in text}


def how_to_resume(plan: Plan, objects: Mapping[str, object]) -> str:
    """Return the sentence that tells how a run that was interrupted is resumed."""
    if plan.folder.resumable and not plan.has_finished():
        arguments, named = [f"resume={str(plan.folder.path)!r}"], dict[str, list[str]]()
        for kind, text in code_in(plan.run_config()):
            if text in objects:
                argument = "data" if kind == "dataset" else kind.replace("-", "_")
                named.setdefault(argument, []).append(str(getattr(objects[text], "__name__", "")))
        for argument, names in named.items():
            arguments.append(f"{argument}={names[0] if len(names) == 1 and names[0].isidentifier() else argument}")
        same = ", with the same objects" if len(arguments) > 1 else ""
        return f"the run was interrupted; resume it{same}: fedpfl.run({', '.join(arguments)})"
    return "the run was interrupted"
