"""The discriminator's passes without autograd, compared with autograd in float64, R1 included."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pinchpoint.backends.torch import compat, measurement  # noqa: E402
from pinchpoint.kit.edges.edge_ops import is_fake  # noqa: E402
from pinchpoint.systems.common.training.precision import exact_convolutions  # noqa: E402
from pinchpoint.systems.radiance.data.patches import Real  # noqa: E402
from pinchpoint.systems.radiance.model import critic_passes, discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.discriminator import Discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.labels import class_rows  # noqa: E402
from pinchpoint.systems.radiance.model.losses import mean_square  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Critics, GeneratedImages, Request  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes, Draws  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402

PENALISED, COUNT, CLASSES = 2, 3, 3


def inputs(side: int, *, labels: bool, dtype: Any, device: str) -> tuple[Tensor, Tensor | None]:
    random = torch.Generator().manual_seed(1)
    images = torch.rand(COUNT, 3, side, side, generator=random, dtype=torch.float64) * 2 - 1
    rows = class_rows(torch.arange(COUNT), CLASSES).to(device, dtype) if labels else None
    return images.to(device, dtype), rows


def build(
    side: int, dtype: Any, device: str, *, labels: bool, width: int = 4, **options: Any
) -> Discriminator:
    torch.manual_seed(0)
    critic = Discriminator(side, width=width, labels=CLASSES if labels else 0, **options)
    critic.refresh()
    return critic.to(device, dtype)


def with_passes(critic: Discriminator, images: Tensor, labels: Tensor | None) -> list[Tensor]:
    """Logits, penalty, their gradients, and the slopes of other logits at the images."""
    logits, scores, squares = critic.judge_slopes(images, labels, penalised=PENALISED)
    penalty = mean_square(squares, images, reduction="graf")
    judged = images.clone().requires_grad_()
    again = critic.judge_slopes(judged, labels, penalised=0)[0]
    return gradients(critic, logits, scores, penalty, again, judged)


def with_autograd(critic: Discriminator, images: Tensor, labels: Tensor | None) -> list[Tensor]:
    some = None if labels is None else labels[:PENALISED]
    real = images[:PENALISED].clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic.judge(real, some)[0].sum(), real, create_graph=True)
    penalty = slope.square().sum() / (PENALISED * real.shape[2] * real.shape[3])
    logits, scores = critic.judge(images, labels)
    judged = images.clone().requires_grad_()
    return gradients(critic, logits, scores, penalty, critic.judge(judged, labels)[0], judged)


def gradients(
    critic: Discriminator,
    logits: Tensor,
    scores: Tensor | None,
    penalty: Tensor,
    again: Tensor,
    judged: Tensor,
) -> list[Tensor]:
    loss = torch.nn.functional.softplus(-logits).mean() + 1e4 * penalty
    if scores is not None:
        loss = loss + scores.square().mean()
    of_weights = torch.autograd.grad(loss, list(critic.parameters()))
    (of_images,) = torch.autograd.grad(again.sin().sum(), judged)
    return [logits.detach(), penalty.detach(), *of_weights, of_images]


def worst(values: list[Tensor], truth: list[Tensor]) -> float:
    return max(
        float((value.double() - true).norm() / true.norm()) for value, true in zip(values, truth, strict=True)
    )


@pytest.mark.parametrize(
    ("side", "options"),
    [
        (32, {"labels": False}),
        (32, {"labels": True, "bias": False}),
        (64, {"labels": False, "norm": "none"}),
        (32, {"labels": False, "channels": 3, "norm": "none", "bias": False}),
    ],
    ids=str,
)
def test_outputs_penalty_and_gradients_are_those_of_autograd(side: int, options: dict[str, Any]) -> None:
    critic = build(side, torch.float64, "cpu", **options)
    images, labels = inputs(side, labels=options["labels"], dtype=torch.float64, device="cpu")
    assert worst(with_passes(critic, images, labels), with_autograd(critic, images, labels)) <= 1e-12


def test_penalised_images_get_the_gradient_of_the_penalty_too() -> None:
    critic = build(32, torch.float64, "cpu", labels=False)
    images, _ = inputs(32, labels=False, dtype=torch.float64, device="cpu")
    judged, plain = (images.clone().requires_grad_() for _ in range(2))
    logits, _, squares = critic.judge_slopes(judged, None, penalised=PENALISED)
    (logits.sin().sum() + squares.sum()).backward()
    values = critic(plain)
    (slope,) = torch.autograd.grad(values[:PENALISED].sum(), plain, create_graph=True)
    (values.sin().sum() + slope.square().sum()).backward()
    assert judged.grad is not None and plain.grad is not None
    assert worst([judged.grad], [plain.grad]) <= 1e-12


def test_channels_of_a_normalised_weight_are_padded_with_zeros() -> None:
    critic = build(32, torch.float64, "cpu", labels=False)
    conv: Any = critic.convs[0]
    weight = conv.normalised(lanes=True)
    assert weight.shape == (conv.weight.shape[0], 4, 4, 4) and not bool(weight[:, 3].any())
    torch.testing.assert_close(weight[:, :3], conv.normalised(), rtol=0, atol=0)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_refresh_before_the_backward_pass_raises_an_error() -> None:
    critic = build(32, torch.float64, "cpu", labels=False)
    images, _ = inputs(32, labels=False, dtype=torch.float64, device="cpu")
    logits, _, _ = critic.judge_slopes(images, None, penalised=0)
    critic.refresh()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logits.sum().backward()


def test_passes_are_for_gpus_and_float32_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not build(32, torch.float32, "cpu", labels=False).has_passes(torch.zeros(1)), "on a CPU"
    monkeypatch.setattr(discriminator, "own_kernels", is_fake)
    with compat.fake_mode():
        tensor = torch.zeros(1)
    assert build(32, torch.float32, "cpu", labels=False).has_passes(tensor)
    assert not build(32, torch.float32, "cpu", labels=False).has_passes(tensor.double())
    assert not build(32, torch.float32, "cpu", labels=False, norm="layer").has_passes(tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here")
@pytest.mark.parametrize("side", [32, 64, 128])
@pytest.mark.parametrize("options", [{"labels": False}, {"labels": True}, {"labels": False, "norm": "none"}])
def test_kernels_match_autograd_in_float64(side: int, options: dict[str, Any]) -> None:
    truth_critic = build(side, torch.float64, "cuda", **options)
    images, labels = inputs(side, labels=options["labels"], dtype=torch.float64, device="cuda")
    truth = with_autograd(truth_critic, images, labels)
    critic = build(side, torch.float32, "cuda", **options)
    images, labels = inputs(side, labels=options["labels"], dtype=torch.float32, device="cuda")
    assert critic.has_passes(images)
    with exact_convolutions():
        assert worst(with_passes(critic, images, labels), truth) <= 1e-4


class RoundedConvolutions(TorchDispatchMode):
    """Within the block, convolutions and their gradients read numbers rounded to tf32's 10 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = {"convolution": 2, "convolution_backward": 3}.get(func.overloadpacket.__name__, 0)
        return func(*map(round_to_tf32, args[:tensors]), *args[tensors:], **(kwargs or {}))


