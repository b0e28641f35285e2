"""What clients' language models write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.metrics import NEXT_TOKEN
from ...core.rng import generator
from ...core.samples import IGNORED_TOKEN
from ...core.settings import setting
from ...data.datasets.tokens import decoder
from ...data.federation import FederatedData
from ...results.new_clients import Simulation
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Table
from ...training.phase import Forward
from .registry import Result, analysis
from .repetitions import name_of, require


@dataclass(frozen=True)
class TextsOptions:
    """Options of the analysis."""

    clients: int = setting(3, "Clients whose models write, the first ones.", minimum=1)
    tokens: int = setting(60, "Most tokens that are written.", minimum=1)
    temperature: float = setting(
        0.5, "Temperature of the probabilities by which tokens are drawn. 0: the most probable one.", minimum=0
    )


@analysis("texts", "What clients' models write after the beginning of a test text", options=TextsOptions)
def texts(runs: Sequence[RunFolder], options: TextsOptions) -> Result:
    """Let the clients' models go on with their first test texts: after the prompt, or else after half of the text."""
    result = Result()
    for run in runs:
        if run.parsed().training.labels != NEXT_TOKEN:
            continue
        stored = Simulation.of(run)
        data, rows = stored.engine.data, list[list[Cell]]()
        read = reader(data, run.parsed().data.tokenizer)
        writers = [client.id for client in stored.rule.participants if client.test_samples][: options.clients]
        for client in writers:
            forward, text, begins, ends = _first_text(stored, client)
            written = write(forward, text, begins, min(len(text), begins + options.tokens), options.temperature,
                            generator(stored.engine.config.run.seed, "texts", client))  # fmt: skip
            who: Cell = data.client_names[client] if data.client_names else client
            rows.append([who, *(read(part.tolist()) for part in (text[:begins], written, text[begins:ends]))])
        note = f"Tokens are drawn from a model's probabilities (temperature {options.temperature:g})."
        columns = ["client", "text", "its model goes on", "the client's text goes on"]
        result.tables.append(Table(f"Texts, {name_of(run)}", columns, rows, note=note))
    require(result.tables, "texts", "loss = next-token has")
    return result


def _first_text(stored: Simulation, client: int) -> tuple[Forward, Tensor, int, int]:
    """Return a client's model, its first test text, and where what the model is to write begins and ends."""
    message, samples = stored.message(client), stored.engine.test_samples(client)
    message.config["round"] = stored.last  # whose test it is, with its random numbers
    _, local = stored.engine.load(client, message)
    stored.engine.config.method.prepare(local)
    text, predicted = samples.x[0], (samples.y[0] != IGNORED_TOKEN).nonzero().flatten().tolist()
    begins = predicted[0] if predicted and predicted[0] else max(1, len(predicted) // 2)
    return stored.engine.adapted(local), text, begins, predicted[-1] + 1 if predicted else begins


@torch.no_grad()
def write(
    forward: Forward, text: Tensor, begins: int, ends: int, temperature: float, rng: np.random.Generator
) -> Tensor:
    """Return the tokens from ``begins`` to ``ends`` that a model writes after those of ``text`` before them.

    No token is drawn from what comes after it: the rest of the text is 0 until it is written.
    """
    row = text.clone()[None]
    row[0, begins:] = 0
    for place in range(begins, ends):
        logits = forward(row)[0, place - 1].double().cpu()
        if temperature:
            shares = torch.softmax(logits / temperature, 0).numpy()
            row[0, place] = int(rng.choice(len(shares), p=shares / shares.sum()))
        else:
            row[0, place] = int(logits.argmax())
    return row[0, begins:ends]


def reader(data: FederatedData, tokenizer: str) -> Callable[[Sequence[int]], str]:
    """Return the function from tokens to a text: by the tokenizer, the tokens' names, or else their numbers."""
    of_tokenizer = decoder(tokenizer) if tokenizer else None
    if of_tokenizer is not None:
        return of_tokenizer
    if data.has_no_class_names:
        return lambda tokens: " ".join(map(str, tokens))
    names = [name[1:-1] if len(name) > 2 and name[0] == name[-1] == "'" else name for name in data.class_names]
    return lambda tokens: "".join(names[token] if token < len(names) else "?" for token in tokens)
