"""A character-level GPT in plain PyTorch: manual attention, training, then sampling without a cache."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

BLOCK, VOCABULARY, WIDTH, HEADS, LAYERS = 256, 65, 384, 6, 6


class Characters(Dataset):
    def __init__(self):
        self.data = torch.randint(0, VOCABULARY, (20_000,))

    def __len__(self):
        return 384

    def __getitem__(self, index):
        chunk = self.data[index : index + BLOCK + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in self.c_attn(self.ln1(x)).split(c, 2)
        )
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        weights = weights.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = self.dropout(F.softmax(weights, dim=-1)) @ v
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.dropout(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))

    def forward(self, idx):
        positions = torch.arange(idx.size(1), device=idx.device)
        return self.head(self.blocks(self.wte(idx) + self.wpe(positions)))


device = "cuda" if torch.cuda.is_available() else "cpu"
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
for x, y in DataLoader(Characters(), batch_size=128, shuffle=True, pin_memory=True):
    x, y = x.to(device), y.to(device)
    loss = F.cross_entropy(model(x).view(-1, VOCABULARY), y.reshape(-1))
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

model.eval()
idx = torch.zeros((64, 1), dtype=torch.long, device=device)
with torch.no_grad():
    for _ in range(100):
        logits = model(idx[:, -BLOCK:])[:, -1]
        values, _ = torch.topk(logits, 10)
        logits[logits < values[:, [-1]]] = -float("Inf")
        idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
print(idx.shape)
