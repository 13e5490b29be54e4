"""A training loop with `Accelerator.prepare`: what it does depends on the config file of the launcher."""

from __future__ import annotations

import argparse

import models
import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=models.SHAPES, default="gpt2")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()


class Batches(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        shape = models.SHAPES[args.model]
        return torch.randint(0, shape.vocabulary, (shape.sequence + 1,))


accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
model = models.build(args.model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(Batches(), batch_size=models.SHAPES[args.model].batch)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, tokens in enumerate(loader):
    with accelerator.accumulate(model):
        loss = models.loss_of(model(tokens[:, :-1].contiguous()), tokens[:, 1:].contiguous())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(step, loss.item())
    if step + 1 == args.steps * args.accumulate:
        break
accelerator.end_training()
