"""Five common models, one training step each with AdamW in fp32: random weights, random data, no downloads.

Each is also a target of pinchpoint, with the batch size as its size: `five_models.py:bert_base`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers

CLASSES: dict[str, Any] = {"num_labels": 1000}
DECODER: dict[str, Any] = {"decoder_start_token_id": 0, "use_cache": False}


@dataclass(frozen=True)
class Case:
    """A built model with its inputs; `step` is one training step."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    inputs: dict[str, torch.Tensor]

    def step(self) -> None:
        self.model(**self.inputs).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class Model:
    """How a model of transformers and its inputs are built; `batch` is the size that the table shows."""

    title: str
    batch: int
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int, str], dict[str, torch.Tensor]]

    def case(self, batch: int, device: str) -> Case:
        return self.case_of(self.build().to(device), batch, device)

    def case_of(self, model: torch.nn.Module, batch: int, device: str) -> Case:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        return Case(model, optimizer, self.inputs(batch, device))


def _tokens(batch: int, device: str, *, length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(vocabulary, (batch, length), device=device)
    return {"input_ids": ids, "labels": ids}


def _images(batch: int, device: str) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(batch, 3, 224, 224, device=device),
        "labels": torch.randint(1000, (batch,), device=device),
    }


def _translation(batch: int, device: str) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(32_000, (batch, 512), device=device),
        "labels": torch.randint(32_000, (batch, 128), device=device),
    }


def _bert() -> torch.nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig())


def _gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def _resnet50() -> torch.nn.Module:
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**CLASSES))


def _vit() -> torch.nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**CLASSES))


def _t5() -> torch.nn.Module:
    shape: dict[str, Any] = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    config = transformers.T5Config(**shape, **DECODER)
    return transformers.T5ForConditionalGeneration(config)


MODELS: dict[str, Model] = {
    "bert_base": Model("BERT-base, 16 x 512", 16, _bert, partial(_tokens, length=512, vocabulary=30_000)),
    "gpt2": Model("GPT-2, 8 x 1,024", 8, _gpt2, partial(_tokens, length=1024, vocabulary=50_000)),
    "resnet50": Model("ResNet-50, 64 x 224 x 224", 64, _resnet50, _images),
    "vit_b16": Model("ViT-B/16, 64 x 224 x 224", 64, _vit, _images),
    "t5_base": Model("T5-base, 16 x 512 to 128", 16, _t5, _translation),
}


def _target(name: str) -> Callable[[int, str], Callable[[], Any]]:
    def step_of(size: int, device: str) -> Callable[[], Any]:
        return MODELS[name].case(size, device).step

    return step_of


bert_base, gpt2, resnet50, vit_b16, t5_base = (_target(name) for name in MODELS)
