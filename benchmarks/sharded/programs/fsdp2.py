"""`fully_shard` (FSDP2): every block is sharded over all ranks, as in torch's own guide."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os

import models
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=models.SHAPES, default="gpt2")
parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
parser.add_argument(
    "--keep-gathered", action="store_true", help="Keep weights after the forward pass (ZeRO-2)."
)
parser.add_argument("--offload", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--selective", action="store_true", help="Checkpoint all but matrix products.")
parser.add_argument("--save-on-cpu", action="store_true", help="Keep activations in host memory.")
parser.add_argument("--hybrid", type=int, default=0, help="Shard over this many ranks and replicate.")
parser.add_argument("--sequence", type=int, help="Tokens per sequence; default: those of the model.")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
world = dist.get_world_size()
if args.hybrid:
    mesh = init_device_mesh(
        "cuda", (world // args.hybrid, args.hybrid), mesh_dim_names=("replicate", "shard")
    )
else:
    mesh = init_device_mesh("cuda", (world,))

with torch.device("meta"):
    model = models.build(args.model)
options = {
    "mesh": mesh,
    "reshard_after_forward": not args.keep_gathered,
    "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if args.precision == "bf16"
    else MixedPrecisionPolicy(),
    "offload_policy": CPUOffloadPolicy() if args.offload else OffloadPolicy(),
}
for layer in model.layers:
    fully_shard(layer, **options)
fully_shard(model, **options)
model.to_empty(device="cpu" if args.offload else "cuda")
model.apply(models.initialise)

if args.checkpointing:
    for layer in model.layers:
        plain = layer.forward
        layer.forward = lambda *inputs, plain=plain: checkpoint(plain, *inputs, use_reentrant=False)

if args.selective:
    saved = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    contexts = functools.partial(create_selective_checkpoint_contexts, list(saved))
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer, context_fn=contexts)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens, targets = models.batch(args.model, "cuda", args.sequence)
    keeping = torch.autograd.graph.save_on_cpu() if args.save_on_cpu else contextlib.nullcontext()
    with keeping:
        loss = models.loss_of(model(tokens), targets)
    loss.backward()
    if not args.offload:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
