"""Compare methods, with tests.

Each method runs with each seed. The conclusion lists which differences are significant, by Wilcoxon's signed-rank
test over the clients with Holm's correction.
"""

import fedpfl

found = fedpfl.compare(
    ["local", "fedavg", "fedper"], seeds=2, dataset="digits", model="mlp", num_server_rounds=5, workers=0, quiet=True
)
print(found.conclusion)
found.plot().save("compare.svg")
