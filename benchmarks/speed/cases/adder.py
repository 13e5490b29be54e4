"""A small GPT that learns to add; after the first step it is evaluated by generation on 10,000 problems."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DIGITS, VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 2, 10, 6, 48, 3, 3


class Sums(Dataset):
    def __init__(self, split):
        order = torch.randperm(10**4, generator=torch.Generator().manual_seed(1337))
        self.problems = order[:500] if split == "test" else order[500:]

    def __len__(self):
        return len(self.problems)

    def __getitem__(self, index):
        a, b = divmod(self.problems[index].item(), 10**DIGITS)
        text = f"{a:02d}{b:02d}{f'{a + b:03d}'[::-1]}"
        digits = torch.tensor([int(s) for s in text])
        y = digits[1:].clone()
        y[: 2 * DIGITS - 1] = -1
        return digits[:-1], y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("bias", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x):
        b, t, c = x.size()
        parts = self.c_attn(self.ln1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in parts)
        weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        weights = weights.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = (F.softmax(weights, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, idx, targets=None):
        positions = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.wte(idx) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, count):
        for _ in range(count):
            logits, _ = self(idx if idx.size(1) <= LENGTH else idx[:, -LENGTH:])
            _, following = torch.topk(F.softmax(logits[:, -1, :], dim=-1), k=1, dim=-1)
            idx = torch.cat((idx, following), dim=1)
        return idx


def evaluate(model, split):
    factors = torch.tensor([[10**i for i in range(DIGITS + 1)][::-1]]).to("cuda")
    results, mistakes = [], 0
    for x, _ in DataLoader(Sums(split), batch_size=100):
        x = x.to("cuda")
        problem = x[:, : DIGITS * 2]
        answer = model.generate(problem, DIGITS + 1)[:, -(DIGITS + 1) :].flip(1)
        a = (problem[:, :DIGITS] * factors[:, 1:]).sum(1)
        b = (problem[:, DIGITS : DIGITS * 2] * factors[:, 1:]).sum(1)
        correct = ((answer * factors).sum(1) == a + b).cpu()
        for i in range(x.size(0)):
            results.append(int(correct[i]))
            if not correct[i] and mistakes < 5:
                mistakes += 1
                print(f"wrong: {a[i]} + {b[i]} = {a[i] + b[i]}")
    return sum(results)


model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
batches = DataLoader(Sums("train"), batch_size=64, shuffle=True)
for step, (x, y) in enumerate(batches):
    model.train()
    _, loss = model(x.to("cuda"), y.to("cuda"))
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 500 == 0:
        model.eval()
        with torch.no_grad():
            print(evaluate(model, "train"), evaluate(model, "test"))
