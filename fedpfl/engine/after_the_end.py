"""What happens to clients after a run's end: nothing that they answer changes the run's arrays.

Clients that were not in the run make models of their own from its final shared arrays. Those that were in it, and
missed its last test, are tested with the arrays of its end; a device writes its model with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from typing import Any

from ..core.errors import ConfigError, FedpflError, reasons
from ..core.federation import Client
from ..results.line import scores_of
from ..results.record import Round
from ..results.run import RunFolder
from ..rules import Rule
from ..setup.assembly import extras_of, make_rule
from ..setup.config import Config
from ..training.losses import MSE
from .agreement import Agreement, agree_with
from .rounds import RoundLoop
from .transport import EVALUATE, TRAIN, Transport, Wait

logger = getLogger("flwr")


def personalise(transport: Transport, config: Config) -> RunFolder:
    """Give clients that were not in a run, or missed its end, models of their own, and record their accuracies."""
    folder = RunFolder.reopen(config)
    with folder.exclusive():
        last, stored, remarks = folder.last_intact(config.run.state_dir)
        for remark in remarks:
            logger.log(WARNING, "fedpfl: %s", remark)
        task = folder.described()
        # Who is not there is not waited for beyond node-timeout.
        anybody = replace(config, run=replace(config.run, min_clients=config.run.min_clients or 1))
        agreed = agree_with(config, transport.find_clients(anybody, task["state_key"], task.get("identities")), task)
        folder.add_identities(transport.identities())
        rule = _rule(config, agreed, task, stored)
        loop = _Afterwards(
            rule, config.run, task["state_key"], extras_of(config, agreed.model, agreed.sharing),
            counted=config.training.loss != MSE, several=not config.training.kind.classes,
            continued=task.get("continued", {}).get("personal", ()),
        )  # fmt: skip
        missed, new = _to_ask(folder, agreed, config.run.test_at == "end")
        if new and not rule.one_model:
            allowed = "makes a model for each client and has none for new ones"
            if not missed:
                raise ConfigError("method", config.method.name, allowed)
            logger.log(WARNING, "fedpfl: %s %s", config.method.name, allowed)
            new = []
        if not missed and not new:
            raise FedpflError(f"{folder.path.name}: all clients that are there took part and were tested at its end")
        found, failed = dict[str, Any](), dict[int, str]()
        for name, clients, number, kind in (("new", new, last + 1, TRAIN), ("missed", missed, last, EVALUATE)):
            done = loop.ask(transport, clients, number, kind)
            failed.update(done.failed)
            if scores := scores_of("personalised", done.evaluated):
                found[name] = scores
                logger.log(INFO, "fedpfl: %s clients: personalised %.1f %%", name, 100 * scores["accuracy"])
        for client, reason in failed.items():
            logger.log(WARNING, "fedpfl: client %d: %s", client, reason)
        if len(failed) == len(new) + len(missed):
            raise FedpflError(f"{folder.path.name}: {reasons(failed, 'client')}")
        folder.note_personalised({"mode": config.run.personalise, **found, "failed": failed})
    return folder


class _Afterwards(RoundLoop):
    """Asks clients with the arrays of a run's end."""

    def ask(self, transport: Transport, clients: Sequence[Client], number: int, kind: str) -> Round:
        """Send clients their messages; return what they answered as a round's tests."""
        self.round = Round(number)
        requests = self._requests(clients, number, kind)
        self.collect_scores(transport.replies(requests, Wait(self.settings.round_timeout), self._fail))
        return self.round


def _rule(config: Config, agreed: Agreement, task: Mapping[str, Any], stored: Mapping[str, Any]) -> Rule:
    """Return the rule as it was at the run's end; clients that came later have never trained."""
    sizes = task.get("samples") or [(client.train_samples, client.test_samples) for client in agreed.clients]
    before = [Client(i, train, test, absent=not train + test) for i, (train, test) in enumerate(sizes)]
    before = before[: task["clients"]]
    rule = make_rule(config, before, agreed.sharing)
    rule.load_state(stored)
    rule.personal_round.update({client.id: 0 for client in agreed.clients[len(before) :]})
    return rule


def _to_ask(folder: RunFolder, agreed: Agreement, tested_last: bool) -> tuple[list[Client], list[Client]]:
    """Return, of the clients that are there, those of the run that were not tested at its end, and those not in it."""
    history, there = folder.history(), [client for client in agreed.clients if not client.absent]
    seen = {client for line in history.lines for client in line["clients"]}
    seen |= {int(client) for each in history.tests().values() for client in each}
    tested = {int(client) for client in history.tests().get(history.last_round, {}) if tested_last}
    missed = [client for client in there if client.id in seen - tested]
    return missed, [client for client in there if client.id not in seen]
