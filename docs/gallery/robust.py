"""Clients with wrong labels.

Three of ten clients have random labels. The mean absorbs their updates; the coordinate-wise median barely
moves. The accuracy is that of the seven honest clients.
"""

import numpy
from sklearn.datasets import load_digits

import fedpfl

x, y = load_digits(return_X_y=True)
draw = numpy.random.default_rng(1)
clients = []
for number, part in enumerate(numpy.array_split(draw.permutation(len(x)), 10)):
    labels = draw.integers(0, 10, len(part)) if number >= 7 else y[part]
    clients.append((x[part].astype("float32") / 16, labels))

runs = [
    fedpfl.run(
        data=clients, method="fedavg", model="mlp", num_server_rounds=8, robust_aggregation=rule, workers=0, quiet=True
    )
    for rule in ("none", "median")
]
for run in runs:
    honest = run.clients.query("round == 8 and client < 7")
    print(f"{run.settings['robust-aggregation']:7} {honest.accuracy.mean():.3f}")
fedpfl.compare(runs).plot().save("robust.svg")
