"""Labels: classes in the codes, sectors of a turn, and a discriminator that reads both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
from torch.nn import functional  # noqa: E402

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.data.patches import Real  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.discriminator import Discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.labels import MARK, class_rows, sector_rows  # noqa: E402
from pinchpoint.systems.radiance.model.losses import label_loss  # noqa: E402
from pinchpoint.systems.radiance.model.objective import (  # noqa: E402
    Critics,
    GeneratedImages,
    draw_codes,
    draw_request,
)
from pinchpoint.systems.radiance.orbit import codes_of  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402

PLAIN = FieldConfig.preset("tiny")
CONFIG = replace(PLAIN, classes=("bus", "car"), class_images=(1, 3))
SETTINGS = Settings(
    preset="tiny", steps=9, size=32, batch=4, critic_width=4, label_weight=0.5, view_sectors=3
)


def generator(seed: int = 0) -> Any:
    return torch.Generator().manual_seed(seed)


def test_codes_say_a_class_as_often_as_the_data_has_it() -> None:
    codes = draw_codes(CONFIG, 400, generator=generator())
    plain = draw_codes(PLAIN, 400, generator=generator())
    for part, before in zip(codes, plain, strict=True):
        assert torch.equal(part[:, 2:], before[:, 2:]), "the rest of a code is drawn as without classes"
        assert torch.equal(part[:, :2], codes.shape[:, :2])
    rows = codes.shape[:, :2] / MARK
    assert torch.equal(rows.sum(dim=1), torch.ones(400)) and set(rows.unique().tolist()) == {0.0, 1.0}
    assert 0.68 < float(rows[:, 1].mean()) < 0.82, "three of four images are cars"


def test_objects_of_a_class_differ_from_those_of_another_only_in_the_class() -> None:
    bus, car = (codes_of(CONFIG, 2, seed=3, device="cpu", only=name) for name in CONFIG.classes)
    assert torch.equal(bus.shape[:, 2:], car.shape[:, 2:]) and torch.equal(bus.app[:, 2:], car.app[:, 2:])
    assert bus.shape[:, :2].tolist() == [[MARK, 0.0]] * 2 and car.app[:, :2].tolist() == [[0.0, MARK]] * 2


@pytest.mark.parametrize(
    ("config", "hint"), [(CONFIG, "bus or car"), (PLAIN, "train with --set label_weight=1")]
)
def test_a_class_that_a_run_does_not_have_is_named(config: FieldConfig, hint: str) -> None:
    with pytest.raises(BadInput, match="There is no class 'boat'") as excinfo:
        codes_of(config, 1, seed=0, device="cpu", only="boat")
    assert hint in excinfo.value.hint


def test_classes_leave_room_in_the_codes_and_have_images() -> None:
    names = tuple("abcdefgh")  # as many as a code of the preset has numbers
    with pytest.raises(BadInput, match="too short for 8 classes"):
        replace(PLAIN, classes=names, class_images=(1,) * 8)
    with pytest.raises(BadInput, match="do not match"):
        replace(PLAIN, classes=("a", "b"), class_images=(3,))


def test_a_turn_ends_in_the_sector_it_began_in() -> None:
    turns = torch.tensor([0.0, 0.24, 0.26, 0.99, 1.0])
    assert sector_rows(turns, 4).argmax(dim=1).tolist() == [0, 0, 1, 3, 0]
    almost = torch.tensor([1 - 2**-24])  # times 72 it is 72 in fp32
    assert sector_rows(almost, 72).sum() == 1
    assert sector_rows(turns, 0).shape == (5, 0)


def test_the_label_loss_is_the_sum_of_the_cross_entropies_of_its_groups() -> None:
    scores = torch.randn(5, 5, generator=generator())
    classes, sectors = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([2, 0, 1, 1, 2])
    labels = torch.cat([class_rows(classes, 2), class_rows(sectors, 3)], dim=1)
    expected = functional.cross_entropy(scores[:, :2], classes) + functional.cross_entropy(
        scores[:, 2:], sectors
    )
    assert float(label_loss(scores, labels, (2, 3))) == pytest.approx(float(expected), rel=1e-6)


def test_the_score_of_a_patchs_own_labels_is_added_to_its_logit() -> None:
    torch.manual_seed(0)
    critic = Discriminator(32, width=4, labels=5)
    patches = torch.rand(3, 3, 32, 32)
    labels = torch.tensor([[1.0, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0, 1, 0, 1, 0]])
    logits, scores = critic.judge(patches, labels)
    assert scores is not None and scores.shape == (3, 5)
    own = torch.stack([scores[0, 0] + scores[0, 4], scores[1, 1] + scores[1, 2], scores[2, 1] + scores[2, 3]])
    assert torch.allclose(logits, critic(patches) + own, atol=1e-6)
    assert critic.judge(patches, None)[1] is None


def losses_of(critics: Critics, real: Real, penalty: float | None = None) -> Any:
    request = draw_request(CONFIG, SETTINGS, step=1, what="test", device="cpu", batch=4)
    low = torch.rand(4, 3, 32, 32, generator=generator(1))
    images = GeneratedImages(low, None, low[:, 0], low[:, 0])
    weight = None if penalty is None else torch.tensor(penalty)
    return critics.loss(images, request, real, penalty=weight)[0]


def test_labels_are_part_of_both_losses_with_and_without_a_penalty() -> None:
    critics = Critics(SETTINGS, classes=2)
    assert critics.groups == (2, 3)
    labels = torch.eye(2).repeat(2, 1)
    labels = torch.cat([labels, torch.eye(3)[[0, 1, 2, 0]]], dim=1)
    real = Real(torch.rand(4, 3, 32, 32, generator=generator(2)), labels=labels)
    values = [losses_of(critics, real, penalty) for penalty in (None, 0.0)]
    assert float(values[0].detach()) == pytest.approx(float(values[1].detach()), rel=1e-5)
    request = draw_request(CONFIG, SETTINGS, step=1, what="test", device="cpu", batch=4)
    own = critics.labels(request)
    assert own is not None
    assert own[:, :2].argmax(dim=1).tolist() == request.codes.shape[:, :2].argmax(dim=1).tolist()
    assert own[:, 2:].argmax(dim=1).tolist() == (request.u * 3).floor().int().tolist()
    low = torch.rand(4, 3, 32, 32, generator=generator(1))
    generated = critics.generator_loss(GeneratedImages(low, None, low[:, 0], low[:, 0]), request)
    logits, scores = critics.low.judge(low, own)
    assert scores is not None
    expected = functional.softplus(-logits).mean() + 0.5 * label_loss(scores, own, (2, 3))
    assert float(generated.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_discriminator_learns_to_tell_classes_of_real_patches_apart() -> None:
    critics = Critics(SETTINGS, classes=2)
    red = torch.tensor([1.0, -1, -1]).view(1, 3, 1, 1)
    noise = torch.rand(4, 3, 32, 32, generator=generator(2))
    real = torch.cat([noise[:2] * red, noise[2:] * -red])
    views = torch.eye(3)[[0, 1, 0, 1]]
    labels = torch.cat([torch.eye(2).repeat_interleave(2, 0), views], dim=1)
    optimizer = torch.optim.Adam(critics.parameters(), lr=3e-3)
    for _ in range(15):
        optimizer.zero_grad()
        losses_of(critics, Real(real, labels=labels)).backward()
        optimizer.step()
        critics.refresh()
    with torch.no_grad():
        _, scores = critics.low.judge(real, labels)
    assert scores is not None and scores[:, :2].argmax(dim=1).tolist() == [0, 0, 1, 1]


def test_without_labels_the_discriminators_weights_are_as_before() -> None:
    with_labels, without = (
        Critics(SETTINGS, classes=2),
        Critics(replace(SETTINGS, label_weight=0.0, view_sectors=0)),
    )
    expected, value = without.state_dict(), with_labels.state_dict()
    assert without.labels(draw_request(PLAIN, SETTINGS, step=1, what="", device="cpu", batch=1)) is None
    assert all(torch.equal(value[name], part) for name, part in expected.items())
    assert {name.split(".")[1] for name in set(value) - set(expected)} == {"scores"}
