"""What an attacker can recover of a client's images from the client's update: an image whose gradient is the one seen.

Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019 (``dlg``); Geiping, Bauermeister, Dröge, Moeller: Inverting
Gradients: How easy is it to break privacy in federated learning?, NeurIPS 2020 (``cosine``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn

from fedpfl.client.options.privacy import ClientPrivacy
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.core.payload import Payload
from fedpfl.core.pixels import HALF
from fedpfl.core.rng import generator, torch_seed
from fedpfl.core.samples import Samples
from fedpfl.core.settings import setting
from fedpfl.methods.base import LocalRound
from fedpfl.results.new_clients import Simulation
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Spread, Table
from fedpfl.setup.options.privacy import PrivacySettings
from fedpfl.study.analysis.cache import cached
from fedpfl.study.analysis.figure import Bars, Figure, Images
from fedpfl.study.analysis.registry import NotRecorded, Result, analysis
from fedpfl.study.analysis.repetitions import grouped
from fedpfl.study.analysis.stored_models import fresh_arrays, overwrite, picture
from fedpfl.training.loop import run_phase
from fedpfl.training.phase import Batch, Phase

# From a guessed image to the gradients that it would give, differentiable in the image.
Gradients = Callable[[Tensor], Sequence[Tensor]]

LOW, HIGH = -1.0, 1.0  # of pixels, as models get them
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations: there the step falls to a tenth (Geiping et al., section 4)
STEPS_OF_LBFGS = 20  # forward passes of one iteration at most


def cosine_distance(guessed: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return 1 − cos of the angle between all gradients laid end to end; a gradient of nothing but 0 is 1 away."""
    dot = torch.stack([(a * b).sum() for a, b in zip(guessed, target, strict=True)]).sum()
    squares = [torch.stack([(a * a).sum() for a in gradients]).sum() for gradients in (guessed, target)]
    return 1 - dot / torch.sqrt(squares[0] * squares[1] + torch.finfo(dot.dtype).tiny)


