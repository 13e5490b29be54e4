"""Train a compiled encoder on batches of different lengths, with a graph break in its forward pass."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.embedding, self.head = nn.Embedding(30_000, 512), nn.Linear(512, 30_000)
        self.encoder = nn.TransformerEncoder(layer, 6)

    def forward(self, tokens):
        x = self.encoder(self.embedding(tokens))
        torch._dynamo.graph_break()
        return self.head(x)


model = torch.compile(Encoder().to("cuda"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step, length in enumerate((384, 512, 256, 448)):
    tokens = torch.randint(0, 30_000, (32, length)).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
