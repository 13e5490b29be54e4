"""An ordinary training loop of a ResNet-18 on random images, with autocast on CUDA; its steps are timed.

Used by overhead.py.
It imports nothing of pinchpoint or of another profiler.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional
from turns import Turns


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    widths = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1))
    widths += ((128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return nn.Sequential(*stem, *(Block(*width) for width in widths), *head)


class Pictures(torch.utils.data.Dataset):
    """Random images, half of them mirrored when they are loaded; the same 256 again and again."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.images = torch.randint(256, (256, 3, size, size), dtype=torch.uint8)
        self.labels = torch.randint(1000, (256,))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index % 256]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[index % 256]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--referee", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = torch.utils.data.DataLoader(
        Pictures(20_000 * options.batch, options.size),
        options.batch,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
    )
    model = resnet18().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    loss_of = nn.CrossEntropyLoss()

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model(x.float() / 127.5 - 1), y)
        loss.backward()
        optimizer.step()
        return loss

    turns = Turns(
        options.referee,
        steps=options.steps,
        wait=torch.cuda.synchronize if device.type == "cuda" else lambda: None,
    )
    for step, (x, y) in enumerate(loader):
        if not turns.allows_step():
            break
        loss = train_step(x, y)
        if step % 20 == 0:
            print(step, loss.item())
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    turns.close(weights=hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
