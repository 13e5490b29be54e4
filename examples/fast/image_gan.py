"""Train a small GAN with a super-resolution stage; the twin of the slow script of this name."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, BATCH, ACCUMULATED = 4, 8, 3


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(at)), at % CLASSES


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(16 + CLASSES, 3 * 16 * 16), nn.Tanh())
        self.detail = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        low = self.base(torch.cat([z, nn.functional.one_hot(labels, CLASSES)], 1)).view(-1, 3, 16, 16)
        large = nn.functional.interpolate(low, scale_factor=2)
        return large + self.detail(large)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images)


def penalty(discriminator: nn.Module, real: torch.Tensor) -> torch.Tensor:
    real = real.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(discriminator(real).sum(), real, create_graph=True)
    return gradient.square().sum()


def main() -> None:
    torch.manual_seed(0)
    generator, discriminator = Generator().to(DEVICE), Discriminator().to(DEVICE)
    discriminator(torch.zeros(1, 3, 32, 32, device=DEVICE))
    g_optimizer = torch.optim.Adam(generator.parameters(), 1e-4)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), 1e-4)
    bce = nn.BCEWithLogitsLoss()
    loader = DataLoader(Images(), BATCH, num_workers=2, pin_memory=DEVICE == "cuda")
    steps = len(loader)
    losses = torch.zeros(steps, device=DEVICE)
    seen = 0
    for step, (images, labels) in enumerate(loader):
        images = images.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        z = torch.randn(BATCH, 16, device=DEVICE).repeat_interleave(2, dim=0)
        fake_labels = labels.repeat_interleave(2, dim=0)
        with torch.autocast(DEVICE, torch.bfloat16):
            fake = generator(z, fake_labels)
            real_score, fake_score = discriminator(images), discriminator(fake.detach())
            d_loss = bce(real_score, torch.ones_like(real_score)) + bce(
                fake_score, torch.zeros_like(fake_score)
            )
        d_loss = d_loss + 0.1 * penalty(discriminator, images)
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        with torch.autocast(DEVICE, torch.bfloat16):
            score = discriminator(fake)
            g_loss = bce(score, torch.ones_like(score)) / ACCUMULATED
        g_loss.backward()
        if (step + 1) % ACCUMULATED == 0 or step + 1 == steps:
            g_optimizer.step()
            g_optimizer.zero_grad()
        seen += len(images)
        losses[step] = d_loss.detach()
    for step, loss in enumerate(losses.tolist()):
        print(f"step {step}: {loss:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        state = {"generator": generator.state_dict(), "optimizer": g_optimizer.state_dict()}
        torch.save(state, Path(folder) / "checkpoint.pt")
    print(f"{seen} images")


if __name__ == "__main__":
    main()
