"""Mixed precision in fp16 with a gradient scaler and clipping, written at the top level."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
batch = 65536

first = nn.Linear(64, 2048)
second = nn.Linear(2048, 2048)
last = nn.Linear(2048, 10)
model = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(50):
    x = torch.randn(batch, 64, device=device)
    y = torch.randint(10, (batch,), device=device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item(), scaler.get_scale())