def squared_distance(guessed: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return the squared Euclidean distance between all gradients laid end to end."""
    return torch.stack([((a - b) ** 2).sum() for a, b in zip(guessed, target, strict=True)]).sum()


def total_variation(image: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, down and across, of images (n, channels, h, w)."""
    down = (image[:, :, 1:] - image[:, :, :-1]).abs().mean()
    across = (image[:, :, :, 1:] - image[:, :, :, :-1]).abs().mean()
    return down + across


def by_cosine(
    gradients: Gradients, target: Sequence[Tensor], start: Tensor, iterations: int, tv: float, step: float
) -> Tensor:
    """Match the direction of the gradients: cosine distance plus tv · total variation, Adam on the gradient's signs.

    The guess ``start`` and the result have shape (1, channels, height, width) and values from −1 to 1; ``step`` is
    Adam's first step size.
    """
    image = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([image], lr=step)
    milestones = [int(share * iterations) for share in DECAYS]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in range(iterations):
        loss = cosine_distance(gradients(image), target) + tv * total_variation(image)
        (image.grad,) = (g.sign() for g in torch.autograd.grad(loss, [image]))
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            image.clamp_(LOW, HIGH)
    return image.detach()


def by_squares(
    gradients: Gradients, target: Sequence[Tensor], start: Tensor, iterations: int, tv: float, step: float
) -> Tensor:
    """Match the gradients themselves: squared distance, L-BFGS; parameters as in :func:`by_cosine`, ``tv`` as well.

    The distance is divided by that of a gradient of zeros, so that ``tv`` and tolerances mean the same for all models.
    If the search ends in values that are not finite, the last finite guess is returned.
    """
    image = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [image], lr=step, max_iter=STEPS_OF_LBFGS, history_size=100, line_search_fn="strong_wolfe"
    )
    scale = squared_distance([torch.zeros_like(t) for t in target], target).clamp_min(torch.finfo(start.dtype).tiny)

    def closure() -> Tensor:
        loss = squared_distance(gradients(image), target) / scale + tv * total_variation(image)
        (image.grad,) = torch.autograd.grad(loss, [image])
        return loss

    last = start
    for _ in range(max(1, iterations // STEPS_OF_LBFGS)):
        optimizer.step(closure)  # type: ignore[arg-type, no-untyped-call]
        if not torch.isfinite(image).all():
            break
        last = image.detach().clone()
    return last.clamp(LOW, HIGH)


ATTACKS = {"cosine": by_cosine, "dlg": by_squares}


def label_from_bias(gradient: Tensor) -> int:
    """Return the class of a single sample from the gradient of the classifier's bias, shape (classes,).

    Under cross-entropy that gradient is softmax − one-hot, which is negative for the true class alone (Zhao, Mopuri,
    Bilen: iDLG: Improved Deep Leakage from Gradients, 2020).
    """
    return int(gradient.argmin())


BIAS = "head.bias"  # of the classifier


@dataclass(frozen=True)
class AttackOptions:
    """Options of the attack."""

    clients: int = setting(5, "Number of clients to attack, drawn with attack-seed; all if there are fewer.", minimum=1)
    images: int = setting(1, "Number of training images to attack per client.", minimum=1)
    iterations: int = setting(300, "Optimisation steps per reconstruction.", minimum=1)
    kind: str = setting(
        "cosine",
        "Attack. cosine: cosine distance and total variation, with Adam. dlg: squared distance, with L-BFGS.",
        choices=tuple(ATTACKS),
    )
    tv: float = setting(1e-2, "Weight of the total variation.", minimum=0)
    step: float = setting(0.1, "Initial step size of Adam; L-BFGS uses 10 times this value.", above=0)
    restarts: int = setting(1, "Attempts per image; the attempt whose gradient matches best is kept.", minimum=1)
    learning_rate: float = setting(
        0.01, "Learning rate of the client's SGD step, by which its update is divided.", above=0
    )
    label: str = setting(
        "known",
        "Whether the attacker knows the image's class (known) or infers it from the gradient of the classifier's bias.",
        choices=("known", "inferred"),
    )
    personal: str = setting(
        "drawn",
        "What the attacker uses for the personal arrays. drawn: a random initialisation. initial: the "
        "initialisation from which all clients started. true: the client's own arrays, which a real attacker cannot "
        "know.",
        choices=("drawn", "initial", "true"),
    )
    attack_seed: int = setting(
        1, "Seed of the choice of clients and images, the first guesses and the attacker's arrays.", minimum=0
    )


@dataclass(frozen=True)
class Attempt:
    """An attacked image (from −1 to 1), what was recovered, its PSNR in dB, and 1 − cos between the gradients."""

    original: Tensor
    recovered: Tensor
    psnr: float
    distance: float


@analysis(
    "attack", "PSNR of images recovered from what a client sends (FedDecomp, table 7; DLG, inverting gradients)",
    AttackOptions, computes=True,
)  # fmt: skip
def attack(runs: Sequence[RunFolder], options: AttackOptions) -> Result:
    """Recover clients' training images from their updates of the shared arrays; average and maximum PSNR.

    A client of the finished run follows the method's own schedule, one step of SGD for each of its phases, on a single
    image. The attacker sees the difference of what the client received and what it would send, divided by the learning
    rate. The attacker is the server: it knows the model's structure, the shared arrays, the method with its settings
    and, by default, the class, but no personal array and none of the client's data. Where phases depend on data, it
    takes those of a client with one blank image of each class. It looks for the image whose gradients, added over the
    phases, match.

    FedDecomp (section 4.6) says that "the gradients of shared parameters can be obtained by the attacker" and that 5
    images of each of 20 clients were attacked in rounds 10 to 50. It does not say what replaces the personal arrays,
    how many images a gradient is of, or which optimiser and steps were used. Here a run is attacked after its last
    round. PSNR is torchmetrics', for images from 0 to 1: −10·log10 of the mean squared error over all values; the paper
    divides by width · height only, which for colour images is 4.8 dB less. The PSNR of a uniform image, as bright as
    the attacked images are on average, is given for comparison.
    """
    rows: list[list[Cell]] = []
    figures: list[Figure] = []
    heights: dict[str, list[float]] = {"average": [], "maximum": []}
    without = []
    for group in grouped(runs):
        try:
            attempts = [attempt for run in group.runs for attempt in attempts_of(run, options)]
        except NotRecorded as error:
            without.append(str(error))
            continue
        values = [attempt.psnr for attempt in attempts]
        distance = statistics.fmean(attempt.distance for attempt in attempts)
        rows.append([group.label, len(values), Spread.of(values), max(values), psnr_of_grey(attempts),
                     f"{distance:.1e}"])  # fmt: skip
        heights["average"].append(statistics.fmean(values))
        heights["maximum"].append(max(values))
        figures.append(_images(f"Attack on {group.label}", attempts))
    if not rows:
        raise NotRecorded("; ".join(without))
    columns = ["run", "images", "PSNR, dB", "maximum, dB", "of a grey image, dB", "1 − cos of the gradients"]
    note = (f"{options.kind}, {options.iterations} iterations, best of {options.restarts}; label {options.label}, "
             f"personal arrays {options.personal}, attack-seed {options.attack_seed}.")  # fmt: skip
    note = " ".join([note, *(f"Not attacked: {reason}." for reason in without)])
    table = Table("Images recovered from what a client sends", columns, rows, note=note)
    bars = Bars("PSNR of recovered images", "dB", [str(row[0]) for row in rows], heights)
    return Result([table], [bars, *figures])


def attempts_of(run: RunFolder, options: AttackOptions) -> list[Attempt]:
    """Return what :func:`attack_run` returns, where possible without attacking again."""

    def compute() -> dict[str, np.ndarray]:
        made = attack_run(run, options)
        pictures = {key: torch.stack([getattr(a, key) for a in made]).numpy() for key in ("original", "recovered")}
        return {**pictures, "psnr": np.array([a.psnr for a in made]), "distance": np.array([a.distance for a in made])}

    attempts = cached(run, "attack", options, compute)
    return [
        Attempt(torch.from_numpy(original), torch.from_numpy(recovered), float(in_db), float(distance))
        for original, recovered, in_db, distance in zip(
            attempts["original"], attempts["recovered"], attempts["psnr"], attempts["distance"], strict=True
        )
    ]


def attack_run(run: RunFolder, options: AttackOptions) -> list[Attempt]:
    """Attack images of a finished run's clients; the run must have images and send something that it trains."""
    if find_spec("torchmetrics") is None:
        raise FedpflError("the attack needs torchmetrics: pip install 'fedpfl[analysis]'")
    stored = Simulation.of(run)
    if stored.engine.data.vocabulary or len(stored.engine.data.input_shape) != 3:
        raise ConfigError("dataset", stored.engine.config.data.dataset, "holds no images, so there are none to recover")
    if (normalize := stored.engine.config.data.normalize) != HALF:
        raise ConfigError("normalize", normalize, f"must be {HALF} in a run to attack: images are guessed from −1 to 1")
    clients = [client.id for client in stored.rule.participants]
    rng = generator(options.attack_seed, "attacked clients")
    chosen = sorted(rng.choice(clients, min(options.clients, len(clients)), replace=False).tolist())
    attempts = []
    for client in chosen:
        labels = stored.engine.data.labels(client)
        rng = generator(options.attack_seed, "attacked images", client)
        for place in sorted(rng.choice(len(labels), min(options.images, len(labels)), replace=False).tolist()):
            attempts.append(_attack_image(stored, client, place, options))
    return attempts


def _attack_image(stored: Simulation, client: int, place: int, options: AttackOptions) -> Attempt:
    seen, local = observe(stored, client, place, options.learning_rate)
    if options.personal != "true":
        seed = options.attack_seed if options.personal == "drawn" else stored.engine.config.run.seed
        personal = {name: ~sent for name, sent in seen.sent.items()}
        overwrite(stored, fresh_arrays(stored, seed), personal)
    seen = replace(seen, phases=_attacker_phases(stored, local))
    label = seen.label
    if options.label == "inferred":
        if BIAS not in seen.names:
            method = stored.engine.config.method.name
            raise NotRecorded(f"{method} sends no {BIAS} from which the label could be inferred (label = known)")
        label = torch.tensor([label_from_bias(seen.gradients[seen.names.index(BIAS)])], device=seen.label.device)
    attempts = []
    for restart in range(options.restarts):
        torch.manual_seed(torch_seed(options.attack_seed, "first guess", client, place, restart))
        start = torch.randn(seen.image.shape).clamp(-1, 1).to(seen.image.device)
        recovered = ATTACKS[options.kind](
            lambda image: seen.of(stored.engine.model, image, label), seen.gradients, start,
            options.iterations, options.tv, options.step * (10 if options.kind == "dlg" else 1),
        )  # fmt: skip
        distance = float(cosine_distance(seen.of(stored.engine.model, recovered, label), seen.gradients).detach())
        attempts.append((distance, recovered))
    distance, recovered = min(attempts, key=lambda attempt: attempt[0])
    return Attempt(seen.image[0].cpu(), recovered[0].cpu(), psnr(recovered, seen.image), distance)


@dataclass(frozen=True)
class Seen:
    """What the attacker sees of one step, and how it computes the same for a guess.

    ``gradients`` are flat, one for each of ``names``: of the entries that are sent (``sent``: bool arrays by name).
    """

    image: Tensor
    label: Tensor
    names: list[str]
    gradients: list[Tensor]
    sent: dict[str, Tensor]
    phases: list[Phase]

    def of(self, model: nn.Module, image: Tensor, label: Tensor) -> list[Tensor]:
        """Return the gradients, added over the phases, that an image would give, differentiable in the image."""
        model.eval()  # as the client with a single image: BatchNorm has only its running statistics
        parameters = dict(model.named_parameters())
        sums = {name: torch.zeros_like(parameters[name]) for name in self.names}
        batch = Batch(image, label, torch.zeros_like(label))
        for phase in self.phases:
            trained = [name for name in self.names if phase.train(name)]
            if not trained:
                continue
            with phase.during(model):
                assert phase.loss is not None  # filled in with the phases
                loss = phase.loss(model, batch)
                wanted = [parameters[name] for name in trained]
                gradients = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
            for name, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    sums[name] = sums[name] + gradient
        return [sums[name][self.sent[name]] for name in self.names]


def observe(stored: Simulation, client: int, place: int, learning_rate: float) -> tuple[Seen, LocalRound]:
    """Let a client take one step of SGD for each phase on one of its images.

    Return what the server sees and the client's round; the model is as it was before.
    """
    local = _first(stored.load(client, "train"), place)
    image = Samples(local.samples.x[:1], local.samples.y[:1])
    model = stored.engine.model
    sent = _sent(stored)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    arrays = {name: array.detach().clone() for name, array in model.state_dict().items()}
    schedule = [phase for phase in stored.engine.config.method.schedule(local) if phase.epochs]
    # One step of plain SGD, whatever a phase asks for.
    phases = [
        replace(
            phase, data=image, epochs=1, learning_rate=None, batch_size=None, optimizer=None, momentum=None,
            weight_decay=None, groups=(), loss=phase.loss_with(stored.engine.config.training),
        )
        for phase in schedule
    ]  # fmt: skip
    settings = replace(
        stored.engine.config.training, optimizer="sgd", momentum=0.0, weight_decay=0.0, learning_rate=learning_rate
    )
    torch.manual_seed(torch_seed(local.seed, "torch attack", client, place))
    for phase in phases:
        run_phase(model, phase, image, settings, np.random.default_rng(0))
    privacy, sharing = stored.engine.config.of(PrivacySettings), stored.engine.sharing
    if privacy.on:  # as the client does before it sends; with a key that is no client's
        copies = stored.engine.extras.copies
        state, key = model.state_dict(), f"attack {client} {place}".encode()
        extras = {name: state[copied].cpu().numpy() for name, copied in copies.items()}
        shared, extras = ClientPrivacy(stored.engine).private(local, sharing.get_shared(), extras, key)
        sharing.set_shared(shared)
        for name, copied in copies.items():
            state[copied].copy_(torch.from_numpy(extras[name]))
    moved = {name: (before[name] - parameter.detach()) / learning_rate for name, parameter in model.named_parameters()}
    names = [name for name in moved if sent[name].any() and any(phase.train(name) for phase in phases)]
    if not names:
        method = stored.engine.config.method.name
        raise NotRecorded(f"{method} sends nothing that it trains, so there is nothing to attack")
    model.load_state_dict(arrays)
    gradients = [moved[name][sent[name]] for name in names]
    return Seen(image.x.contiguous(), image.y, names, gradients, sent, phases), local


def _attacker_phases(stored: Simulation, local: LocalRound) -> list[Phase]:
    """Return the phases as they are without the client's data: for one blank image of each class."""
    method, classes = stored.engine.config.method, local.num_classes
    y = torch.arange(classes, device=local.samples.y.device)
    blank = Samples(torch.zeros_like(local.samples.x[:1]).expand(classes, -1, -1, -1).contiguous(), y)
    guess = replace(
        local, train_data=lambda: blank, train_labels=lambda: y.cpu().numpy(), message=Payload(local.message.config)
    )
    method.prepare(guess)
    phases = [phase for phase in method.schedule(guess) if phase.epochs]
    return [replace(phase, loss=phase.loss_with(method.training)) for phase in phases]


def psnr(recovered: Tensor, original: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB of images from −1 to 1."""
    from torchmetrics.functional.image import peak_signal_noise_ratio

    return float(peak_signal_noise_ratio((recovered + 1) / 2, (original + 1) / 2, data_range=1.0))


def psnr_of_grey(attempts: Sequence[Attempt]) -> float:
    """Return the mean PSNR that one uniform image has, as bright as the attacked images are on average."""
    grey = torch.stack([attempt.original for attempt in attempts]).mean()
    return statistics.fmean(psnr(torch.full_like(a.original, float(grey)), a.original) for a in attempts)


def _first(local: LocalRound, place: int) -> LocalRound:
    """Return a client's round with one of its samples moved to the front."""
    count = len(local.train_labels())
    order = [place, *(other for other in range(count) if other != place)]

    def data() -> Samples:
        return Samples(*(tensor[order] for tensor in local.train_data()))

    return replace(local, train_data=data, train_labels=lambda: local.train_labels()[order])


def _sent(stored: Simulation) -> dict[str, Tensor]:
    """Return which entries of each array of the loaded model travel.

    These are the entries that a message would overwrite, and the arrays whose copies a reply carries: the server has
    those from the reply of an earlier round.
    """
    sharing, model = stored.engine.sharing, stored.engine.model
    received, personal = sharing.get_shared(), sharing.get_personal()
    sharing.set_shared(np.full_like(received, math.nan))
    is_sent = {name: torch.isnan(array) for name, array in model.state_dict().items()}
    sharing.set_shared(received)
    sharing.set_personal(personal)
    for name in stored.engine.extras.copies.values():
        is_sent[name] = torch.ones_like(is_sent[name])
    return is_sent


def _images(title: str, attempts: Sequence[Attempt]) -> Images:
    rows = {"original": [picture(a.original) for a in attempts], "recovered": [picture(a.recovered) for a in attempts]}
    return Images(title, rows, {"recovered": [f"{attempt.psnr:.1f} dB" for attempt in attempts]})
