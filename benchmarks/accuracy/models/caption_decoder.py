"""A transformer decoder on nn.MultiheadAttention with causal and padding masks, and memory to attend to."""

import torch
import torch.nn.functional as F
from torch import nn


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x, memory, causal, padding):
        h = self.norms[0](x)
        x = (
            x
            + self.self_attention(h, h, h, attn_mask=causal, key_padding_mask=padding, need_weights=False)[0]
        )
        h = self.norms[1](x)
        x = x + self.cross_attention(h, memory, memory, need_weights=False)[0]
        return x + self.feed(self.norms[2](x))


class Captioner(nn.Module):
    def __init__(self, vocabulary=9000, width=384, heads=6, layers=4, length=256):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        self.picture = nn.Linear(512, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, 3 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, picture):
        length = tokens.shape[1]
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool, device=tokens.device), diagonal=1)
        padding = tokens == 0
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        memory = self.picture(picture)
        for layer in self.layers:
            x = layer(x, memory, causal, padding)
        return self.head(self.norm(x))


def caption_decoder(size, device):
    torch.manual_seed(7)
    model = Captioner().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: 384**-0.5 * min((i + 1) ** -0.5, (i + 1) * 4000**-1.5)
    )
    tokens = torch.randint(1, 9000, (size, 257))
    lengths = torch.randint(150, 258, (size, 1))
    tokens[torch.arange(257) >= lengths] = 0
    pictures = torch.randn(size, 49, 512)

    def step():
        words, picture = tokens.to(device), pictures.to(device)
        logits = model(words[:, :-1], picture)
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        return loss.item()

    return step
