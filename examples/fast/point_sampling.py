"""Train a point network on samples of every grid cell; the twin of the slow script of this name."""

import torch
from torch import nn

POINTS, CELLS, CLASSES, STEPS = 4_000, 400, 5, 4


def sample(cells: torch.Tensor) -> torch.Tensor:
    """A random share of the points of every cell, without a wait for the device.

    Points are sorted by cell, and at random within it. The rank of a point within its cell tells whether it
    is among the first ones, which are taken.
    """
    counts = torch.zeros(CELLS, dtype=torch.long, device=cells.device)
    counts.scatter_add_(0, cells, torch.ones_like(cells))
    shuffled = torch.randperm(len(cells), device=cells.device)
    order = shuffled[cells[shuffled].argsort(stable=True)]
    ranks = torch.arange(len(cells), device=cells.device) - (counts.cumsum(0) - counts)[cells[order]]
    taken = (0.3 + 0.4 * torch.rand(CELLS, device=cells.device)) * counts
    return order[ranks < taken.long()[cells[order]]]


def cell_means(features: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(CELLS, features.shape[1], device=features.device).index_add(0, cells, features)
    counts = torch.zeros(CELLS, device=features.device).index_add(0, cells, torch.ones_like(features[:, 0]))
    return sums / counts.clamp(min=1)[:, None]


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    classification = nn.CrossEntropyLoss()
    losses = torch.zeros(STEPS, device=device)
    for step in range(STEPS):
        points = torch.rand(POINTS, 3, device=device)
        cells = torch.randint(CELLS, (POINTS,), device=device)
        labels = torch.randint(CLASSES, (POINTS,), device=device)
        taken = sample(cells)
        logits = model(points[taken])
        loss = classification(logits, labels[taken]) + 0.1 * cell_means(logits, cells[taken]).var()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    for step, loss in enumerate(losses.tolist()):
        print(f"step {step}: {loss:.3f}")
    print(f"mean loss {losses.mean().item():.3f}")


if __name__ == "__main__":
    main()
