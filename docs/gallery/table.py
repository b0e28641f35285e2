"""A table in which each clinic is a client.

A DataFrame has a row for each sample and a column that names its owner. Each client scales the features with its own
mean and deviation. The model of a client is tested on rows that it held out.
"""

import numpy
from sklearn.datasets import load_breast_cancer

import fedpfl

people = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "label"})
people["clinic"] = numpy.random.default_rng(1).choice(["north", "south", "east", "west"], len(people))

run = fedpfl.run(
    data=people, client_column="clinic", standardize="client", model="mlp", method="fedper", num_server_rounds=8,
    workers=0, quiet=True,
)  # fmt: skip
print(run.clients.query("round == 8")[["name", "samples", "accuracy"]].to_string(index=False))
run.plot().save("table.svg")
