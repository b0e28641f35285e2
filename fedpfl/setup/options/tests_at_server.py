"""A test set at the server."""

from __future__ import annotations

from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option


class ServerTestOption(Option):
    """Tests the global model on samples that no client has."""

    title = "Test set at the server"
    at_server = True

    def wanted(self, config: Any) -> bool:
        """Return whether the test set stays at the server."""
        return config.data.test_on == "server"  # type: ignore[no-any-return]

    def check(self, config: Any) -> None:
        """Refuse samples that mean something else for each client."""
        if not self.wanted(config):
            return
        data = config.data
        others = {
            "standardize = client": data.standardize == "client", "permute-labels": data.permute_labels,
            "division-file": data.division_file, "split = given": data.split == "given",
            "partitioner = domains": data.partitioner == "domains", "test-at = start": config.run.test_at == "start",
            "client-models": config.run.client_models,
        }  # fmt: skip
        if on := [key for key, value in others.items() if value]:
            raise ConfigError("test-on", "server", f"cannot be combined with {', '.join(on)}")
