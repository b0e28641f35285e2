"""What a server checks of a request, so that no page that a browser of its machine shows can use it."""

from __future__ import annotations

from ipaddress import ip_address


def refusal(host: str, origin: str | None) -> str:
    """Return why a request with these headers is refused; an empty text if it is not.

    ``Host`` has to be an address or localhost: no other name can then be made to point here.
    ``Origin``, which browsers add, has to be the server's own.
    """
    port = host.rpartition(":")[2]
    asked = host.rpartition(":")[0] if port.isdecimal() else host
    asked = (asked[1:-1] if asked.startswith("[") and asked.endswith("]") else asked).lower()
    try:
        ip_address(asked)
    except ValueError:
        if asked != "localhost":
            return "this name is not known here"
    return "" if origin in (None, f"http://{host}") else "a page of another origin gets nothing"
