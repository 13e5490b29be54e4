"""An ordinary training loop of a GPT-2 on random text, with gradient clipping, dropout, and autocast on CUDA.

Its steps are timed. Used by overhead.py.
It imports nothing of pinchpoint or of another profiler.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional
from turns import Turns


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.projection(y))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT2(nn.Module):
    def __init__(self, *, width: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text(torch.utils.data.Dataset):
    """Pieces of one random text."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.count, self.length = count, length
        self.text = torch.randint(vocabulary, (1_000_000,))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = int(torch.randint(len(self.text) - self.length - 1, ()))
        piece = self.text[start : start + self.length + 1]
        return piece[:-1], piece[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--referee", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = torch.utils.data.DataLoader(
        Text(20_000 * options.batch, options.length, options.vocabulary),
        options.batch,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
    )
    model = GPT2(
        width=options.width, layers=options.layers, vocabulary=options.vocabulary, length=options.length
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(x)
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
