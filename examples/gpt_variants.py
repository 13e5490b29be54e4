"""The GPT of train_gpt.py, small, in two variants: `pinchpoint verify gpt_variants.py:WORKLOAD`."""

from functools import partial

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from train_gpt import GPT

from pinchpoint import Case, Probe, Variant, Workload


def build(size: int, *, device: str, mode: str, variant: str, seed: int) -> Case:
    torch.manual_seed(seed)
    model = GPT(vocabulary=512, length=size, width=128, heads=4, layers=4).to(device)
    tokens = torch.randint(512, (8, size + 1), device=device)
    if variant == "recomputed":
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def loss() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def step() -> None:
        model.zero_grad()
        loss().backward()

    def probe() -> Probe:
        model.zero_grad()
        result = loss()
        result.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        return Probe(outputs={"loss": result.detach()}, gradients=gradients)

    return Case(step, processed=tokens[:, 1:].numel() // 8, probe=probe)


WORKLOAD = Workload(
    name="gpt",
    axis="tokens",
    framework="torch",
    build=build,
    variants=(
        Variant("plain", "keeps everything for the backward pass"),
        Variant("recomputed", "keeps the input of every block and computes the rest again"),
    ),
    modes=("train",),
    default_size=64,
)
