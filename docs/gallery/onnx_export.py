"""A client's model in ONNX.

`fedpfl export` writes a program that runs without fedpfl and without PyTorch. The JSON file of
the same name describes input and output. This needs the extra `onnx`.
"""

import subprocess

import numpy
import onnxruntime

import fedpfl

run = fedpfl.run(method="fedper", model="mlp", dataset="digits", num_server_rounds=5, workers=0, quiet=True)
subprocess.run(["fedpfl", "export", run.path, "--client", "3", "--format", "onnx"], check=True, capture_output=True)
session = onnxruntime.InferenceSession(run.path / "personal" / "client-00003.onnx", providers=["CPUExecutionProvider"])
(x,) = session.get_inputs()
print(x.name, x.shape, "→", session.run(None, {x.name: numpy.zeros((2, *x.shape[1:]), "float32")})[0].shape)
run.plot().save("onnx_export.svg")
