"""One training run of xMem's evaluation, on random data: `python xmem_case.py MODEL OPTIMIZER BATCH`.

The runs of Stone-ResearchLife/xMem train a CNN of torchvision on CIFAR-10 images enlarged to 86 x 86, or a
language model of transformers on texts of at most 128 tokens, in fp32 with lr 0.001, for four iterations that
begin with `zero_grad`. Outputs, loss, and batch of an iteration stay alive until the next one replaces them.
This file is written from that description; it contains none of their code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

ITERATIONS = 4
TOKENS = 128
PIXELS = 86

# Operations of torchvision's compiled part, which does not load beside a CPU build of torch.
_TORCHVISION_OPERATIONS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "_cuda_version": "() -> int",
}


def import_torchvision() -> Any:
    """torchvision.models, also where only its Python part can be imported: the classifiers need no more."""
    if torch.version.cuda is None:
        for name, schema in _TORCHVISION_OPERATIONS.items():
            torch.library.define(f"torchvision::{name}", schema)
        torch.library.impl("torchvision::_cuda_version", "CompositeExplicitAutograd")(lambda: -1)
    import torchvision.models as models  # pyright: ignore[reportMissingImports]

    return models


CNNS: dict[str, tuple[str, int]] = {  # the name in torchvision, and the number of classes
    "ConvNeXtBase": ("convnext_base", 1000),
    "ConvNeXtTiny": ("convnext_tiny", 1000),
    "MnasNet": ("mnasnet1_0", 10),
    "MobeNetV3Large": ("mobilenet_v3_large", 10),
    "MobeNetV3Small": ("mobilenet_v3_small", 10),
    "MobileNetV2": ("mobilenet_v2", 1000),
    "RegNetX400MF": ("regnet_x_400mf", 1000),
    "RegNetY400MF": ("regnet_y_400mf", 1000),
    "ResNet101": ("resnet101", 1000),
    "ResNet152": ("resnet152", 1000),
    "VGG16": ("vgg16", 1000),
    "VGG19": ("vgg19", 1000),
}


def _gpt2(layers: int, **settings: Any) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, **settings))


def _cerebras() -> torch.nn.Module:
    return _gpt2(
        10,
        n_positions=2048,
        n_inner=3072,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def _gpt_neo() -> torch.nn.Module:
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]]
    )
    config._attn_implementation = "eager"  # as in the releases of transformers of that time
    return GPTNeoForCausalLM(config)


def _opt(**settings: Any) -> torch.nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(OPTConfig(**settings))


def _t5(width: int, layers: int) -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    shape: dict[str, Any] = {"d_model": width, "d_ff": 4 * width, "num_layers": layers}
    config = T5Config(**shape, num_heads=width // 64)
    config.decoder_start_token_id = 0
    config._attn_implementation = "eager"  # as in the releases of transformers of that time
    return T5ForConditionalGeneration(config)


LANGUAGE_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "EleutherAI-gpt-neo-125M": _gpt_neo,
    "T5-small": lambda: _t5(512, 6),
    "t5-base": lambda: _t5(768, 12),
    "cerebras-Cerebras-GPT-111M": _cerebras,
    "distilbert-distilgpt2": lambda: _gpt2(6),
    "openai-community-gpt2": lambda: _gpt2(12),
    "facebook-opt-125m": _opt,
    "facebook-opt-350m": lambda: _opt(
        hidden_size=1024,
        ffn_dim=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        word_embed_proj_dim=512,
        do_layer_norm_before=False,
    ),
}


def train_images(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(ITERATIONS):
        images, classes = torch.randn(batch, 3, PIXELS, PIXELS), torch.randint(10, (batch,))
        optimizer.zero_grad()
        inputs, labels = images.to("cuda"), classes.to("cuda")
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        _, _predictions = torch.max(outputs, 1)


def token_batch(batch: int) -> dict[str, torch.Tensor]:
    """Texts of different lengths, padded to the longest, which has all 128 tokens."""
    ids = torch.randint(1000, 30_000, (batch, TOKENS))
    lengths = torch.linspace(TOKENS, 1, batch).long()
    mask = (torch.arange(TOKENS) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def train_texts(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
    for _ in range(ITERATIONS):
        host = token_batch(batch)
        optimizer.zero_grad()
        inputs = {name: tensor.to("cuda") for name, tensor in host.items()}
        outputs = model(**inputs)
        loss = outputs.loss
        loss.backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=(*CNNS, *LANGUAGE_MODELS))
    parser.add_argument("optimizer", choices=("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"))
    parser.add_argument("batch", type=int)
    args = parser.parse_args()
    if args.model in CNNS:
        name, classes = CNNS[args.model]
        model = getattr(import_torchvision(), name)(weights=None, num_classes=classes)
        train = train_images
    else:
        model, train = LANGUAGE_MODELS[args.model](), train_texts
    model = model.to("cuda")
    model.train()
    train(model, getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.001), args.batch)


if __name__ == "__main__":
    main()
