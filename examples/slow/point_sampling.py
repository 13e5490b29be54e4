"""Train a point network on samples of every grid cell, the slow way.

The lines that cost time or memory, or give wrong answers, end with the name of the rule that finds them.
"""

import gc

import torch
from torch import nn

POINTS, CELLS, CLASSES, STEPS = 4_000, 400, 5, 4


class CellSampler:
    """Takes a random share of the points of every cell."""

    def __init__(self) -> None:
        self.cache: dict[tuple[int, int], torch.Tensor] = {}

    def cell_counts(self, cells: torch.Tensor) -> torch.Tensor:
        key = (len(cells), CELLS)
        if key not in self.cache:
            self.cache[key] = torch.bincount(cells, minlength=CELLS)  # fault: cache-keyed-by-size
        return self.cache[key]

    def sample(self, cells: torch.Tensor) -> torch.Tensor:
        counts = self.cell_counts(cells)
        order = cells.argsort()
        starts = counts.cumsum(0) - counts
        ratio = 0.3 + 0.4 * torch.rand(CELLS, device=cells.device)
        permutations = {}
        for count in torch.unique(counts):
            permutations[count.item()] = torch.randperm(
                int(count), device=cells.device
            )  # fault: sync-in-loop, reused-permutation
        chosen = []
        for cell in range(CELLS):
            count = counts[cell].item()  # fault: sync-in-loop
            start = starts[cell].item()  # fault: sync-in-loop
            taken = int((ratio[cell] * count).item())  # fault: sync-in-loop
            chosen.append(order[start + permutations[count][:taken]])
        return torch.cat(chosen)


def cell_means(features: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    means = torch.zeros(CELLS, features.shape[1], device=features.device)
    for cell in range(CELLS):  # fault: loop-over-samples
        inside = cells == cell
        if inside.any():  # fault: branch-on-tensor
            means[cell] = features[inside].mean(0)
    return means


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler = CellSampler()
    total = 0.0
    for step in range(STEPS):
        points = torch.rand(POINTS, 3, device=device)
        cells = torch.randint(CELLS, (POINTS,), device=device)
        labels = torch.randint(CLASSES, (POINTS,), device=device)
        taken = sampler.sample(cells)
        logits = model(points[taken])
        consistency = cell_means(logits, cells[taken]).var()
        loss = nn.CrossEntropyLoss()(logits, labels[taken]) + 0.1 * consistency  # fault: module-in-loop
        optimizer.zero_grad(set_to_none=False)  # fault: gradients-set-to-zero
        loss.backward()
        optimizer.step()
        total += loss  # fault: graph-kept
        gc.collect()  # fault: gc-in-loop
        torch.cuda.empty_cache()  # fault: empty-cache-in-loop
        print(f"step {step}: {loss.item():.3f}")
    print(f"mean loss {float(total) / STEPS:.3f}")


if __name__ == "__main__":
    main()
