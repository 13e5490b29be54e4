"""Predict a density on a grid of probes; the twin of the slow script of this name."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATOMS, PROBES, NEIGHBOURS = 12, 12_000, 8


class Probes(Dataset):
    """Probe positions and the edges to their nearest atoms, in slices."""

    def __init__(self, count: int, slice_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.slices = torch.rand(count, 3, generator=generator).split(slice_size)
        self.atoms = torch.rand(ATOMS, 3, generator=generator)

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        distances = torch.cdist(self.slices[at], self.atoms)
        distance, nearest = distances.topk(NEIGHBOURS, largest=False)
        return {"nearest": nearest, "distance": distance}


class Density(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ATOMS, width)
        self.edge = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, width))
        self.out = nn.Linear(width, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        messages = self.embedding(batch["nearest"]) * self.edge(batch["distance"][..., None])
        return self.out(messages.sum(1)).squeeze(1)


@torch.inference_mode()
def predict(model: nn.Module, probes: Probes, device: torch.device, workers: int) -> torch.Tensor:
    loader = DataLoader(probes, batch_size=None, num_workers=workers, pin_memory=device.type == "cuda")
    model.eval()
    densities = []
    for batch in loader:
        on_device = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
        densities.append(model(on_device))
    return torch.cat(densities)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slice-size", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        torch.save(Density().state_dict(), path)
        weights = torch.load(path, map_location=device, weights_only=True)
    model = Density().to(device)
    model.load_state_dict(weights)
    density = predict(model, Probes(PROBES, args.slice_size), device, args.workers)
    print(f"electrons: {density.sum().item():.3f}")
    print(density.shape)


if __name__ == "__main__":
    main()
