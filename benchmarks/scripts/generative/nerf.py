"""NeRF in plain PyTorch with the default CUDA tensor type: coarse and fine networks, then a view."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_tensor_type("torch.cuda.FloatTensor")


def encode(x, frequencies):
    parts = [x]
    for power in range(frequencies):
        parts += [torch.sin(2.0**power * x), torch.cos(2.0**power * x)]
    return torch.cat(parts, -1)


class NeRF(nn.Module):
    def __init__(self, depth=8, width=256):
        super().__init__()
        self.points = nn.ModuleList(
            [nn.Linear(63, width)]
            + [nn.Linear(width + 63 if i == 4 else width, width) for i in range(depth - 1)]
        )
        self.alpha, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.views, self.rgb = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, points, directions):
        encoded = encode(points, 10)
        h = encoded
        for i, layer in enumerate(self.points):
            h = F.relu(layer(h))
            if i == 4:
                h = torch.cat([encoded, h], -1)
        views = encode(directions, 4)[:, None].expand(*points.shape[:2], 27)
        rgb = self.rgb(F.relu(self.views(torch.cat([self.feature(h), views], -1))))
        return torch.cat([rgb, self.alpha(h)], -1)


def composite(raw, z, directions):
    gaps = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 1e10)], -1)
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * gaps * directions.norm(dim=-1, keepdim=True))
    through = torch.cumprod(torch.cat([torch.ones((len(alpha), 1)), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * through
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(-2), weights


def sample_fine(z, weights, count):
    cdf = torch.cumsum((weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True), -1)
    u = torch.rand([len(cdf), count])
    index = torch.searchsorted(cdf.contiguous(), u, right=True).clamp(max=z.shape[-1] - 1)
    return torch.gather(z, 1, index)


def render(rays_o, rays_d):
    z = torch.linspace(2.0, 6.0, 64).expand(len(rays_o), 64)
    z = z + torch.rand(z.shape) * (4 / 64)
    view = F.normalize(rays_d, dim=-1)
    rgb0, weights = composite(coarse(rays_o[:, None] + rays_d[:, None] * z[..., None], view), z, rays_d)
    z = torch.sort(torch.cat([z, sample_fine(z, weights.detach(), 128)], -1), -1).values
    rgb, _ = composite(fine(rays_o[:, None] + rays_d[:, None] * z[..., None], view), z, rays_d)
    return rgb0, rgb


coarse, fine = NeRF(), NeRF()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
for step in range(3):
    rays_o, rays_d, target = torch.rand(1024, 3), torch.rand(1024, 3) - 0.5, torch.rand(1024, 3)
    rgb0, rgb = render(rays_o, rays_d)
    loss = F.mse_loss(rgb, target) + F.mse_loss(rgb0, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: PSNR {(-10 * torch.log10(F.mse_loss(rgb, target))).item():.2f}")
with torch.no_grad():
    rows = [render(torch.rand(4096, 3), torch.rand(4096, 3) - 0.5)[1] for _ in range(4)]
print(torch.cat(rows).cpu().shape)
