"""The Flower ClientApp: the client's engine answers, in the device's worker if there is one, else in this process."""

from __future__ import annotations

import sys
from logging import WARNING, getLogger

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from ..bench.device.forward import forward
from ..core.errors import FedpflError, line_of
from ..core.payload import Payload, is_probe
from ..core.process import spin_shortly
from ..flower_private import CLIENT_APP_RAISED_EXCEPTION

logger = getLogger("flwr")
app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """Describe the client's task, train a round, or test the personalised and the global model."""
    spin_shortly()
    # Flower loads this module in processes that answer nothing, too.
    from .messages import from_content, to_content, to_framed_content

    kind = message.metadata.message_type
    try:
        payload = from_content(message.content)
        if kind == "query":
            payload.config["in-turn"] = not _simulated()
        reply = _reply(kind, payload, context)
        if kind == "query":
            reply.config["in-turn"] = not _simulated()
    except FedpflError as error:
        if not _simulated():  # there the server's log is the same
            logger.log(WARNING, "fedpfl: %s", line_of(error))
        return Message(Error(CLIENT_APP_RAISED_EXCEPTION, line_of(error)), reply_to=message)
    # A simulation's objects need no requests.
    return Message((to_content if _simulated() else to_framed_content)(reply), reply_to=message)


def _reply(kind: str, message: Payload, context: Context) -> Payload:
    if is_probe(message):
        return Payload()
    # A simulation's actors are warm themselves, and as many as the machine has cores.
    if not _simulated():
        reply = forward(kind, message, context.run_config, context.node_config)
        if reply is not None:
            return reply
    # torch takes seconds to import.
    from ..client.message_handler import handle

    return handle(kind, message, context.run_config, context.node_config)


def _simulated() -> bool:
    return "ray" in sys.modules


app.query()(answer)
app.train()(answer)
app.evaluate()(answer)
