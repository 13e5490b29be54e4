"""A small image classifier to predict: `pinchpoint predict classifier.py -- --batch-size 512`."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=512)
batch = parser.parse_args().batch_size

model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 32 * 32, 512),
    nn.ReLU(),
    nn.Linear(512, 10),
).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(1_000):
    images = torch.rand(batch, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (batch,), device="cuda")
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
