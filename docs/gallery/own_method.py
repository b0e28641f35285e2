"""A method of your own.

A method decides which arrays are shared, how a client trains, and how the server combines the replies. This one keeps
all biases on the client and averages everything else. `is_shared` is all that it needs.
"""

import fedpfl


class FedBias(fedpfl.Method):
    """Shares the weights; the biases are personal."""

    name = "fedbias"
    shares = "all arrays except biases"

    def is_shared(self, name, model):
        return not name.endswith("bias")


run = fedpfl.run(method=FedBias, model="mlp", dataset="digits", num_server_rounds=8, workers=0, quiet=True)
print(run)
run.plot().save("own_method.svg")
