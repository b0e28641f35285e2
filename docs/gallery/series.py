"""Sensor series, a list entry for each client.

A client is a pair of arrays: windows of channels × time, and labels. Here each client's sensor has its own offset, and
the label is the frequency of the wave.
"""

import numpy

import fedpfl

draw = numpy.random.default_rng(1)
time = numpy.linspace(0, 1, 64)


def sensor(offset):
    labels = draw.integers(0, 3, 120)
    waves = numpy.sin(2 * numpy.pi * (labels[:, None] + 2) * time + draw.uniform(0, 6, (120, 1))) + offset
    return (waves[:, None] + draw.normal(0, 0.7, (120, 1, 64))).astype("float32"), labels


run = fedpfl.run(
    data=[sensor(offset) for offset in range(-2, 3)], model="cnn-1d", method="fedbn", num_server_rounds=5, workers=0,
    quiet=True,
)  # fmt: skip
print(run)
run.plot().save("series.svg")
