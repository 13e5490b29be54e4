"""Lightning's Trainer with one of its strategies for many GPUs."""

from __future__ import annotations

import argparse
import os
from typing import Any

import models
import pytorch_lightning as lightning
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=["ddp", "fsdp", "model_parallel"], default="fsdp")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, models.GPT2.vocabulary, (models.GPT2.sequence + 1,))


class LanguageModel(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model: Any = None

    def configure_model(self) -> None:
        if self.model is not None:
            return
        self.model = models.build("gpt2")
        if args.strategy == "model_parallel":
            half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            mesh = self.device_mesh["data_parallel"]
            for layer in self.model.layers:
                fully_shard(layer, mesh=mesh, mp_policy=half)
            fully_shard(self.model, mesh=mesh, mp_policy=half)

    def training_step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:
        return models.loss_of(self.model(tokens[:, :-1].contiguous()), tokens[:, 1:].contiguous())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4)


gpus, ranks = torch.cuda.device_count(), int(os.environ["WORLD_SIZE"])
blocks = {models.GPT2Block}
if args.strategy == "ddp":
    strategy = DDPStrategy(find_unused_parameters=False)
elif args.strategy == "fsdp":
    strategy = FSDPStrategy(
        auto_wrap_policy=blocks, activation_checkpointing_policy=blocks if args.checkpointing else None
    )
else:
    strategy = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=min(gpus, ranks),
    num_nodes=max(ranks // gpus, 1),
    strategy=strategy,
    precision="32-true" if args.strategy == "model_parallel" else "bf16-mixed",
    max_steps=args.steps,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LanguageModel(), torch.utils.data.DataLoader(Tokens(), batch_size=models.GPT2.batch))
