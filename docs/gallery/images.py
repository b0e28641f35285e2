"""Images that each client brings along.

Images are `uint8`, samples × height × width × channels. Each of these clients has only four of the ten digits: training
alone is hard to beat.
"""

from sklearn.datasets import load_digits

import fedpfl

digits = load_digits()
images, labels = (digits.images * 15).astype("uint8")[..., None], digits.target
owned = [labels % 5 == client for client in range(5)]
both = [owned[client] | owned[client - 1] for client in range(5)]
clients = [(images[mine], labels[mine]) for mine in both]

comparison = fedpfl.compare(
    ["local", "fedavg", "fedper"], data=clients, num_classes=10, model="small-cnn", num_server_rounds=3, seeds=1,
    workers=0, quiet=True,
)  # fmt: skip
print(comparison.table.iloc[:, :2].to_string(index=False))
comparison.plot().save("images.svg")
