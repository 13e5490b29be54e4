"""An ordinary training loop of a ResNet-18 on random images; it times its own steps. Used by overhead.py.

It imports nothing of pinchpoint. Times are of the steps after the first five, with the device idle at both
ends; `whole_s` includes the first ones, in which pinchpoint also records the memory of each line.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


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
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return nn.Sequential(*stem, *(Block(*width) for width in widths), *head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = options.steps * options.batch
    images = torch.randn(min(count, 2048), 3, 32, 32)
    data = torch.utils.data.TensorDataset(
        images.repeat(-(-count // len(images)), 1, 1, 1)[:count], torch.randint(10, (count,))
    )
    loader = torch.utils.data.DataLoader(
        data, options.batch, shuffle=True, num_workers=options.workers, pin_memory=device.type == "cuda"
    )
    model = resnet18().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    loss_of = nn.CrossEntropyLoss()
    start = start_cpu = 0.0
    beginning = time.perf_counter()
    for step, (x, y) in enumerate(loader):
        if step == 5:
            wait(device)
            start, start_cpu = time.perf_counter(), time.process_time()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
    wait(device)
    took, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    whole = time.perf_counter() - beginning
    weights = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
    result = {
        "loop_s": took,
        "cpu_s": cpu,
        "whole_s": whole,
        "steps": options.steps - 5,
        "weights": weights.hexdigest(),
    }
    options.out.write_text(json.dumps(result))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
