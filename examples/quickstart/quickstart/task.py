"""The model and the data: small images, drawn so that each client has its own classes and brightness."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    """A small CNN, as in "PyTorch: A 60 Minute Blitz"."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 5 * 5, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Return the logits (n, 10) of images (n, 1, 12, 12)."""
        x = self.pool(F.relu(self.conv1(x)))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Images(Dataset):
    """Images as dictionaries, as Hugging Face data sets give them."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return {"img": self.images[number], "label": int(self.labels[number])}


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Return a client's DataLoaders for training and test: three of ten classes."""
    prototypes = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    own = torch.Generator().manual_seed(1 + partition_id)
    labels = (torch.randint(0, 3, (200,), generator=own) + partition_id) % 10
    noise = torch.randn(200, 1, 12, 12, generator=own)
    images = prototypes[labels] + 1.5 * noise + partition_id / num_partitions
    train, test = Images(images[:150], labels[:150]), Images(images[150:], labels[150:])
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)
