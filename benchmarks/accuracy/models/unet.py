"""A U-Net with group norm, skip connections, transposed convolutions and a noise-prediction loss."""

import torch
import torch.nn.functional as F
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, c_in: int, c_out: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, padding=1),
            nn.GroupNorm(8, c_out),
            nn.SiLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1),
            nn.GroupNorm(8, c_out),
            nn.SiLU(),
        )

    def forward(self, x):
        return self.net(x)


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList()
        c = 3
        for width in widths:
            self.down.append(DoubleConv(c, width))
            c = width
        self.pool = nn.MaxPool2d(2)
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose2d(c, width, 2, stride=2))
            self.merge.append(DoubleConv(2 * width, width))
            c = width
        self.out = nn.Conv2d(c, 3, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x)
            if i < len(self.down) - 1:
                skips.append(x)
                x = self.pool(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.out(x)


def unet(size: int, device: str):
    torch.manual_seed(0)
    model = UNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    images = torch.randn(size, 3, 128, 128, device=device)

    def step():
        noise = torch.randn_like(images)
        level = torch.rand(size, 1, 1, 1, device=device)
        loss = F.mse_loss(model(images * (1 - level) + noise * level), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
