"""A plain stack of convolutions with batch norm that classifies small grey images."""

import torch
import torch.nn.functional as F
from torch import nn


def stage(inputs, outputs, convolutions):
    layers = []
    for i in range(convolutions):
        layers += [
            nn.Conv2d(inputs if i == 0 else outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.MaxPool2d(2))


class Classifier(nn.Module):
    def __init__(self, classes=121):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 40, 5, padding=2, bias=False),
            nn.BatchNorm2d(40),
            nn.ReLU(),
            nn.MaxPool2d(2),
            stage(40, 80, 2),
            stage(80, 160, 2),
            stage(160, 240, 3),
        )
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(960, 512),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(512, classes),
        )

    def forward(self, x):
        return self.head(self.features(x))


def plankton(size, device):
    torch.manual_seed(3)
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images = torch.rand(size, 1, 88, 88)
    labels = torch.randint(0, 121, (size,))

    def step():
        x, y = images.to(device), labels.to(device)
        flipped = torch.where(torch.rand(size, 1, 1, 1, device=device) < 0.5, x.flip(-1), x)
        loss = F.cross_entropy(model(flipped), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
