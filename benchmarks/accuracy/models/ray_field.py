"""A radiance field rendered along rays, in fp16 autocast with a gradient scaler."""

import torch
from torch import nn


def encode(x, octaves):
    scaled = x[..., None, :] * (2.0 ** torch.arange(octaves, device=x.device))[:, None]
    return torch.cat([x, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], dim=-1)


class Field(nn.Module):
    def __init__(self, width=208):
        super().__init__()
        self.near = nn.Sequential(nn.Linear(51, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.far = nn.Sequential(
            nn.Linear(width + 51, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width + 1),
        )
        self.colour = nn.Sequential(nn.Linear(width + 27, 96), nn.ReLU(), nn.Linear(96, 3))

    def forward(self, points, directions):
        p, d = encode(points, 8), encode(directions, 4)
        h = self.far(torch.cat([self.near(p), p], dim=-1))
        density = nn.functional.softplus(h[..., 0] - 1.0)
        return density, torch.sigmoid(self.colour(torch.cat([h[..., 1:], d], dim=-1)))


def render(field, origins, directions, samples=72):
    rays = origins.shape[0]
    edges = torch.linspace(2.0, 6.0, samples + 1, device=origins.device)
    t = edges[:-1] + (edges[1:] - edges[:-1]) * torch.rand(rays, samples, device=origins.device)
    points = origins[:, None] + t[..., None] * directions[:, None]
    density, colour = field(points, directions[:, None].expand_as(points))
    gaps = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e3)], dim=-1)
    alpha = 1.0 - torch.exp(-density.float() * gaps)
    passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], dim=-1), dim=-1)[
        :, :-1
    ]
    weights = alpha * passed
    return (weights[..., None] * colour.float()).sum(dim=1), (weights * t).sum(dim=1)


def ray_field(size, device):
    """size: rays of 72 samples."""
    torch.manual_seed(17)
    kind = torch.device(device).type
    field = Field().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4, eps=1e-15)
    scaler = torch.amp.GradScaler(kind)
    directions = nn.functional.normalize(torch.randn(size, 3), dim=-1).to(device)
    origins = -4.0 * directions
    colours = torch.rand(size, 3, device=device)

    def step():
        with torch.autocast(kind, dtype=torch.float16):
            rendered, depth = render(field, origins, directions)
            loss = nn.functional.mse_loss(rendered, colours) + 1e-4 * depth.var()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
