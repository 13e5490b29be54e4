"""A wide GPT-2 on short sequences, whose optimizer step is compiled together with that of its schedule."""

import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_head=16, n_embd=2048)).to("cuda")  # pyright: ignore
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(6e-4), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)


@torch.compile
def update():
    optimizer.step()
    scheduler.step()


for _ in range(4):
    tokens = torch.randint(0, 50257, (2, 257), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update()
    optimizer.zero_grad()
    print(loss.item())
