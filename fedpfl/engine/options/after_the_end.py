"""Clients after a run's end: no answer of theirs changes the run's arrays.

Clients that were not in the run make their own models from its final shared arrays. Those that were in it, and
missed its last test, are tested with the arrays of its end; a device writes its model with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from typing import Any

from ...core.errors import ConfigError, FedpflError, reasons
from ...core.extra_arrays import Extras
from ...core.server_view import Client
from ...results.board_names import shown_on_boards
from ...results.resumed_run import ResumedRun
from ...results.round_line import scores_of
from ...results.round_record import Round
from ...results.run_folder import RunFolder
from ...rules import Rule
from ...setup.assembly import extras_of, make_rule
from ...setup.config import Config
from ...setup.options.after_the_end import PersonaliseSettings
from ...setup.options.availability import AvailabilitySettings
from ..agreement import Agreement, agree_with
from ..rounds import RoundLoop
from ..transport import EVALUATE, TRAIN, Transport

logger = getLogger("flwr")


def personalise(transport: Transport, config: Config) -> RunFolder:
    """Give clients that were not in a run, or missed its end, their own models, and record their accuracies."""
    folder = ResumedRun.reopen(config, more_clients=True)
    with folder.exclusive():
        last, stored, remarks = folder.last_intact(config.run.state_dir)
        for remark in remarks:
            logger.log(WARNING, "fedpfl: %s", remark)
        if not folder.finished:
            warning = "fedpfl: %s is not finished: clients get the arrays of its round %d of %d"
            logger.log(WARNING, warning, folder.path.name, last, folder.config()["num-server-rounds"])
        task = folder.described()
        # Who is not there is not waited for beyond node-timeout.
        anybody = replace(config, run=replace(config.run, min_clients=config.run.min_clients or 1))
        anybody = anybody.put(replace(config.of(AvailabilitySettings), new_nodes="join"))
        descriptions = transport.find_clients(anybody, task["state_key"], task.get("identities"))
        agreed = agree_with(config, descriptions, task)
        folder.add_identities(transport.identities())
        rule = _rule(config, agreed, task, stored)
        loop = _LoopAfterTheEnd.of(config, folder, rule, extras_of(config, agreed.model, agreed.sharing))
        there = {client.id: client for client in agreed.clients if not client.absent}
        missed = [there[client.id] for client in loop.missed(folder) if client.id in there]
        new = [client for client in there.values() if client.id not in folder.history().clients()]
        if new and not rule.one_model:
            message = "makes a model for each client and has none for new ones"
            if not missed:
                raise ConfigError("method", config.method.name, message)
            logger.log(WARNING, "fedpfl: %s %s", config.method.name, message)
            new = []
        if not missed and not new:
            raise FedpflError(
                f"{folder.path.name}: nothing to do: every connected client was already tested at the end of this run"
            )
        answers = {
            "new": loop.ask(transport, new, last + 1, TRAIN),
            "missed": loop.ask(transport, missed, last, EVALUATE),
        }
        failed = _note(folder, config, answers)
        if not any(done.evaluated for done in answers.values()):
            why = reasons(failed, "client", shown=shown_on_boards) or "no client came back"
            raise FedpflError(f"{folder.path.name}: {why}")
    return folder


class _LoopAfterTheEnd(RoundLoop):
    """Asks clients with the arrays of a run's end."""

    @classmethod
    def of(cls, config: Config, folder: RunFolder, rule: Rule, extras: Extras) -> _LoopAfterTheEnd:
        """Return the loop of a run that is over."""
        task = folder.task()
        return cls(
            rule, config.run, task["state_key"], extras, counted=config.training.kind.counted,
            several=not config.training.kind.classes,
        )  # fmt: skip

    def ask(self, transport: Transport, clients: Sequence[Client], number: int, kind: str) -> Round:
        """Send clients their messages; return what they answered as a round's tests."""
        self.round = Round(number)
        requests = self.requests(clients, number, kind)
        self.collect_scores(transport.replies(requests, self.settings.round_timeout, self.fail))
        return self.round

    def missed(self, folder: RunFolder) -> list[Client]:
        """Return the clients of the run that were not tested at its end."""
        history = folder.history()
        tests = history.tests().get(history.last_round, {}) if self.settings.test_at == "end" else {}
        missed = history.clients() - {int(client) for client in tests}
        return [client for client in self.rule.participants if client.id in missed]


def _note(folder: RunFolder, config: Config, answers: Mapping[str, Round]) -> dict[int, str]:
    """Record what clients answered after the end; return who failed and why."""
    by_group = {name: scores for name, done in answers.items() if (scores := scores_of("personalised", done.evaluated))}
    failed = {client: reason for done in answers.values() for client, reason in done.failed.items()}
    for name, scores in by_group.items():
        logger.log(INFO, "fedpfl: %s clients: personalised %.1f %%", name, 100 * scores["accuracy"])
    for client, reason in failed.items():
        logger.log(WARNING, "fedpfl: client %d: %s", client, reason)
    if by_group:
        mode = config.of(PersonaliseSettings).personalise
        ResumedRun(folder.path).note_personalised({"mode": mode, **by_group, "failed": failed})
    return failed


def _rule(config: Config, agreed: Agreement, task: Mapping[str, Any], stored: Mapping[str, Any]) -> Rule:
    """Return the rule as it was at the run's end; clients that came later have never trained."""
    sizes = task.get("samples") or [(client.train_samples, client.test_samples) for client in agreed.clients]
    before = [Client(i, train, test, absent=not train + test) for i, (train, test) in enumerate(sizes)]
    before = before[: task["clients"]]
    rule = make_rule(config, before, agreed.sharing, agreed.layouts)
    rule.load_state(stored)
    rule.personal_round.update({client.id: 0 for client in agreed.clients[len(before) :]})
    return rule
