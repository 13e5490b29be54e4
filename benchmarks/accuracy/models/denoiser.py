"""A diffusion model's noise predictor: group norm, SiLU, time embedding, attention at the low resolutions."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def time_embedding(t, width=128):
    angles = t[:, None] * torch.exp(
        -math.log(10000) * torch.arange(width // 2, device=t.device) / (width // 2)
    )
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, time=256):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, inputs), nn.GroupNorm(16, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class SpatialAttention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(16, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class Denoiser(nn.Module):
    def __init__(self, base=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 256))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down1 = ResBlock(base, base)
        self.shrink1 = nn.Conv2d(base, 2 * base, 3, stride=2, padding=1)
        self.down2 = ResBlock(2 * base, 2 * base)
        self.shrink2 = nn.Conv2d(2 * base, 4 * base, 3, stride=2, padding=1)
        self.low1, self.low2 = ResBlock(4 * base, 4 * base), ResBlock(4 * base, 4 * base)
        self.attention = SpatialAttention(4 * base)
        self.grow2 = nn.ConvTranspose2d(4 * base, 2 * base, 4, stride=2, padding=1)
        self.up2 = ResBlock(4 * base, 2 * base)
        self.grow1 = nn.ConvTranspose2d(2 * base, base, 4, stride=2, padding=1)
        self.up1 = ResBlock(2 * base, base)
        self.norm = nn.GroupNorm(16, base)
        self.head = nn.Conv2d(base, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.time(time_embedding(t))
        a = self.down1(self.stem(x), t)
        b = self.down2(self.shrink1(a), t)
        h = self.low2(self.attention(self.low1(self.shrink2(b), t)), t)
        h = self.up2(torch.cat([self.grow2(h), b], dim=1), t)
        h = self.up1(torch.cat([self.grow1(h), a], dim=1), t)
        return self.head(F.silu(self.norm(h)))


def denoiser(size, device):
    """size: images of 64 x 64."""
    torch.manual_seed(31)
    model = Denoiser().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0).to(device)
    images = 2 * torch.rand(size, 3, 64, 64, device=device) - 1

    def step():
        t = torch.randint(0, 1000, (size,), device=device)
        share = kept[t][:, None, None, None]
        noise = torch.randn_like(images)
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        loss = F.mse_loss(model(noisy, t), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
