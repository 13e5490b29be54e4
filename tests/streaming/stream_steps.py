"""A step that streams, for `predict` to run on a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from pinchpoint import stream

CHUNK, WIDTH = 4096, 128


def step_of(size: int, device: str) -> Callable[[], object]:
    net = nn.Sequential(nn.Linear(3, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1)).to(device)
    points = np.zeros((size, 3), np.float32)
    return lambda: stream(net, points, chunk=CHUNK, device=device)


def numbered(size: int, device: str) -> Callable[[], object]:
    scale = torch.ones(WIDTH, device=device)
    return lambda: stream(
        lambda i: (i[:, None] * scale).sum(1), size, chunk=CHUNK, device=device, out="device"
    )
