"""DeepSpeed's engine with ZeRO, in bf16, with an optimizer of torch."""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import models
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--bucket", type=float, default=5e8, help="Elements of DeepSpeed's buckets.")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

deepspeed.init_distributed()
model: Any = models.build("gpt2")
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
    config={
        "train_micro_batch_size_per_gpu": models.GPT2.batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True, "check_grad_overflow": False},  # a fake group sends no real weights
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": args.bucket},
    },
)
for step in range(args.steps):
    tokens, targets = models.batch("gpt2", engine.device)
    loss = models.loss_of(engine(tokens), targets)
    engine.backward(loss)
    engine.step()
    if torch.distributed.get_rank() == 0:
        print(step, loss.item())
