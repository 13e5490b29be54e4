"""Tensor parallel Llama with `parallelize_module`, with sequence parallel norms if asked for."""

from __future__ import annotations

import argparse
import os

import models
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

parser = argparse.ArgumentParser()
parser.add_argument(
    "--sequence", action="store_true", help="Shard the sequence outside of the linear layers."
)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
with torch.device("meta"):
    model = models.build("llama").bfloat16()
if args.sequence:
    outer = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    split = {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "mlp.w2": RowwiseParallel(output_layouts=Shard(1)),
    }
else:
    outer = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    split = {"attention.wo": RowwiseParallel(), "mlp.w2": RowwiseParallel()}
parallelize_module(model, mesh, outer)
for layer in model.layers:
    columns = ("attention.wq", "attention.wk", "attention.wv", "mlp.w1", "mlp.w3")
    parallelize_module(layer, mesh, {**{name: ColwiseParallel() for name in columns}, **split})
model.to_empty(device="cuda")
model.apply(models.initialise)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens, targets = models.batch("llama", "cuda")
    loss = models.loss_of(model(tokens), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
