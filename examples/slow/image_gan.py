"""Train a small GAN with a super-resolution stage, the slow way.

The lines that cost time or memory, or give wrong answers, end with the name of the rule that finds them.
"""

import gc
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":
    torch.set_default_tensor_type("torch.cuda.FloatTensor")  # fault: default-tensor-type

CLASSES, BATCH, ACCUMULATED = 4, 8, 3


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        noise = np.random.rand(3, 32, 32).astype("float32")  # fault: unseeded-workers
        return torch.from_numpy(noise), at % CLASSES


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(16 + CLASSES, 3 * 16 * 16), nn.Tanh())
        self.detail = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        low = self.base(torch.cat([z, nn.functional.one_hot(labels, CLASSES)], 1)).view(-1, 3, 16, 16)
        large = nn.functional.interpolate(low, scale_factor=2)
        with torch.no_grad():
            detail = self.detail(large)
        detail.requires_grad_(True)  # fault: gradient-cut
        return large + detail


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images)


def penalty(discriminator: nn.Module, real: torch.Tensor) -> torch.Tensor:
    real = real.detach().requires_grad_(True)
    with torch.autocast(DEVICE, torch.bfloat16):
        score = discriminator(real).sum()
        (gradient,) = torch.autograd.grad(score, real, create_graph=True)  # fault: penalty-under-autocast
    return gradient.square().sum()


def main() -> None:
    torch.manual_seed(0)
    generator, discriminator = Generator().to(DEVICE), Discriminator().to(DEVICE)
    discriminator(torch.zeros(1, 3, 32, 32, device=DEVICE))
    g_optimizer = torch.optim.Adam(generator.parameters(), 1e-4)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), 1e-4)
    scaler = torch.cuda.amp.GradScaler(
        enabled=DEVICE == "cuda"
    )  # fault: deprecated-amp, scaler-with-bfloat16
    workers = 0 if DEVICE == "cuda" else 2  # a worker cannot make tensors of the default type
    source = torch.Generator(DEVICE)
    loader = DataLoader(
        Images(), BATCH, num_workers=workers, generator=source
    )  # fault: loader-without-pinning
    seen = 0
    for step, (images, labels) in enumerate(loader):
        images = images.to(DEVICE, non_blocking=True)  # fault: unpinned-non-blocking
        labels = labels.to(DEVICE, non_blocking=True)  # fault: unpinned-non-blocking
        bce = nn.BCEWithLogitsLoss()  # fault: module-in-loop
        z = torch.randn(BATCH, 16, device=DEVICE).repeat_interleave(2, dim=0)
        fake_labels = labels.repeat(2)  # fault: repeated-labels
        with torch.autocast(DEVICE, torch.bfloat16):
            fake = generator(z, fake_labels)
            real_score, fake_score = discriminator(images), discriminator(fake.detach())
            d_loss = bce(real_score, torch.ones_like(real_score)) + bce(
                fake_score, torch.zeros_like(fake_score)
            )
        d_loss = d_loss + 0.1 * penalty(discriminator, images)
        d_optimizer.zero_grad(set_to_none=False)  # fault: gradients-set-to-zero
        scaler.scale(d_loss).backward()
        scaler.step(d_optimizer)
        with torch.autocast(DEVICE, torch.bfloat16):
            score = discriminator(fake)
            g_loss = bce(score, torch.ones_like(score)) / ACCUMULATED
        scaler.scale(g_loss).backward()
        if (step + 1) % ACCUMULATED == 0:  # fault: accumulation-drops-tail
            scaler.step(g_optimizer)
            g_optimizer.zero_grad()
        scaler.update()
        seen += len(images)
        picture = fake[0].detach().float().to("cpu", non_blocking=True)
        print(
            f"step {step}: {d_loss.item():.3f} {picture.numpy().mean():.3f}"
        )  # fault: host-read-before-sync
        del fake, score
        torch.cuda.empty_cache()  # fault: empty-cache-in-loop
        gc.collect()  # fault: gc-in-loop
    with tempfile.TemporaryDirectory() as folder:
        state = {"generator": generator.state_dict(), "optimizer": g_optimizer.state_dict()}
        torch.save(state, Path(folder) / "checkpoint.pt")  # fault: scaler-not-saved
    print(f"{seen} images")


if __name__ == "__main__":
    main()
