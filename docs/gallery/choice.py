"""Clients chosen by their losses.

A function for `available_clients` sees what each client last reported, and returns who is asked in a round. Power of
choice draws ten clients and asks the four with the highest losses. Oort multiplies each loss by the client's number of
samples, adds something for clients that have waited long, and keeps one place for a client that was never asked.
"""

import math

import fedpfl


def power_of_choice(clients, trained, rng):
    """Cho et al., "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022."""
    drawn = rng.choice([client.id for client in clients], 10, replace=False)
    return sorted(drawn, key=lambda i: -trained[i].loss if i in trained else -math.inf)[:4]


def oort(round, clients, trained, rng):
    """Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021; without times."""
    utility = {
        client.id: client.train_samples * trained[client.id].loss
        + math.sqrt(0.1 * math.log(round) / trained[client.id].round)
        for client in clients
        if client.id in trained
    }
    best = sorted(utility, key=utility.get, reverse=True)
    untried = rng.permutation([client.id for client in clients if client.id not in trained]).tolist()
    return (best[: 3 if untried else 4] + untried)[:4]


def any_four(clients, rng):
    return rng.choice([client.id for client in clients], 4, replace=False)


for choose in (any_four, power_of_choice, oort):
    run = fedpfl.run(
        method="fedper", dataset="digits", num_clients=20, num_server_rounds=20, local_epochs=2,
        available_clients=choose, workers=0, quiet=True,
    )  # fmt: skip
    last = run.clients.query("round == 20").accuracy
    print(f"{choose.__name__:15} mean {last.mean():.1%}, lowest {last.min():.1%}")
run.plot().save("choice.svg")
