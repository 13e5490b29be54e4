"""A GPT in plain PyTorch: bf16 autocast, gradient accumulation, and an estimate of the validation loss."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size, block_size, vocabulary, width, heads, layers = 12, 1024, 50304, 768, 12, 8
device, accumulation, eval_interval, eval_iters, max_iters = "cuda", 2, 2, 2, 3
context = torch.autocast(device_type="cuda", dtype=torch.bfloat16)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


data = torch.randint(0, 50257, (100_000,))


def get_batch():
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        with context:
            losses[k] = model(*get_batch())[1].item()
    model.train()
    return losses.mean()


model = GPT().to(device)
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=6e-4,
    betas=(0.9, 0.95),
    fused=True,
)
for iteration in range(max_iters):
    if iteration % eval_interval == 0:
        print(f"step {iteration}: val loss {estimate_loss(model):.4f}")
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * iteration / max_iters))
    for _ in range(accumulation):
        with context:
            logits, loss = model(*get_batch())
        (loss / accumulation).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
