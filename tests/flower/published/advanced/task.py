"""The network, the batches and the loops of Flower's PyTorch quickstart, in small: batches are dictionaries."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(4 * 3 * 3, 8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = x.view(-1, 4 * 3 * 3)
        return self.fc2(F.relu(self.fc1(x)))


class Pictures(Dataset):
    """Pictures of three classes, which each client numbers in its own order."""

    def __init__(self, client, count):
        draw = torch.Generator().manual_seed(client)
        label = torch.arange(count) % 3
        self.label = (label + client) % 3
        self.img = torch.randn(count, 3, 8, 8, generator=draw)
        self.img[torch.arange(count), label] += 1

    def __len__(self):
        return len(self.label)

    def __getitem__(self, place):
        return {"img": self.img[place], "label": self.label[place]}


def load_data(partition_id, num_partitions, batch_size):
    trainloader = DataLoader(Pictures(partition_id, 36), batch_size=batch_size, shuffle=False)
    return trainloader, DataLoader(Pictures(partition_id, 24), batch_size=batch_size)


def train(net, trainloader, epochs, lr, device):
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            images, labels = batch["img"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    net.to(device)
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            outputs = net(batch["img"].to(device))
            loss += F.cross_entropy(outputs, batch["label"].to(device)).item()
            correct += (outputs.argmax(1) == batch["label"].to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
