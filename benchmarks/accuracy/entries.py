"""The models the accuracy table is made of, each at two sizes, in two sets.

The forecast was developed with the development set in view. The held-out set was written apart from it and no
forecast code was tuned on it: the bars are judged on that set alone. Every model is a plain factory
`NAME(size, device) -> step` in a file under its set's folder; listing them imports no framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Set = Literal["heldout", "development"]

FOLDERS: dict[Set, Path] = {
    "heldout": Path(__file__).parent / "heldout",
    "development": Path(__file__).parent / "models",
}


@dataclass(frozen=True)
class Entry:
    """factory: `file.py:NAME` in the set's folder; sizes: the smaller and the larger; what: one line for the table."""

    set: Set
    factory: str
    sizes: tuple[int, int]
    what: str

    @property
    def target(self) -> str:
        return str(FOLDERS[self.set] / self.factory)


def heldout(factory: str, sizes: tuple[int, int], what: str) -> Entry:
    return Entry("heldout", factory, sizes, what)


def development(factory: str, sizes: tuple[int, int], what: str) -> Entry:
    return Entry("development", factory, sizes, what)


MODELS: dict[str, Entry] = {
    "siren": heldout("siren.py:siren", (100_000, 700_000), "sinusoidal MLP on random points, Adam"),
    "gated_tower": heldout("gated_tower.py:gated_tower", (100_000, 700_000), "gated residual MLP, pairs of blocks checkpointed, RMSprop"),
    "plankton": heldout("plankton.py:plankton", (128, 700), "CNN + batch norm, Nesterov SGD, images from the host"),
    "bottlenecks": heldout("bottlenecks.py:bottlenecks", (24, 160), "ResNet bottleneck blocks, in-place ReLU, momentum SGD, cosine schedule"),
    "cells_unet": heldout("cells_unet.py:cells_unet", (16, 90), "U-Net, batch norm, nearest upsampling, Dice + BCE"),
    "caption_decoder": heldout("caption_decoder.py:caption_decoder", (16, 90), "transformer decoder, nn.MultiheadAttention, causal and padding masks"),
    "spectra_former": heldout("spectra_former.py:spectra_former", (16, 100), "transformer without mask, RMS norm, SwiGLU, bf16 autocast"),
    "potential": heldout("potential.py:potential", (120, 800), "continuous-filter GNN with energies and forces: double backward"),
    "dipoles": heldout("dipoles.py:dipoles", (50_000, 400_000), "e3nn full tensor products and gates"),
    "ray_field": heldout("ray_field.py:ray_field", (3_000, 16_000), "radiance field with volume rendering, fp16 autocast, GradScaler"),
    "rainfall": heldout("rainfall.py:rainfall", (160, 900), "three-layer LSTM with dropout, quantile loss, clipping"),
    "mean_teacher": heldout("mean_teacher.py:mean_teacher", (48, 300), "MLP-Mixer with EMA teacher, clipping and accumulation"),
    "detector_hits": heldout("detector_hits.py:detector_hits", (300_000, 1_600_000), "boolean masks, nonzero and unique"),
    "denoiser": heldout("denoiser.py:denoiser", (24, 140), "diffusion U-Net: group norm, attention, transposed convolutions"),
    "heat_equation": heldout("heat_equation.py:heat_equation", (60_000, 400_000), "physics-informed network with second derivatives"),
    "point_attention": heldout("point_attention.py:point_attention", (6, 36), "point transformer: cdist, topk, gather"),
    "mlp": development("mlp.py:mlp", (60_000, 700_000), "MLP over points, Adam"),
    "checkpointed": development("checkpointed.py:checkpointed", (60_000, 400_000), "residual MLP, every block checkpointed, AdamW"),
    "cnn": development("cnn.py:cnn", (192, 1_000), "CNN + batch norm, momentum SGD, batch copied from the host"),
    "resnet": development("resnet.py:resnet", (40, 256), "ResNet-18 block stack, in-place ReLU, AdamW"),
    "unet": development("unet.py:unet", (12, 64), "U-Net, group norm, transposed convolutions"),
    "transformer": development("transformer.py:transformer", (8, 40), "transformer encoder, SDPA without mask"),
    "transformer_masked": development("transformer.py:transformer_masked", (8, 40), "transformer encoder, SDPA with a padding mask"),
    "forces": development("forces.py:forces", (60_000, 500_000), "GNN with energies and forces: double backward"),
    "equivariant": development("equivariant.py:equivariant", (60_000, 500_000), "e3nn tensor-product convolutions"),
    "nerf_bf16": development("nerf.py:nerf_bf16", (2_048, 10_000), "radiance field, bf16 autocast"),
    "nerf_fp16": development("nerf.py:nerf_fp16", (2_048, 10_000), "radiance field, fp16 autocast, GradScaler, clipping"),
    "lstm": development("lstm.py:lstm", (128, 640), "two-layer LSTM language model"),
    "ema": development("ema.py:ema", (20_000, 120_000), "MLP with EMA, clipping and accumulation"),
    "masked_points": development("masked_points.py:masked_points", (300_000, 1_500_000), "boolean masks, nonzero and unique"),
    "eikonal": development("eikonal.py:eikonal", (100_000, 500_000), "signed distance with the eikonal loss"),
    "gpt": development("gpt.py:gpt", (4, 20), "GPT, bf16 autocast, causal SDPA, dropout, tied head"),
    "message_passing": development("message_passing.py:message_passing", (200_000, 1_000_000), "graph attention by scatter, as in PyG"),
    "vit": development("vit.py:vit", (24, 128), "vision transformer on nn.TransformerEncoder"),
    "voxels": development("voxels.py:voxels", (16, 64), "3-D autoencoder, Conv3d and ConvTranspose3d"),
}  # fmt: skip


def key(name: str, size: int) -> str:
    return f"{name}@{size}"


def names_in(which: str) -> list[str]:
    """which: heldout, development or all."""
    return [name for name, entry in MODELS.items() if which in (entry.set, "all")]


def chosen(which: str, only: str | None) -> Iterator[tuple[str, Entry, int]]:
    """Every model and size of a set, or those of the comma-separated names. An unknown name is an error."""
    known = names_in(which)
    names = known if only is None else [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(
            f"no model {', '.join(unknown)} in the set {which}\n  mend: use some of {', '.join(known)}, or --set all"
        )
    for name in names:
        for size in MODELS[name].sizes:
            yield name, MODELS[name], size
