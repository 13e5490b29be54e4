"""A point cloud network that keeps only some points, with boolean masks, nonzero and unique."""

import torch
import torch.nn.functional as F
from torch import nn


class Cloud(nn.Module):
    def __init__(self, width: int = 256):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.deep = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, points, keep):
        h = self.point(points[keep])
        cells, cell_of_point = torch.unique((points[keep] * 20).long(), dim=0, return_inverse=True)
        pooled = h.new_zeros(len(cells), h.shape[1]).index_add(0, cell_of_point, h)
        h = self.deep(h + pooled[cell_of_point])
        return self.head(h).squeeze(-1)


def masked_points(size: int, device: str):
    torch.manual_seed(0)
    model = Cloud().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    points = torch.rand(size, 3, device=device)
    values = points.prod(dim=-1)

    def step():
        keep = (points - 0.5).norm(dim=-1) < 0.5
        output = model(points, keep)
        error = (output - values[keep]).abs()
        inner = torch.nonzero(points[keep][:, 0] < 0.5).squeeze(-1)
        loss = error.mean() + F.relu(-output[inner]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
