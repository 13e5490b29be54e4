"""Train a compiled GPT-2 of transformers on 8 sequences of 1,024 tokens with bf16 autocast."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(use_cache=False)).to("cuda")
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
model.train()
for step in range(4):
    tokens = torch.randint(0, 50257, (8, 1024), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")
