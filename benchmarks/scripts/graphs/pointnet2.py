"""PointNet++ in plain PyTorch: farthest point sampling, ball queries, and classification of point clouds."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


def farthest_point_sample(xyz, count):
    b, n, _ = xyz.shape
    centroids = torch.zeros(b, count, dtype=torch.long, device=xyz.device)
    distance = torch.full((b, n), 1e10, device=xyz.device)
    farthest = torch.randint(0, n, (b,), dtype=torch.long, device=xyz.device)
    rows = torch.arange(b, device=xyz.device)
    for i in range(count):
        centroids[:, i] = farthest
        nearer = ((xyz - xyz[rows, farthest, :].view(b, 1, 3)) ** 2).sum(-1)
        mask = nearer < distance
        distance[mask] = nearer[mask]
        farthest = distance.max(-1)[1]
    return centroids


def index_points(points, index):
    rows = torch.arange(points.shape[0], device=points.device).view(-1, *[1] * (index.dim() - 1))
    return points[rows, index, :]


def ball_query(radius, samples, xyz, centres):
    b, n, _ = xyz.shape
    index = torch.arange(n, device=xyz.device).view(1, 1, n).repeat(b, centres.shape[1], 1)
    index[torch.cdist(centres, xyz) > radius] = n
    index = index.sort(dim=-1)[0][:, :, :samples]
    first = index[:, :, :1].repeat(1, 1, samples)
    return torch.where(index == n, first, index).clamp(max=n - 1)


class SetAbstraction(nn.Module):
    def __init__(self, centres, radius, samples, widths):
        super().__init__()
        self.centres, self.radius, self.samples = centres, radius, samples
        layers = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)

    def forward(self, xyz, features):
        if self.centres is None:
            new_xyz, grouped = xyz[:, :1], torch.cat([xyz, features], -1)[:, None]
        else:
            new_xyz = index_points(xyz, farthest_point_sample(xyz, self.centres))
            index = ball_query(self.radius, self.samples, xyz, new_xyz)
            grouped = index_points(xyz, index) - new_xyz[:, :, None]
            if features is not None:
                grouped = torch.cat([grouped, index_points(features, index)], -1)
        return new_xyz, self.mlp(grouped.permute(0, 3, 2, 1)).max(2)[0].transpose(1, 2)


class PointNet2(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        self.sa1 = SetAbstraction(256, 0.2, 32, [3, 64, 64, 128])
        self.sa2 = SetAbstraction(64, 0.4, 64, [131, 128, 128, 256])
        self.sa3 = SetAbstraction(None, None, None, [259, 256, 512, 1024])
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.4), nn.Linear(256, classes))

    def forward(self, xyz):
        _, features = self.sa3(*self.sa2(*self.sa1(xyz, None)))
        return self.head(features[:, 0])


model = PointNet2().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    points, labels = torch.rand(16, 1024, 3).cuda() * 2 - 1, torch.randint(0, 40, (16,)).cuda()
    loss = F.cross_entropy(model.train()(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
