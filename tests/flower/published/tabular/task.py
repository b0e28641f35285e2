"""A classifier of rows of a table, whose weights travel as a list of arrays."""

from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class IncomeClassifier(nn.Module):
    def __init__(self, input_dim):
        super().__init__()
        self.layer1 = nn.Linear(input_dim, 16)
        self.layer2 = nn.Linear(16, 8)
        self.output = nn.Linear(8, 1)

    def forward(self, x):
        x = torch.relu(self.layer2(torch.relu(self.layer1(x))))
        return torch.sigmoid(self.output(x))


def get_weights(net):
    return [val.cpu().numpy() for _, val in net.state_dict().items()]


def set_weights(net, parameters):
    params_dict = zip(net.state_dict().keys(), parameters, strict=True)
    net.load_state_dict(OrderedDict({k: torch.tensor(v) for k, v in params_dict}), strict=True)


def load_data(partition_id):
    draw = torch.Generator().manual_seed(partition_id)
    x = torch.randn(40, 5, generator=draw)
    y = ((x[:, 0] > 0) ^ bool(partition_id % 2)).float().view(-1, 1)
    return DataLoader(TensorDataset(x, y), batch_size=10)


def train(net, trainloader):
    criterion, optimizer = nn.BCELoss(), torch.optim.Adam(net.parameters(), lr=0.05)
    net.train()
    for x, y in trainloader:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()


def evaluate(net, testloader):
    net.eval()
    with torch.no_grad():
        hits = [(net(x) > 0.5).float() == y for x, y in testloader]
    return torch.cat(hits).float().mean().item()
