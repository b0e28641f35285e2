"""Finds out which node is which client: before round 1, and again when a node was replaced."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO, WARNING, getLogger

from flwr.app import Message
from flwr.serverapp import Grid

from ..client.protocol import OTHER_CODE
from ..core.errors import FedpflError, LayoutError, printable, reasons
from ..core.metric_bounds import DESCRIPTION, problem, require_description
from ..core.payload import UNNUMBERED, Payload
from ..core.server_view import Client
from ..core.settings import Value
from ..results.board_names import shown_on_boards
from ..setup.config import RunSettings
from .messages import from_content, to_content

logger = getLogger("flwr")

# The number of nodes has to stay the same for this long before the first are asked.
SETTLED_SECONDS = 0.3
# How long the start waits for another node where one was left out: a repaired one, or one that connects late.
GRACE_SECONDS = 5.0
# How long nodes have to take their numbers, and a round waits for nodes that appeared during the run to tell which
# clients they are; and how often these are asked.
ASK_SECONDS, MAX_ASKS = 60.0, 3
# How often the start tells whom it waits for.
TOLD_EVERY = 10.0

# Between two looks for replies, seconds: as a share of the time since the last reply, and as a multiple of what a look
# takes, up to a limit, as a look is slow on a busy machine, too.
SHORTEST_PAUSE, MAX_PAUSE, PAUSE_SHARE = 0.002, 1.0, 0.01
PAUSE_PER_LOOK, MAX_PAUSE_PER_LOOK = 5.0, 0.3

Answers = dict[int, Payload]


class Pace:
    """Pauses between polls of the SuperLink; it begins with the first poll.

    The pause is a small share of the time since something was found: 2 ms in a simulated round of a tenth of a second,
    1 s when devices train for minutes. A look at a simulation is a call, one at a SuperLink keeps that busy for 10 ms:
    the pause grows with that, too.
    """

    def __init__(self) -> None:
        self._found_at = self._looked_at = time.monotonic()

    def pause(self, new: bool) -> None:
        """Sleep after a poll that found something, or nothing."""
        now = time.monotonic()
        look = 0.0 if new else now - self._looked_at
        self._found_at = now if new else self._found_at
        share = min((now - self._found_at) * PAUSE_SHARE, MAX_PAUSE)
        time.sleep(max(share, min(look * PAUSE_PER_LOOK, MAX_PAUSE_PER_LOOK), SHORTEST_PAUSE))
        self._looked_at = time.monotonic()


@dataclass(frozen=True)
class Node:
    """The place of a client."""

    client: Client
    id: int  # Flower's
    in_turn: bool = False  # works on one message after the other, as a SuperNode does and a simulation does not
    mods: bool = False  # has mods of the user's, which look at records


class Nodes:
    """Asks nodes which clients they are.

    A node whose answer cannot be right is left out by name; the others go on if they are enough (``min-clients``).
    Nodes store their numbers and secrets under ``state_key``. ``identities`` are known hashes of the nodes' secrets, by
    client: a client's number belongs to its node for the whole run. ``told`` is what each question says besides.
    """

    def __init__(
        self,
        grid: Grid,
        settings: RunSettings,
        state_key: str,
        identities: Mapping[str, str],
        told: Mapping[str, Value] | None = None,
    ) -> None:
        self._grid, self._settings = grid, settings
        self._question: dict[str, Value] = {"state-key": state_key, **(told or {})}
        self.identities = dict(identities)
        self._left_out: dict[int, str] = {}
        self._asks: Counter[int] = Counter()

    def find(self, num_clients: int) -> Answers:
        """Wait for the nodes and return their answers, by node; ``num_clients`` is 0 where the nodes tell it."""
        deadline = time.monotonic() + self._settings.node_timeout
        answers: Answers = {}
        expected, seen, changed = num_clients, set[int](), time.monotonic()
        last_notice = (0, 0, time.monotonic())
        over = False
        while not over:
            nodes = self._stable_nodes(deadline) or sorted(self._grid.get_node_ids())
            if set(nodes) != seen:
                seen, changed = set(nodes), time.monotonic()
            # A node that comes back has been started again, perhaps repaired: it is asked again.
            self._left_out = {node: reason for node, reason in self._left_out.items() if node in nodes}
            answers = {node: answer for node, answer in answers.items() if node in nodes}
            answers.update(self._query([n for n in nodes if n not in answers and n not in self._left_out], deadline))
            expected = self._leave_out_mismatches(answers, num_clients) or expected
            over = time.monotonic() > deadline
            if (now := (len(answers), expected)) != last_notice[:2] or time.monotonic() - last_notice[2] > TOLD_EVERY:
                last_notice = (*now, time.monotonic())
                if len(answers) < (expected or len(seen)):
                    notice = "fedpfl: %d of %d clients are there; waiting up to %.0f s for the others (min-clients)"
                    logger.log(INFO, notice, len(answers), expected or len(seen), deadline - time.monotonic())
            if over:
                for node in seen - answers.keys() - self._left_out.keys():
                    self._leave_out(node, f"no answer within node-timeout = {self._settings.node_timeout:g} s")
            # A wrong setting of the run is one reason of all nodes; one node alone is no evidence of it.
            wrong_for_all = not answers and len(self._left_out) > 1 and len({*self._left_out.values()}) == 1
            complete = len(answers) + len(self._left_out) >= max(expected, len(seen), 1)
            settled = (complete or wrong_for_all) and time.monotonic() - changed >= GRACE_SECONDS
            if not answers:
                over = over or settled
            elif len(answers) == expected or settled or over:
                answers = self._number(answers, expected)
                numbered = not any(UNNUMBERED in answer.config for answer in answers.values())
                over = over or (numbered and (settled or len(answers) == expected))
        for node in [node for node, answer in answers.items() if UNNUMBERED in answer.config]:
            del answers[node]
            self._leave_out(node, f"no answer within {ASK_SECONDS:g} s to which client it is")
        self._require_enough(answers, expected or len(seen))
        for answer in answers.values():
            self.identities.update(_identity(answer))
        return answers

    def find_again(self, wanted: set[int], assigned: set[int]) -> dict[int, tuple[int, Payload]]:
        """Return the new nodes of clients that have none, and their answers: without a key ids change at each start."""
        nodes = set(self._grid.get_node_ids()) - assigned - self._left_out.keys()
        new = {node for node in nodes if self._asks[node] < MAX_ASKS}
        self._asks.update(new)
        by_client: dict[int, tuple[int, Payload]] = {}
        for node, answer in self._query(sorted(new), time.monotonic() + ASK_SECONDS).items():
            client = int(answer.config.get("client", -1))
            if client not in wanted or client in by_client:
                continue
            if wrong := self._wrong_identity(answer):
                self._leave_out(node, wrong)
            else:
                by_client[client] = node, answer
                self.identities.update(_identity(answer))
        return by_client

    def _stable_nodes(self, deadline: float) -> list[int]:
        """Return the nodes once no more of them come."""
        nodes: list[int] = []
        since, pace = time.monotonic(), Pace()
        while time.monotonic() < deadline:
            current = sorted(self._grid.get_node_ids())
            new = current != nodes
            if new:
                nodes, since = current, time.monotonic()
            elif nodes and time.monotonic() - since > SETTLED_SECONDS:
                break
            pace.pause(new)
        return nodes

    def _query(self, nodes: list[int], deadline: float, numbers: Mapping[int, int] | None = None) -> Answers:
        """Ask nodes what they are, with numbers for those without; return proper answers, leave out other nodes."""
        if not nodes:
            return {}
        of_node = {node: {"client": number} for node, number in (numbers or {}).items()}
        contents = {node: to_content(Payload({**self._question, **of_node.get(node, {})})) for node in nodes}
        questions = [Message(content, node, "query") for node, content in contents.items()]
        pending = {i for i in self._grid.push_messages(questions) if i}
        answers: Answers = {}
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
                    answers[node] = self._answer(reply)
                except FedpflError as error:
                    self._leave_out(node, str(error))
            pace.pause(bool(replies))
        # Which of two nodes with one number is refused must not depend on chance.
        return dict(sorted(answers.items()))

    def _answer(self, reply: Message) -> Payload:
        """Return a node's answer; raise ``FedpflError`` if it cannot be right."""
        if reply.has_error():
            raise FedpflError(reply.error.reason or f"error code {reply.error.code}")
        answer = from_content(reply.content)
        if answer.config.get(UNNUMBERED) is not True:
            require_description(answer.config, answer.metrics, self._settings.max_client_samples)
        elif wrong := problem("num-clients", answer.config.get("num-clients"), DESCRIPTION["num-clients"]):
            raise LayoutError(wrong)
        return answer

    def _number(self, answers: Answers, expected: int) -> Answers:
        """Give the nodes that do not know which client they are the free numbers, in the order of their ids."""
        unnumbered = sorted(node for node, answer in answers.items() if UNNUMBERED in answer.config)
        if not unnumbered:
            return answers
        used = {int(answer.config["client"]) for answer in answers.values() if UNNUMBERED not in answer.config}
        used |= {int(client) for client in self.identities}
        free = (number for number in range(expected) if number not in used)
        numbers = dict(zip(unnumbered, free, strict=False))
        for node in set(unnumbered) - numbers.keys():
            del answers[node]
            self._leave_out(node, f"num-clients = {expected}: all numbers of clients are taken")
        # Where node-timeout is over, too: the nodes are there, and wait for their numbers alone.
        answers = {**answers, **self._query(sorted(numbers), time.monotonic() + ASK_SECONDS, numbers)}
        answers = {node: answer for node, answer in answers.items() if node not in self._left_out}
        self._leave_out_mismatches(answers, expected)
        return answers

    def _leave_out(self, node: int, reason: str) -> None:
        self._left_out[node] = printable(reason, 500)
        logger.log(WARNING, "fedpfl: node %d cannot take part: %s", node, self._left_out[node])

    def _leave_out_mismatches(self, answers: Answers, num_clients: int) -> int:
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
                wrong = self._wrong_identity(answer)
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

    def _wrong_identity(self, answer: Payload) -> str:
        """Return why the node of an answer is not the one that had its client's number before; empty if it may be."""
        client = str(answer.config["client"])
        if self.identities.get(client) in (None, _identity(answer).get(client)):
            return ""
        what = "another node has had this number in this run, with another secret in its state-dir"
        return f"client = {client}: {what}; of a device that was replaced: `fedpfl resume --replaced {client}`"

    def _require_enough(self, answers: Answers, expected: int) -> None:
        """Raise ``FedpflError`` if the clients that can take part are too few to begin."""
        count, least = len(answers), self._settings.enough_clients(expected)
        old = [reason for reason in self._left_out.values() if OTHER_CODE in reason and not self._settings.min_clients]
        if count == expected:
            return
        here = {int(answer.config["client"]) for answer in answers.values() if "client" in answer.config}
        missing = shown_on_boards(client for client in range(expected) if client not in here)
        if count >= least and not old:
            logger.log(WARNING, "fedpfl: %d of %d clients take part; missing: %s", count, expected, missing)
            return
        what = f"{count} of {expected} clients connected within node-timeout = {self._settings.node_timeout:g} s"
        if self._left_out:
            what = f"{count} of {expected} clients can take part"
        what += f", at least {least} are needed (min-clients)"
        if old:
            what = f"{count} of {expected} clients have the app's code; update the others, or set min-clients"
        refused = f"; {reasons(self._left_out, 'node')}" if self._left_out else ""
        raise FedpflError(f"{what}; missing: {missing}{refused}")


def _identity(answer: Payload) -> dict[str, str]:
    """Return a hash of the secret in an answer, by client; the secret itself is not stored at the server."""
    secret = answer.config.get("identity")
    if not secret:
        return {}
    return {str(answer.config["client"]): hashlib.sha256(str(secret).encode()).hexdigest()}
