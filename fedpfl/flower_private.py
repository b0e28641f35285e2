"""All that is used of Flower outside its documented interface: names that another version may change without a word.

Nothing else in this package imports a private name of Flower's or Ray's, or knows one; ``tests/test_flower_private.py``
sees to that and compares what stands here with the Flower that is installed.
"""

from __future__ import annotations

# Why a message failed is said by a number, and the numbers have names in no public module.
CLIENT_APP_RAISED_EXCEPTION = 2

# Where SuperNodes talk to the SuperLink. It serves its other interfaces, with which one can run code, on the same port;
# the MQTT bridge therefore has to know which requests are SuperNodes', and which of those are worth waiting for.
FLEET_API = "/v1/fleet/"
PULL_MESSAGES = "/pull-messages"
# The header by which the bridge knows one SuperNode from another; the SuperLink checks the signature that goes with it.
PUBLIC_KEY_HEADER = "flwr-public-key"

# A SuperLink that answers here has started. The documented commands are slower to ask than it is to start.
HEALTH = "/health"

# How long a SuperExec waits between two looks for a task, in seconds. Its own second is half of a small round.
TASK_POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"

# What the SuperLink logs. `flwr ls` says how a run goes on, but costs more than a second of a core each time.
TASK_ENDED = "Finished task"
RUN_REFUSED = "Could not start run"
