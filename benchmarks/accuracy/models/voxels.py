"""A 3-D convolutional autoencoder with transposed convolutions."""

import torch
import torch.nn.functional as F
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv3d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv3d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose3d(64, 32, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose3d(32, 16, 2, stride=2),
            nn.ReLU(),
            nn.Conv3d(16, 1, 3, padding=1),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def voxels(size: int, device: str):
    torch.manual_seed(0)
    model = Autoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    grids = (torch.rand(size, 1, 64, 64, 64, device=device) > 0.9).float()

    def step():
        loss = F.binary_cross_entropy_with_logits(model(grids), grids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
