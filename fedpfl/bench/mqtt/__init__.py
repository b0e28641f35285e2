"""A byte tunnel over MQTT between Flower's SuperNodes and its SuperLink, and events for watchers.

::

    SuperNode ── HTTP ──> device side ══ MQTT ══> broker ══ MQTT ══> server side ── HTTP ──> SuperLink

The two sides (`device_side.py`, `server_side.py`) carry HTTP requests and responses, each at most once, without looking
into their bodies, so they do not depend on Flower's version. `http_bytes.py` turns a request or response into bytes,
`frames.py` cuts the bytes into MQTT messages, `link.py` is the connection to the broker and `topics.py` lists every
topic with its payload.
"""
