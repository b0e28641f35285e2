"""Over Flower: clients are the nodes of a Grid, in a simulation of Flower's or as SuperNodes on devices."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from ..core.claims import DESCRIPTION, problem, require_description
from ..core.errors import FedpflError, LayoutError, printable, reasons
from ..core.federation import Client
from ..core.payload import UNNUMBERED, Payload
from ..messages import fits_frame, from_content, pack_arrays, to_content, to_framed_content
from ..setup.config import Config, RunSettings
from .base import Fail, Request, Transport
from .exchange import Exchange, Node, Pace

logger = getLogger("flwr")

# The number of nodes has to stand still for this long before the first are asked.
SETTLED_SECONDS = 0.3
# How long the start waits for another node where one was left out: a repaired one, or one that connects late.
GRACE_SECONDS = 5.0
# How long a round waits for nodes that appeared during the run to tell which clients they are, and how often.
ASK_SECONDS, MAX_ASKS = 60.0, 3
# Records of arrays that go into several messages: of this many different ones, the latest.
KEPT_RECORDS = 16


class FlowerTransport(Transport):
    """Clients behind Flower's Grid.

    A node whose answer cannot be right is left out by name; the others go on if they are enough (``min-clients``).

    Parameters
    ----------
    grid : Grid
        As Flower hands it to the ServerApp.
    settings : RunSettings
        The time limits, and how many clients are enough.
    state_key : str
        Under which clients keep their arrays, and nodes their numbers and secrets.
    identities : mapping of str to str, optional
        Of a run that goes on, what :meth:`identities` returned, by client.
    """

    def __init__(
        self, grid: Grid, settings: RunSettings, state_key: str, identities: Mapping[str, str] | None = None
    ) -> None:
        self._grid, self._settings, self._key = grid, settings, state_key
        self._nodes: dict[int, Node] = {}
        self._identities = dict(identities or {})
        self._left_out: dict[int, str] = {}
        self._asks: Counter[int] = Counter()

    def identities(self) -> dict[str, str]:
        """Return a hash of the secret that each client's node made for this run, by client; simulated ones have none.

        A client's number belongs to the node with that secret for the whole run.
        """
        return dict(self._identities)

    def find_clients(self, config: Config) -> dict[int, Payload]:
        """Wait for the nodes and ask each which client it is."""
        deadline = time.monotonic() + self._settings.node_timeout
        answers: dict[int, Payload] = {}
        expected, seen, changed = config.data.num_clients, set[int](), time.monotonic()
        while True:
            nodes = self._settled_nodes(deadline) or sorted(self._grid.get_node_ids())
            if set(nodes) != seen:
                seen, changed = set(nodes), time.monotonic()
            # A node that comes back has been started again, perhaps repaired: it is asked again.
            self._left_out = {node: reason for node, reason in self._left_out.items() if node in nodes}
            answers = {node: answer for node, answer in answers.items() if node in nodes}
            answers.update(self._query([n for n in nodes if n not in answers and n not in self._left_out], deadline))
            expected = self._leave_out_misfits(answers, config.data.num_clients) or expected
            over = time.monotonic() > deadline
            if over:
                for node in seen - answers.keys() - self._left_out.keys():
                    self._leave_out(node, f"no answer within node-timeout = {self._settings.node_timeout:g} s")
            told = len(answers) + len(self._left_out) >= max(expected, len(seen), 1)
            # A wrong setting of the run is one reason of all nodes; one node alone is no evidence of it.
            wrong_for_all = not answers and len(self._left_out) > 1 and len({*self._left_out.values()}) == 1
            settled = (told or wrong_for_all) and time.monotonic() - changed >= GRACE_SECONDS
            if answers and (len(answers) == expected or settled or over):
                numbers = _numbers(answers, expected)
                if numbers:
                    answers.update(self._query(sorted(numbers), deadline, numbers))
                    answers = {node: answer for node, answer in answers.items() if node not in self._left_out}
                    self._leave_out_misfits(answers, expected)
                    if len(answers) < expected and not over:
                        continue
                if not any(UNNUMBERED in answer.config for answer in answers.values()):
                    break
            if over or (settled and not answers):
                break
        self._require_enough(answers, expected or len(seen))
        by_client: dict[int, Payload] = {}
        for node, answer in sorted(answers.items(), key=lambda found: int(found[1].config["client"])):
            number, metrics = int(answer.config["client"]), answer.metrics
            client = Client(number, int(metrics["train-samples"]), int(metrics["test-samples"]))
            self._nodes[number] = Node(client, node, answer.config.get("in-turn") is True)
            self._identities.update(_identity(answer))
            by_client[number] = answer
        return by_client

    def begin_round(self) -> None:
        """Look for clients whose node is gone among the nodes that are new.

        A SuperNode without a registered key gets another node id each time it starts.
        """
        nodes = set(self._grid.get_node_ids())
        gone = {client for client, node in self._nodes.items() if node.id not in nodes}
        known = {node.id for node in self._nodes.values()}
        new = {n for n in nodes - known - self._left_out.keys() if self._asks[n] < MAX_ASKS}
        if not gone or not new:
            return
        self._asks.update(new)
        answers = self._query(sorted(new), time.monotonic() + ASK_SECONDS)
        for node, answer in answers.items():
            client = int(answer.config.get("client", -1))
            if client not in gone:
                continue
            if wrong := self._stranger(answer):
                self._leave_out(node, wrong)
            else:
                logger.log(INFO, "client %d is back as node %d", client, node)
                self._nodes[client] = replace(self._nodes[client], id=node)
                gone.discard(client)

    def replies(self, requests: Sequence[Request], timeout: float, fail: Fail) -> Iterator[tuple[Client, Payload]]:
        """Send Flower's messages; what devices lose is sent again."""
        by_client = {request.client.id: request for request in requests}
        records: OrderedDict[tuple[int, ...], tuple[Payload, ArrayRecord]] = OrderedDict()

        def make(client: int) -> Message:
            request = by_client[client]
            payload = request.make()
            node = self._nodes[client]
            number = str(payload.config.get("round", ""))
            if node.in_turn and fits_frame(payload):
                return Message(to_framed_content(payload), node.id, request.kind, group_id=number)
            # The same arrays are one record: serialised once, held once.
            same = tuple(id(array) for array in payload.arrays.values())
            if same not in records:
                records[same] = payload, pack_arrays(payload.arrays)
                if len(records) > KEPT_RECORDS:
                    records.popitem(last=False)
            content = to_content(Payload(payload.config), records[same][1])
            return Message(content, node.id, request.kind, group_id=number)

        exchange = Exchange(self._grid, self._nodes, make, self.begin_round, fail, self._settings.check_after)
        for client, reply in exchange.replies(by_client, timeout):
            if reply.has_error():
                fail(client, printable(reply.error.reason or f"error code {reply.error.code}"))
                continue
            try:
                payload = from_content(reply.content)
            except LayoutError as error:
                fail(client, printable(str(error)))
            else:
                yield client, payload

    def _settled_nodes(self, deadline: float) -> list[int]:
        nodes: list[int] = []
        since, pace = time.monotonic(), Pace()
        while time.monotonic() < deadline:
            found = sorted(self._grid.get_node_ids())
            new = found != nodes
            if new:
                nodes, since = found, time.monotonic()
            elif nodes and time.monotonic() - since > SETTLED_SECONDS:
                break
            pace.pause(new)
        return nodes

    def _query(self, nodes: list[int], deadline: float, numbers: Mapping[int, int] | None = None) -> dict[int, Payload]:
        """Ask nodes what they are; return proper answers, leave out nodes with others.

        Nodes without a number get to know theirs from ``numbers``, by their ids.
        """
        if not nodes:
            return {}
        given = {node: {"client": number} for node, number in (numbers or {}).items()}
        contents = {node: to_content(Payload({"state-key": self._key, **given.get(node, {})})) for node in nodes}
        questions = [Message(content, node, "query") for node, content in contents.items()]
        pending = {i for i in self._grid.push_messages(questions) if i}
        out: dict[int, Payload] = {}
        pace = Pace()
        deadline = min(deadline, time.monotonic() + self._settings.round_timeout)
        while pending and time.monotonic() < deadline:
            replies = list(self._grid.pull_messages(pending))
            for reply in replies:
                pending.discard(reply.metadata.reply_to_message_id)
                node = reply.metadata.src_node_id
                if node not in nodes:
                    continue  # made by the SuperLink for a node that is gone; if it comes back it is asked again
                try:
                    if reply.has_error():
                        raise FedpflError(reply.error.reason or f"error code {reply.error.code}")
                    answer = from_content(reply.content)
                    if answer.config.get(UNNUMBERED) is True:
                        claimed = answer.config.get("num-clients")
                        if wrong := problem("num-clients", claimed, DESCRIPTION["num-clients"]):
                            raise LayoutError(wrong)
                    else:
                        require_description(answer.config, answer.metrics, self._settings.max_client_samples)
                except FedpflError as error:
                    self._leave_out(node, str(error))
                else:
                    out[node] = answer
            pace.pause(bool(replies))
        # Which of two nodes with one number is refused must not depend on chance.
        return dict(sorted(out.items()))

    def _leave_out(self, node: int, reason: str) -> None:
        self._left_out[node] = printable(reason, 500)
        logger.log(WARNING, "fedpfl: node %d cannot take part: %s", node, self._left_out[node])

    def _leave_out_misfits(self, answers: dict[int, Payload], num_clients: int) -> int:
        """Leave out nodes that do not fit the others; return the number of clients, 0 while it is not known."""
        if not answers:
            return num_clients
        counts = Counter(int(answer.config["num-clients"]) for answer in answers.values())
        expected = num_clients or max(counts, key=lambda count: (counts[count], count))
        holders: dict[int, int] = {}
        for node, answer in list(answers.items()):
            number, count = int(answer.config.get("client", -1)), int(answer.config["num-clients"])
            if count != expected:
                wrong = f"num-clients = {count}: the others have {expected}"
            elif UNNUMBERED in answer.config:
                continue
            elif number >= expected:
                wrong = f"client = {number}: must be below num-clients = {expected}"
            elif number in holders:
                wrong = f"partition-id = {number}: node {holders[number]} has it; each node needs another"
            else:
                wrong = self._stranger(answer)
            if wrong:
                del answers[node]
                self._leave_out(node, wrong)
            else:
                holders[number] = node
        surplus = len(answers) - expected
        if surplus > 0:
            for node in sorted(n for n, answer in answers.items() if UNNUMBERED in answer.config)[-surplus:]:
                del answers[node]
                self._leave_out(node, f"num-clients = {expected}: all numbers of clients are taken")
        return expected

    def _stranger(self, answer: Payload) -> str:
        """Return why the node of an answer is not the one that had its client's number before; empty if it may be."""
        client = str(answer.config["client"])
        if self._identities.get(client) in (None, _identity(answer).get(client)):
            return ""
        return f"client = {client}: another node has had this number in this run, with another secret in its state-dir"

    def _require_enough(self, answers: Mapping[int, Payload], expected: int) -> None:
        """Raise ``FedpflError`` if the clients that can take part are too few to begin."""
        count, least = len(answers), self._settings.enough_clients(expected)
        # A node that is silent or not there may be on its way: only the user can say that nobody waits for it.
        missing = count + len(self._left_out) < expected and not self._settings.min_clients
        if count == expected or (count >= least and not missing):
            return
        clients = sorted(int(answer.config["client"]) for answer in answers.values() if "client" in answer.config)
        what = f"{count} of {expected} clients connected within node-timeout = {self._settings.node_timeout:g} s"
        if self._left_out:
            what = f"{count} of {expected} clients can take part, at least {least} are needed (min-clients)"
        refused = f"; {reasons(self._left_out, 'node')}" if self._left_out else ""
        raise FedpflError(f"{what}: {clients}{refused}")


def _numbers(answers: Mapping[int, Payload], clients: int) -> dict[int, int]:
    """Give the nodes that do not know which client they are the free numbers, in the order of their ids."""
    taken = {int(answer.config["client"]) for answer in answers.values() if UNNUMBERED not in answer.config}
    free = (number for number in range(clients) if number not in taken)
    return dict(
        zip(sorted(node for node, answer in answers.items() if UNNUMBERED in answer.config), free, strict=False)
    )


def _identity(answer: Payload) -> dict[str, str]:
    """Return a hash of the secret in an answer, by client; the secret itself is not stored at the server."""
    secret = answer.config.get("identity")
    if not secret:
        return {}
    return {str(answer.config["client"]): hashlib.sha256(str(secret).encode()).hexdigest()}
