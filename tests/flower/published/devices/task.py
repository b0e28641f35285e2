"""A network with BatchNorm; the data lie below a path that the node's configuration names."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


def load_data_from_disk(dataset_path, batch_size):
    x, y = torch.load(f"{dataset_path}/train.pt", weights_only=True)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size), DataLoader(
        TensorDataset(x, y), batch_size=batch_size
    )


def train(net, trainloader, epochs, learning_rate, device):
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    net.train()
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def test(net, testloader, device):
    net.eval()
    with torch.no_grad():
        hits = [net(x).argmax(1) == y for x, y in testloader]
    return 0.0, torch.cat(hits).float().mean().item()
