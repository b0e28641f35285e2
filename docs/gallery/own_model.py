"""A model of your own.

Any `nn.Module` that ends in an `nn.Linear` will do: that layer is the head, which FedRep keeps on the client. The
function gets the shape of a sample and the number of classes.
"""

from torch import nn

import fedpfl


def net(input_shape, num_classes):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, num_classes))


run = fedpfl.run(model=net, method="fedrep", dataset="digits", num_server_rounds=8, workers=0, quiet=True)
print(run)
print(run.model(client=3))
run.plot().save("own_model.svg")
