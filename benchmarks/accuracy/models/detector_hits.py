"""Hits in a particle detector: a boolean mask removes noise, torch.unique groups the rest into cells."""

import torch
import torch.nn.functional as F
from torch import nn


def block(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU())


class HitNet(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.hit = nn.Sequential(block(5, width), block(width, width))
        self.cell = nn.Sequential(block(width + 1, 2 * width), nn.Linear(2 * width, width))
        self.score = nn.Sequential(block(2 * width, width), nn.Linear(width, 1))
        self.energy = nn.Sequential(block(width, width), nn.Linear(width, 1))

    def forward(self, hits):
        """hits: (N, 5): x, y, z in [0, 1), time, charge."""
        kept = hits[hits[:, 4] > 0.35]
        cells = (kept[:, :3] * 48).long()
        index = (cells[:, 0] * 48 + cells[:, 1]) * 48 + cells[:, 2]
        unique, cell_of_hit, counts = torch.unique(index, return_inverse=True, return_counts=True)
        features = self.hit(kept)
        pooled = torch.zeros(len(unique), features.shape[1], device=hits.device)
        pooled = pooled.index_add(0, cell_of_hit, features) / counts[:, None]
        context = self.cell(torch.cat([pooled, counts[:, None].log()], dim=-1))
        scores = self.score(torch.cat([features, context[cell_of_hit]], dim=-1)).squeeze(-1)
        return kept, features, scores


def detector_hits(size, device):
    """size: hits."""
    generator = torch.Generator().manual_seed(19)
    torch.manual_seed(19)
    hits = torch.rand(size, 5, generator=generator).to(device)
    model = HitNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step():
        kept, features, scores = model(hits)
        signal = kept[:, 3] < 0.3
        loss = F.binary_cross_entropy_with_logits(scores, signal.float())
        chosen = torch.nonzero(signal).squeeze(-1)
        guess = model.energy(features[chosen]).squeeze(-1)
        loss = loss + F.smooth_l1_loss(guess, kept[chosen, 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
