"""Images that each client brings along.

Images are `uint8`, samples × height × width × channels. Each of these clients has only four of the ten digits, so a
personal head has less to tell apart than a shared one.
"""

from sklearn.datasets import load_digits

import fedpfl

digits = load_digits()
images, labels = (digits.images * 15).astype("uint8")[..., None], digits.target
owned = [labels % 5 == client for client in range(5)]
both = [owned[client] | owned[client - 1] for client in range(5)]
clients = [(images[mine], labels[mine]) for mine in both]

for method in ("fedavg", "fedper"):
    run = fedpfl.run(
        data=clients, num_classes=10, model="small-cnn", method=method, num_server_rounds=3, workers=0, quiet=True
    )
    print(f"{method}: {run.summary['personalised_accuracy']:.3f}")
run.plot().save("images.svg")
