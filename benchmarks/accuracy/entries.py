"""The models of the accuracy table, each at two sizes, in two sets.

The forecast was developed with the development set. The held-out set was written separately, and no forecast
code was tuned on it, so the bars are judged on that set alone. A set whose results are used to change the
forecast belongs to development from then on. Every model is a plain factory `NAME(size, device) -> step` in a
file in its set's folder; listing them imports no framework.
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
    """One model.

    factory: `file.py:NAME` in the set's folder
    sizes: the smaller and the larger size
    what: one line for the table
    """

    set: Set
    factory: str
    sizes: tuple[int, int]
    what: str

    @property
    def target(self) -> str:
        return str(FOLDERS[self.set] / self.factory)


def heldout(factory: str, sizes: tuple[int, int], what: str) -> Entry:
    return Entry("heldout", factory, sizes, what)


def dev(factory: str, sizes: tuple[int, int], what: str) -> Entry:
    return Entry("development", factory, sizes, what)


MODELS: dict[str, Entry] = {
    "house_prices": heldout(
        "house_prices.py:house_prices", (80_000, 500_000), "MLP, layer norm, dropout, Gaussian loss, Adagrad"
    ),
    "enzyme_classes": heldout(
        "enzyme_classes.py:enzyme_classes", (40_000, 200_000), "MLP by checkpoint_sequential, AMSGrad"
    ),
    "galaxies": heldout(
        "galaxies.py:galaxies", (192, 1_000), "CNN + batch norm, channels-last, AdamW, one-cycle schedule"
    ),
    "bird_calls": heldout(
        "bird_calls.py:bird_calls", (16, 100), "pre-activation ResNet, squeeze and excitation, momentum SGD"
    ),
    "fault_lines": heldout(
        "fault_lines.py:fault_lines",
        (20, 120),
        "U-Net, instance norm, bilinear upsampling, focal loss, NAdam",
    ),
    "melodies": heldout(
        "melodies.py:melodies", (16, 90), "causal transformer with a float mask of distances, AdamW"
    ),
    "stations": heldout(
        "stations.py:stations", (32, 200), "latent transformer, cross attention, no mask, RAdam"
    ),
    "alloys": heldout("alloys.py:alloys", (160, 900), "gated GNN with energies and forces: double backward"),
    "shieldings": heldout(
        "shieldings.py:shieldings", (12_000, 72_000), "e3nn uvu tensor products, norm activations, batch norm"
    ),
    "plane_field": heldout(
        "plane_field.py:plane_field", (4_000, 24_000), "feature planes, two passes, fp16 autocast, GradScaler"
    ),
    "battery_fade": heldout(
        "battery_fade.py:battery_fade", (116, 812), "three-layer LSTM, two numbers a sequence, AdamW"
    ),
    "heartbeats": heldout(
        "heartbeats.py:heartbeats", (24, 150), "gated 1-D convolutions with EMA, clipping and accumulation"
    ),
    "tree_crowns": heldout(
        "tree_crowns.py:tree_crowns", (400_000, 2_400_000), "boolean masks: a range cut, scores above median"
    ),
    "variable_stars": dev(
        "variable_stars.py:variable_stars", (190, 1_330), "three-layer two-way LSTM, attention pool, AdamW"
    ),
    "sleep_stages": dev(
        "sleep_stages.py:sleep_stages", (128, 700), "two-layer LSTM, a class for every frame, Adam"
    ),
    "phonemes": dev("phonemes.py:phonemes", (160, 900), "bidirectional LSTM over a convolution, Adamax"),
    "street_scans": dev(
        "street_scans.py:street_scans", (400_000, 2_400_000), "boolean masks of the data and of the scores"
    ),
    "siren": dev("siren.py:siren", (100_000, 700_000), "sinusoidal MLP on random points, Adam"),
    "gated_tower": dev(
        "gated_tower.py:gated_tower", (40_000, 200_000), "gated residual MLP, checkpointed in pairs, RMSprop"
    ),
    "plankton": dev(
        "plankton.py:plankton", (128, 700), "CNN + batch norm, Nesterov SGD, images from the host"
    ),
    "bottlenecks": dev(
        "bottlenecks.py:bottlenecks", (24, 160), "ResNet bottleneck blocks, momentum SGD, cosine schedule"
    ),
    "cells_unet": dev(
        "cells_unet.py:cells_unet", (16, 90), "U-Net, batch norm, nearest upsampling, Dice + BCE"
    ),
    "caption_decoder": dev(
        "caption_decoder.py:caption_decoder", (16, 90), "decoder with causal and padding masks, warm-up"
    ),
    "spectra_former": dev(
        "spectra_former.py:spectra_former", (16, 100), "transformer, no mask, RMS norm, bf16 autocast"
    ),
    "potential": dev(
        "potential.py:potential",
        (160, 1_000),
        "continuous-filter GNN with energies and forces: double backward",
    ),
    "dipoles": dev("dipoles.py:dipoles", (300_000, 1_500_000), "e3nn full tensor products and gates"),
    "ray_field": dev(
        "ray_field.py:ray_field", (3_000, 16_000), "radiance field along rays, fp16 autocast, GradScaler"
    ),
    "rainfall": dev(
        "rainfall.py:rainfall", (160, 900), "three-layer LSTM with dropout, quantile loss, clipping"
    ),
    "mean_teacher": dev(
        "mean_teacher.py:mean_teacher", (48, 300), "MLP-Mixer with EMA teacher, clipping and accumulation"
    ),
    "detector_hits": dev(
        "detector_hits.py:detector_hits", (300_000, 1_600_000), "boolean masks, nonzero and unique"
    ),
    "denoiser": dev(
        "denoiser.py:denoiser", (24, 140), "diffusion U-Net: group norm, attention, transposed convolutions"
    ),
    "heat_equation": dev(
        "heat_equation.py:heat_equation", (40_000, 240_000), "physics-informed network, second derivatives"
    ),
    "point_attention": dev(
        "point_attention.py:point_attention", (12, 72), "point transformer: cdist, topk, gather"
    ),
    "mlp": dev("mlp.py:mlp", (60_000, 700_000), "MLP over points, Adam"),
    "checkpointed": dev(
        "checkpointed.py:checkpointed", (60_000, 400_000), "residual MLP, every block checkpointed, AdamW"
    ),
    "cnn": dev("cnn.py:cnn", (192, 1_000), "CNN + batch norm, momentum SGD, batch copied from the host"),
    "resnet": dev("resnet.py:resnet", (40, 256), "ResNet-18 block stack, in-place ReLU, AdamW"),
    "unet": dev("unet.py:unet", (12, 64), "U-Net, group norm, transposed convolutions"),
    "transformer": dev("transformer.py:transformer", (8, 40), "transformer encoder, SDPA without mask"),
    "transformer_masked": dev(
        "transformer.py:transformer_masked", (8, 40), "transformer encoder, SDPA with a padding mask"
    ),
    "forces": dev("forces.py:forces", (60_000, 500_000), "GNN with energies and forces: double backward"),
    "equivariant": dev("equivariant.py:equivariant", (60_000, 500_000), "e3nn tensor-product convolutions"),
    "nerf_bf16": dev("nerf.py:nerf_bf16", (2_048, 10_000), "radiance field, bf16 autocast"),
    "nerf_fp16": dev(
        "nerf.py:nerf_fp16", (2_048, 10_000), "radiance field, fp16 autocast, GradScaler, clipping"
    ),
    "lstm": dev("lstm.py:lstm", (128, 640), "two-layer LSTM language model"),
    "ema": dev("ema.py:ema", (20_000, 120_000), "MLP with EMA, clipping and accumulation"),
    "masked_points": dev(
        "masked_points.py:masked_points", (300_000, 1_500_000), "boolean masks, nonzero and unique"
    ),
    "eikonal": dev("eikonal.py:eikonal", (100_000, 500_000), "signed distance with the eikonal loss"),
    "gpt": dev("gpt.py:gpt", (4, 20), "GPT, bf16 autocast, causal SDPA, dropout, tied head"),
    "message_passing": dev(
        "message_passing.py:message_passing", (200_000, 1_000_000), "graph attention by scatter, as in PyG"
    ),
    "vit": dev("vit.py:vit", (24, 128), "vision transformer on nn.TransformerEncoder"),
    "voxels": dev("voxels.py:voxels", (16, 64), "3-D autoencoder, Conv3d and ConvTranspose3d"),
}


def key(name: str, size: int) -> str:
    return f"{name}@{size}"


def names_in(which: str) -> list[str]:
    """Return the names of the models in a set. which: heldout, development or all."""
    return [name for name, entry in MODELS.items() if which in (entry.set, "all")]


def select(which: str, only: str | None) -> Iterator[tuple[str, Entry, int]]:
    """Yield every model and size of a set, or of the comma-separated names. Unknown names are an error."""
    available = names_in(which)
    names = available if only is None else [name.strip() for name in only.split(",")]
    missing = [name for name in names if name not in available]
    if missing:
        raise SystemExit(
            f"The set {which} has no model {', '.join(missing)}.\n"
            f"  hint: Use some of {', '.join(available)}, or --set all."
        )
    for name in names:
        for size in MODELS[name].sizes:
            yield name, MODELS[name], size
