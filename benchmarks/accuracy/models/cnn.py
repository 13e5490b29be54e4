"""A convolutional classifier with batch norm, momentum SGD and a batch copied from the host at every step."""

import torch
import torch.nn.functional as F
from torch import nn


def conv_block(c_in: int, c_out: int):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(),
        nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class Classifier(nn.Module):
    def __init__(self, classes: int = 100):
        super().__init__()
        self.features = nn.Sequential(conv_block(3, 48), conv_block(48, 96), conv_block(96, 192))
        self.head = nn.Linear(192, classes)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.mean(dim=(2, 3)))


def cnn(size: int, device: str):
    torch.manual_seed(0)
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(size, 3, 64, 64)
    labels = torch.randint(100, (size,))

    def step():
        x, y = images.to(device), labels.to(device)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
