"""The Flower ClientApp: every kind of message goes to the client's engine."""

from __future__ import annotations

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from .errors import FedpflError

# Flower's code for "the ClientApp raised an exception"; its enumeration is not part of the public API.
CLIENT_APP_RAISED_EXCEPTION = 2

app = ClientApp()


def _answer(kind: str, message: Message, context: Context) -> Message:
    # torch takes seconds to import; Flower loads this module in processes that never train, too.
    from .client import handle
    from .config import require_absolute
    from .messages import from_content, to_content

    try:
        require_absolute(context.run_config)
        reply = handle(kind, from_content(message.content), context.run_config, context.node_config)
    except FedpflError as error:
        return Message(Error(CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
    return Message(to_content(reply), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Describe the client's task."""
    return _answer("query", message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round."""
    return _answer("train", message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the personalised and the global model."""
    return _answer("evaluate", message, context)
