"""End a run when it is good enough.

A callback is called at each step of a run. `done.line` is what the run records of the round; returning True ends it.
"""

import fedpfl


class GoodEnough(fedpfl.Listener):
    """Ends the run at an accuracy."""

    def __init__(self, goal):
        self.goal = goal

    def round_ended(self, rule, done, state):
        accuracy = done.line["personalised"]["accuracy"]
        print(f"round {done.number}: {accuracy:.3f}")
        return accuracy >= self.goal


run = fedpfl.run(
    method="fedper", model="mlp", dataset="digits", num_server_rounds=30, callbacks=[GoodEnough(0.94)], workers=0,
    quiet=True,
)  # fmt: skip
run.plot().save("callbacks.svg")
