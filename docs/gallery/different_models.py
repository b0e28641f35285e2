"""Clients with different models.

FedProto exchanges mean features of each class, so only their length has to agree. Five clients have a network of
convolutions and five have one of linear layers.
"""

from torch import nn

import fedpfl


def dense(input_shape, num_classes):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, num_classes))


def convolutions(input_shape, num_classes):
    layers = nn.Conv2d(input_shape[0], 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(64, num_classes))


run = fedpfl.run(
    method="fedproto", client_models={"0-4": convolutions, "5-9": dense}, model=dense, dataset="digits",
    num_server_rounds=6, workers=0, quiet=True,
)  # fmt: skip
last = run.clients.query("round == 6")
print("convolutions:", last.accuracy[:5].mean().round(3), " linear layers:", last.accuracy[5:].mean().round(3))
run.plot().save("different_models.svg")
