"""The models the accuracy table is made of, each at two sizes.

None of them was used to tune the forecast. Every model is a plain factory `NAME(size, device) -> step` in a
file of its own under `models/`; listing them imports no framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODELS_FOLDER = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Entry:
    """factory: `file.py:NAME` under models/; sizes: the smaller and the larger; what: one line for the table."""

    factory: str
    sizes: tuple[int, int]
    what: str

    @property
    def target(self) -> str:
        return str(MODELS_FOLDER / self.factory)


MODELS: dict[str, Entry] = {
    "mlp": Entry("mlp.py:mlp", (60_000, 700_000), "MLP over points, Adam"),
    "checkpointed": Entry("checkpointed.py:checkpointed", (60_000, 400_000), "residual MLP, every block checkpointed, AdamW"),
    "cnn": Entry("cnn.py:cnn", (192, 1_000), "CNN + batch norm, momentum SGD, batch copied from the host"),
    "resnet": Entry("resnet.py:resnet", (40, 256), "ResNet-18 block stack, in-place ReLU, AdamW"),
    "unet": Entry("unet.py:unet", (12, 64), "U-Net, group norm, transposed convolutions"),
    "transformer": Entry("transformer.py:transformer", (8, 40), "transformer encoder, SDPA without mask"),
    "transformer_masked": Entry("transformer.py:transformer_masked", (8, 40), "transformer encoder, SDPA with a padding mask"),
    "forces": Entry("forces.py:forces", (60_000, 500_000), "GNN with energies and forces: double backward"),
    "equivariant": Entry("equivariant.py:equivariant", (60_000, 500_000), "e3nn tensor-product convolutions"),
    "nerf_bf16": Entry("nerf.py:nerf_bf16", (2_048, 10_000), "radiance field, bf16 autocast"),
    "nerf_fp16": Entry("nerf.py:nerf_fp16", (2_048, 10_000), "radiance field, fp16 autocast, GradScaler, clipping"),
    "lstm": Entry("lstm.py:lstm", (128, 640), "two-layer LSTM language model"),
    "ema": Entry("ema.py:ema", (20_000, 120_000), "MLP with EMA, clipping and accumulation"),
    "masked_points": Entry("masked_points.py:masked_points", (300_000, 1_500_000), "boolean masks, nonzero and unique"),
    "eikonal": Entry("eikonal.py:eikonal", (100_000, 500_000), "signed distance with the eikonal loss"),
    "gpt": Entry("gpt.py:gpt", (4, 20), "GPT, bf16 autocast, causal SDPA, dropout, tied head"),
    "message_passing": Entry("message_passing.py:message_passing", (200_000, 1_000_000), "graph attention by scatter, as in PyG"),
    "vit": Entry("vit.py:vit", (24, 128), "vision transformer on nn.TransformerEncoder"),
    "voxels": Entry("voxels.py:voxels", (16, 64), "3-D autoencoder, Conv3d and ConvTranspose3d"),
}  # fmt: skip


def key(name: str, size: int) -> str:
    return f"{name}@{size}"


def chosen(only: str | None) -> Iterator[tuple[str, Entry, int]]:
    """Every model and size, or those of the comma-separated names. An unknown name is an error."""
    names = list(MODELS) if only is None else [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise SystemExit(f"unknown model {', '.join(unknown)}\n  mend: use some of {', '.join(MODELS)}")
    for name in names:
        for size in MODELS[name].sizes:
            yield name, MODELS[name], size
