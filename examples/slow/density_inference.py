"""Predict a density on a grid of probes, the slow way.

The lines that cost time or memory, or give wrong answers, end with the name of the rule that finds them.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATOMS, PROBES, NEIGHBOURS = 12, 12_000, 8


class Probes(Dataset):
    """Probe positions, the edges to their nearest atoms, and the density that training would need."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.positions = torch.rand(count, 3, generator=generator)
        self.atoms = torch.rand(ATOMS, 3, generator=generator)
        self.target = torch.rand(count, generator=generator)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        distances = (self.positions[at] - self.atoms).norm(dim=1)
        nearest = distances.argsort()[:NEIGHBOURS]
        return {"nearest": nearest, "distance": distances[nearest], "target": self.target[at]}


class Density(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ATOMS, width)
        self.edge = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, width))
        self.out = nn.Linear(width, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        messages = self.embedding(batch["nearest"]) * self.edge(batch["distance"][..., None])
        return self.out(messages.sum(1)).squeeze(1)


def predict(model: nn.Module, probes: Probes, device: torch.device) -> torch.Tensor:
    loader = DataLoader(probes, batch_size=3000)  # fault: loader-without-workers, hard-coded-chunk
    densities = []
    total = 0.0
    for batch in loader:
        batch = {key: value.to(device) for key, value in batch.items()}  # fault: unused-device-copy
        density = model(batch)  # fault: missing-no-grad, missing-eval
        densities.append(density)  # fault: graph-kept
        total += density.sum().item()  # fault: sync-in-loop
    print(f"electrons: {total:.3f}")
    return torch.cat(densities)


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        torch.save(Density().state_dict(), path)
        weights = torch.load(
            path, map_location="cpu", weights_only=False
        )  # fault: unsafe-load, load-then-move
    model = Density()
    model.load_state_dict(weights)
    model.to(device)
    print(predict(model, Probes(PROBES), device).shape)


if __name__ == "__main__":
    main()
