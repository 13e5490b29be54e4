"""The patch discriminator: published sizes, norms as defined, no influence between images."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.model.discriminator import Discriminator, SpectralConv  # noqa: E402


@pytest.mark.parametrize(
    ("side", "widths"), [(32, [128, 256, 512]), (64, [64, 128, 256, 512]), (128, [32, 64, 128, 256, 512])]
)
def test_it_has_the_published_channels_and_returns_one_number_per_patch(side: int, widths: list[int]) -> None:
    critic = Discriminator(side)
    assert [conv.weight.shape[0] for conv in critic.convs] == widths
    assert critic(torch.rand(2, 3, side, side)).shape == (2,)


@pytest.mark.parametrize("side", [16, 33, 48, 256])
def test_patches_of_other_sizes_are_refused_with_their_size(side: int) -> None:
    with pytest.raises(BadInput, match=f"Patches of {side} x {side}") as excinfo:
        Discriminator(side)
    assert "32, 64, 128" in excinfo.value.hint


def test_patches_smaller_than_the_discriminator_raise_bad_input() -> None:
    with pytest.raises(BadInput, match="are 16 x 16 pixels, but the discriminator needs 32 x 32") as excinfo:
        Discriminator(32, width=4)(torch.rand(1, 3, 16, 16))
    assert "points per ray" in excinfo.value.hint


def test_the_spectral_norm_of_the_weights_used_is_one() -> None:
    torch.manual_seed(0)
    conv = SpectralConv(3, 8, stride=2, padding=1)
    conv.refresh(rounds=200)
    matrix = conv.weight.detach().flatten(1)
    sigma = conv.left @ matrix @ conv.right
    assert float(sigma) == pytest.approx(float(torch.linalg.svdvals(matrix)[0]), rel=1e-4)


def test_the_published_discriminator_cannot_see_contrast_and_ours_can() -> None:
    torch.manual_seed(1)
    patch = torch.rand(3, 3, 32, 32) * 2 - 1
    blind, seeing = (Discriminator(32, width=8, bias=bias) for bias in (False, True))
    far = [float((critic(0.3 * patch) - critic(patch)).abs().max().detach()) for critic in (blind, seeing)]
    assert far[0] < 0.01 * far[1]


@pytest.mark.parametrize("norm", ["instance", "layer", "none"])
def test_the_logit_of_an_image_does_not_depend_on_the_other_images(norm: str) -> None:
    torch.manual_seed(1)
    critic = Discriminator(32, width=8, norm=norm)
    images = torch.rand(5, 3, 32, 32) * 2 - 1
    together = critic(images)
    alone = torch.cat([critic(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_forward_pass_changes_no_state_but_refresh_does() -> None:
    critic = Discriminator(32, width=4)
    before = {name: value.clone() for name, value in critic.state_dict().items()}
    critic(torch.rand(1, 3, 32, 32)).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())
    critic.refresh()
    new_state = {name for name, value in critic.state_dict().items() if not torch.equal(value, before[name])}
    assert new_state and all("weight" not in name for name in new_state)
