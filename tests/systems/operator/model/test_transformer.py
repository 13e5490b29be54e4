"""The patch transformer: lossless patches, long skips and attention."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch

from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.transformer import (
    Attention,
    PatchTransformer,
    from_patches,
    to_patches,
)

LATTICE = (6, 4, 2)
CONFIG = OperatorConfig.preset(
    "small",
    low=(0, 0, 0),
    high=(3, 2, 1),
    in_features=3,
    lattice=LATTICE,
    channels=5,
    width=16,
    heads=2,
    depth=3,
)


def test_a_patch_contains_its_eight_tokens_in_order() -> None:
    tokens = torch.arange(48.0)[:, None]
    patches = to_patches(tokens, LATTICE, (2, 2, 2))
    by_hand = [
        [(2 * a + i) * 8 + (2 * b + j) * 2 + (2 * c + k) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        for a in range(3)
        for b in range(2)
        for c in range(1)
    ]
    assert patches.tolist() == by_hand


@pytest.mark.parametrize("patch", [1, 2])
def test_from_patches_inverts_to_patches(patch: int) -> None:
    tokens = torch.randn(48, 5)
    sides = patch, patch, patch
    assert torch.equal(from_patches(to_patches(tokens, LATTICE, sides), LATTICE, sides), tokens)


def test_attention_matches_an_explicit_softmax_of_products() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2).double()
    hidden = torch.randn(5, 8, dtype=torch.float64)
    still = torch.ones(5, 2, dtype=torch.float64), torch.zeros(5, 2, dtype=torch.float64)
    q, k, v = attention.read(hidden).chunk(3, dim=1)
    rows = []
    for head in (slice(0, 4), slice(4, 8)):
        weights = torch.softmax(q[:, head] @ k[:, head].T / math.sqrt(4), dim=1)
        rows.append(weights @ v[:, head])
    assert torch.allclose(attention(hidden, *still), attention.write(torch.cat(rows, dim=1)), rtol=1e-12)


def test_every_token_affects_every_other() -> None:
    torch.manual_seed(0)
    model = PatchTransformer(CONFIG).double()
    tokens = torch.randn(48, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(tokens)[17].sum(), tokens)
    assert bool((gradient.abs().sum(1) > 0).all())


def test_autocast_keeps_the_residual_stream_in_full_precision() -> None:
    torch.manual_seed(0)
    model, tokens = PatchTransformer(replace(CONFIG, depth=8)), torch.randn(48, 5)
    dtypes: list[torch.dtype] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        warnings.simplefilter("error")  # torch warns about a norm that it cannot fuse
        half = model(tokens)
    assert half.dtype is torch.bfloat16 and set(dtypes) == {torch.float32}
    with torch.no_grad():
        whole = model(tokens)
    assert float((half.float() - whole).norm() / whole.norm()) < 0.01


def test_long_skips_connect_the_first_half_to_the_second() -> None:
    skips = [layer.merge is not None for layer in PatchTransformer(CONFIG).layers]
    assert skips == [False, False, True]


def test_places_have_three_axes_or_one_with_compat() -> None:
    ours = PatchTransformer(CONFIG)
    theirs = PatchTransformer(
        OperatorConfig.preset(
            "compat",
            low=(0, 0, 0),
            high=(3, 2, 1),
            in_features=3,
            lattice=LATTICE,
            channels=5,
            width=16,
            heads=2,
            depth=3,
        )
    )
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    assert not torch.allclose(ours.cosines, theirs.cosines)
    assert torch.allclose(theirs.cosines[:, 0], torch.arange(6.0).cos())
