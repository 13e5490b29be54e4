"""Pipeline stages of GPT-2 under GPipe or 1F1B; the shapes between stages are given."""

from __future__ import annotations

import argparse
import os

import models
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b")
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()


class Stage(nn.Module):
    """The layers of one rank; the first rank embeds, the last one has the head."""

    def __init__(self, whole: models.GPT2Model, rank: int, ranks: int) -> None:
        super().__init__()
        count = len(whole.layers) // ranks
        self.layers = nn.ModuleList(whole.layers[rank * count : (rank + 1) * count])
        self.tokens, self.positions = (whole.tokens, whole.positions) if rank == 0 else (None, None)
        self.norm, self.head = (whole.norm, whole.head) if rank == ranks - 1 else (None, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
shape = models.GPT2
module = Stage(models.GPT2Model(shape), rank, world).to(device)
tokens_like = torch.zeros(shape.batch, shape.sequence, dtype=torch.long, device="meta")
hidden_like = torch.zeros(shape.batch, shape.sequence, shape.width, device="meta", requires_grad=True)
logits_like = torch.zeros(shape.batch, shape.sequence, shape.vocabulary, device="meta", requires_grad=True)
stage = PipelineStage(
    module,
    rank,
    world,
    device,
    input_args=(tokens_like if rank == 0 else hidden_like,),
    output_args=(logits_like if rank == world - 1 else hidden_like,),
)
Schedule = ScheduleGPipe if args.schedule == "gpipe" else Schedule1F1B
schedule = Schedule(stage, n_microbatches=args.microbatches, loss_fn=models.loss_of)
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
for step in range(args.steps):
    batch = args.microbatches * shape.batch
    tokens = torch.randint(0, shape.vocabulary, (batch, shape.sequence + 1), device=device)
    if rank == 0:
        schedule.step(tokens[:, :-1].contiguous())
    elif rank == world - 1:
        losses: list[torch.Tensor] = []
        schedule.step(target=tokens[:, 1:], losses=losses)
        print(step, torch.stack(losses).mean().item())
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
