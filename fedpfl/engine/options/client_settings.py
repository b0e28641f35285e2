"""The weights of clients in the mean by their own settings."""

from __future__ import annotations

from ...rules.mean import Mean
from ...setup.options.client_settings import WEIGHT, refused, tables
from ..listener import Server


def own_weights(server: Server) -> None:
    """Give the rule the clients' own weights; ``ConfigError`` for a client that there is not."""
    rule = server.rule
    texts: dict[int, str] = {}
    for client, table in tables(server.config).items():
        number = server.folder.client_number(client)
        if number not in rule.clients:
            raise refused(client, f"is no client; they are 0 … {len(rule.clients) - 1}")
        if number in texts:
            raise refused(client, f"is the same client as {texts[number]}")
        texts[number] = client
        if table.get(WEIGHT, 1) != 1:
            if not isinstance(rule, Mean) or type(rule).weight is not Mean.weight:
                raise refused(
                    client, f"weight: must be 1 for {server.config.method.name}, whose rule is more than a mean"
                )
            rule.own_weights[number] = float(table[WEIGHT])