def round_to_tf32(value: Tensor) -> Tensor:
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here"),
            ],
        ),
    ],
)
@pytest.mark.parametrize("side", [32, 64])
def test_errors_in_tf32_are_those_of_rounded_convolutions(side: int, device: str) -> None:
    """At the published width. Autograd's own convolutions on a GPU are only in part in tf32."""
    images, _ = inputs(side, labels=False, dtype=torch.float64, device=device)
    truth = with_autograd(build(side, torch.float64, device, labels=False, width=64), images, None)
    critic = build(side, torch.float32, device, labels=False, width=64)
    with exact_convolutions(), RoundedConvolutions():
        rounded = worst(with_autograd(critic, images.float(), None), truth)
        if device == "cpu":  # which has no tf32 of its own
            value = worst(with_passes(critic, images.float(), None), truth)
    if device == "cuda":
        value = worst(with_passes(critic, images.float(), None), truth)
    assert 1e-4 < value <= 1.5 * rounded


@pytest.mark.parametrize(
    ("turn", "least", "most"), [("penalty", 0.4, 0.8), ("no penalty", 0.4, 0.9), ("generator", 0.6, 1.0)]
)
def test_a_simulated_turn_needs_no_more_memory_than_with_autograd(
    turn: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forecast counts what autograd would need."""

    def peak() -> int:
        with compat.fake_mode():
            critics = Critics(Settings(size=64, superres=2, critic_width=64, r1=10.0))
            real = Real(torch.zeros(4, 3, 32, 32), torch.zeros(4, 3, 64, 64))
            images = GeneratedImages(*real[:2], torch.zeros(0), torch.zeros(0))
            codes = Codes(torch.zeros(4, 1), torch.zeros(4, 1))
            request = Request(
                codes,
                torch.zeros(4),
                torch.zeros(4),
                torch.zeros(4, 1024, 2),
                Draws(torch.zeros(0)),
                (0, 1, 2, 3),
            )

            def discriminate() -> None:
                penalty = torch.ones(()) if turn == "penalty" else None
                critics.loss(images, request, real, penalty=penalty)[0].backward()

            def generate() -> None:
                critics.requires_grad_(False)
                low, high = (torch.zeros_like(image, requires_grad=True) for image in real[:2])
                critics.generator_loss(images._replace(low=low, high=high), request).backward()

            return measurement.account(generate if turn == "generator" else discriminate) or 0

    single = peak()
    for module in (discriminator, critic_passes):
        monkeypatch.setattr(module, "own_kernels", is_fake)
    assert least * single < peak() <= most * single
