"""A radiance field in mixed precision: `nerf_bf16`, and `nerf_fp16` with a gradient scaler and clipping."""

import torch
import torch.nn.functional as F
from torch import nn

SAMPLES = 64


def encode(x, octaves: int):
    scaled = x[..., None, :] * 2.0 ** torch.arange(octaves, device=x.device)[:, None]
    return torch.cat([x, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], dim=-1)


class Field(nn.Module):
    def __init__(self, width: int = 256):
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(63, width)] + [nn.Linear(width, width) for _ in range(3)])
        self.second = nn.ModuleList(
            [nn.Linear(width + 63, width)] + [nn.Linear(width, width) for _ in range(2)]
        )
        self.density = nn.Linear(width, 1)
        self.feature = nn.Linear(width, width)
        self.colour = nn.Sequential(nn.Linear(width + 27, width // 2), nn.ReLU(), nn.Linear(width // 2, 3))

    def forward(self, points, directions):
        x = h = encode(points, 10)
        for layer in self.first:
            h = F.relu(layer(h))
        h = torch.cat([h, x], dim=-1)
        for layer in self.second:
            h = F.relu(layer(h))
        seen_from = encode(directions, 4)[:, None].expand(-1, points.shape[1], -1)
        colour = torch.sigmoid(self.colour(torch.cat([self.feature(h), seen_from], dim=-1)))
        return F.softplus(self.density(h)).squeeze(-1), colour


def render(field, origins, directions):
    depth = torch.linspace(2.0, 6.0, SAMPLES, device=origins.device)
    depth = depth + torch.rand(origins.shape[0], SAMPLES, device=origins.device) * (4.0 / SAMPLES)
    points = origins[:, None] + directions[:, None] * depth[..., None]
    density, colour = field(points, directions)
    step = torch.diff(depth, dim=-1, append=depth[:, -1:] + 1e2)
    alpha = 1 - torch.exp(-density.float() * step)
    through = torch.cumprod(
        torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], dim=-1), dim=-1
    )
    return ((alpha * through)[..., None] * colour.float()).sum(dim=1)


def rays(size: int, device: str):
    origins = torch.randn(size, 3, device=device)
    directions = F.normalize(torch.randn(size, 3, device=device), dim=-1)
    return origins, directions, torch.rand(size, 3, device=device)


def nerf_bf16(size: int, device: str):
    torch.manual_seed(0)
    field = Field().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    origins, directions, colours = rays(size, device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = F.mse_loss(render(field, origins, directions), colours)
        loss.backward()
        optimizer.step()

    return step


def nerf_fp16(size: int, device: str):
    torch.manual_seed(0)
    field = Field().to(device)
    optimizer = torch.optim.AdamW(field.parameters(), lr=5e-4)
    scaler = torch.amp.GradScaler(device)
    origins, directions, colours = rays(size, device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.mse_loss(render(field, origins, directions), colours)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(field.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step
