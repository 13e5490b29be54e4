"""GPT-2 trained in bf16 with the 8-bit AdamW of bitsandbytes."""

import bitsandbytes as bnb
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).to("cuda", torch.bfloat16)
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(0, 50257, (8, 512), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
