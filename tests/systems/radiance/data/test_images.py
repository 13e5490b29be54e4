"""Images of datasets and folders: pixels are read as written, and unusable folders are refused."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="images are held as tensors")
Image = pytest.importorskip("PIL.Image", reason="image files are pillow's")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.common.data import dataset_folder as folder_module  # noqa: E402
from pinchpoint.systems.radiance.data import images as images_module  # noqa: E402
from pinchpoint.systems.radiance.data.dataset import make_dataset  # noqa: E402
from pinchpoint.systems.radiance.data.images import from_bytes, open_images, to_bytes  # noqa: E402
from pinchpoint.systems.radiance.data.workers import make  # noqa: E402


def noise(count: int, high: int = 8, wide: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, high, wide, 3), dtype=np.uint8)


def write_images(folder: Path, pixels: np.ndarray) -> Path:
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(folder / f"{number:04d}.png")
    return folder


def test_images_of_a_folder_and_its_subfolders_are_sorted_by_name(tmp_path: Path) -> None:
    pixels = noise(3)
    write_images(tmp_path, pixels[:2])
    (tmp_path / "more").mkdir()
    Image.fromarray(pixels[2]).save(tmp_path / "more" / "X.PNG")
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    (tmp_path / "index.json").write_text('["of someone else"]', encoding="utf-8")
    value = open_images(tmp_path)
    assert len(value) == 3 and value.size == 8 and value.skipped == ()
    assert value.pixels.dtype == torch.uint8 and (value.pixels.numpy() == pixels).all()


def test_subfolders_are_classes_if_every_image_is_in_one_of_several(tmp_path: Path) -> None:
    pixels = noise(3)
    for name, part in (("van", pixels[:1]), ("bus", pixels[1:])):
        (tmp_path / name).mkdir()
        write_images(tmp_path / name, part)
    value = open_images(tmp_path)
    assert value.classes == ("bus", "van") and value.labels is not None and value.turns is None
    assert value.labels.tolist() == [0, 0, 1] and (value.pixels.numpy() == pixels[[1, 2, 0]]).all()
    plain = value.keep_labels(classes=False, turns=False)
    assert plain.classes == () and plain.labels is None
    assert open_images(tmp_path / "bus").classes == (), "a single folder is not a class"
    write_images(tmp_path, pixels[:1])
    assert open_images(tmp_path).labels is None, "an image beside the folders has no class"


def test_a_batch_is_between_minus_one_and_one_and_converts_back_to_the_same_bytes(tmp_path: Path) -> None:
    pixels = noise(4)
    pixels[0, 0, 0], pixels[0, 0, 1] = 0, 255
    value = open_images(write_images(tmp_path, pixels))
    batch = value.batch([2, 0])
    assert (
        batch.shape == (2, 3, 8, 8)
        and batch[1, :, 0, 0].tolist() == [-1] * 3
        and batch[1, :, 0, 1].tolist() == [1] * 3
    )
    assert torch.equal(batch, value.batch(torch.tensor([2, 0])))
    assert (to_bytes(batch).numpy() == pixels[[2, 0]]).all()
    every = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    assert torch.equal(to_bytes(from_bytes(every)), every)


def test_with_a_size_images_are_cropped_to_the_centre_and_scaled(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = (200, 100, 50)  # the middle square
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2).copy()).save(tmp_path / "high.png")
    value = open_images(tmp_path, size=5)
    assert value.pixels.shape == (2, 5, 5, 3)
    assert (value.pixels == torch.tensor([200, 100, 50], dtype=torch.uint8)).all()


def test_transparent_pixels_become_white_or_black_and_grey_images_get_three_channels(tmp_path: Path) -> None:
    clear = np.zeros((4, 4, 4), dtype=np.uint8)
    clear[0, 0] = (10, 20, 30, 255)
    Image.fromarray(clear).save(tmp_path / "a.png")
    Image.fromarray(np.full((4, 4), 77, dtype=np.uint8)).save(tmp_path / "b.png")
    value, dark = (open_images(tmp_path, white=white).pixels for white in (True, False))
    assert value[0, 0, 0].tolist() == [10, 20, 30] and (value[0, 1:] == 255).all()
    assert torch.equal(dark[0, 0, 0], value[0, 0, 0]) and (dark[0, 1:] == 0).all()
    assert (value[1] == 77).all()


def test_images_of_several_sizes_are_refused_and_named(tmp_path: Path) -> None:
    write_images(tmp_path, noise(2))
    Image.fromarray(noise(1, 6, 6)[0]).save(tmp_path / "other.png")
    with pytest.raises(BadInput, match=r"(?s)several sizes: 0000.png is 8 x 8, other.png is 6 x 6.*--size"):
        open_images(tmp_path)


def test_images_that_are_not_square_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"(?s)0000.png is 9 x 6, not square.*--size"):
        open_images(write_images(tmp_path, noise(2, 6, 9)))


def write_broken(folder: Path, count: int) -> None:
    whole = (folder / "0000.png").read_bytes()
    for number in range(count):
        (folder / f"broken{number}.png").write_bytes(
            (whole[:60], b"", b"text", whole[: len(whole) // 2])[number % 4]
        )


def test_a_few_broken_images_are_skipped_and_named(tmp_path: Path) -> None:
    pixels = noise(60)
    write_images(tmp_path, pixels)
    write_broken(tmp_path, 3)
    value = open_images(tmp_path)
    assert len(value) == 60 and (value.pixels.numpy() == pixels).all()
    assert [text.partition(":")[0] for text in value.skipped] == ["broken0.png", "broken1.png", "broken2.png"]


def test_a_folder_with_many_broken_images_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, noise(60))
    write_broken(tmp_path, 4)
    message = (
        r"4 of the 64 images .* cannot be used, more than 5%: broken0.png: .*; broken1.png: .*; "
        r"broken2.png: .*; and 1 more\.\n"
    )
    with pytest.raises(BadInput, match=message):
        open_images(tmp_path)
    (tmp_path / "0000.png").unlink()
    (tmp_path / "broken3.png").unlink()
    (tmp_path / "broken2.png").unlink()
    for number in range(1, 30):
        (tmp_path / f"{number:04d}.png").unlink()
    with pytest.raises(BadInput, match=r"2 of the 32 .*: broken0.png: .*; broken1.png: [^;]*\n"):
        open_images(tmp_path)


def test_gif_and_tiff_images_are_read(tmp_path: Path) -> None:
    palette = np.zeros((4, 4, 3), dtype=np.uint8)
    palette[:2], palette[2:] = (250, 10, 20), (30, 200, 40)
    Image.fromarray(palette).save(tmp_path / "a.gif")
    Image.fromarray(noise(1, 4, 4)[0]).save(tmp_path / "b.tif")
    Image.fromarray(noise(1, 4, 4)[0]).save(tmp_path / "c.TIFF", format="TIFF", compression="tiff_lzw")
    value = open_images(tmp_path).pixels.numpy()
    assert (value == np.stack([palette, noise(1, 4, 4)[0], noise(1, 4, 4)[0]])).all()


@pytest.mark.parametrize(
    ("suffix", "reason"), [(".gif", "2 frames"), (".tiff", "2 frames"), (".HEIC", "heic")]
)
def test_animations_several_pages_and_other_formats_are_named(
    tmp_path: Path, suffix: str, reason: str
) -> None:
    first, second = (Image.fromarray(one) for one in noise(2))
    file = tmp_path / f"other{suffix}"
    if suffix == ".HEIC":
        file.write_bytes(b"heic")
    else:
        first.save(file, save_all=True, append_images=[second])
    with pytest.raises(BadInput, match=rf"1 of the 1 .*other{suffix}: .*{reason}"):
        open_images(tmp_path)
    value = open_images(write_images(tmp_path, noise(20)))
    assert len(value) == 20 and f"other{suffix}" in value.skipped[0] and reason in value.skipped[0]


def test_hidden_files_and_files_in_hidden_folders_are_ignored(tmp_path: Path) -> None:
    pixels = noise(2)
    write_images(tmp_path, pixels)
    (tmp_path / "._0000.png").write_bytes(b"of macOS")
    (tmp_path / ".trash").mkdir()
    Image.fromarray(pixels[0]).save(tmp_path / ".trash" / "old.png")
    value = open_images(tmp_path)
    assert not value.skipped and (value.pixels.numpy() == pixels).all()
    hidden_folder = tmp_path / ".trash"
    assert len(open_images(hidden_folder)) == 1, "a hidden folder is read if it is requested itself"


DEEP = np.array([[0, 257, 258, 385], [386, 32767, 32896, 65535]] * 2, dtype=np.uint16)
SHALLOW = np.array([[0, 1, 1, 1], [2, 127, 128, 255]] * 2, dtype=np.uint8)  # 65535 scaled to 255 and rounded


@pytest.mark.parametrize(
    ("kind", "mode", "format"),
    [("<u2", "I;16", "PNG"), (">u2", "I;16B", "TIFF"), ("<i4", "I", "TIFF")],
)
def test_16_bit_grey_is_scaled_to_8_bits(tmp_path: Path, kind: str, mode: str, format: str) -> None:
    file = tmp_path / "deep.png"
    Image.fromarray(DEEP.astype(kind)).save(file, format=format)
    with Image.open(file) as opened:
        assert opened.mode == mode
    value = open_images(tmp_path).pixels.numpy()
    assert (value == SHALLOW[None, :, :, None]).all()


def test_transparent_pixels_of_16_bit_grey_become_white_or_black(tmp_path: Path) -> None:
    Image.fromarray(DEEP).save(tmp_path / "deep.png", transparency=32767)
    for white, behind in ((True, 255), (False, 0)):
        expected = np.where(DEEP == 32767, behind, SHALLOW)
        assert (open_images(tmp_path, white=white).pixels.numpy() == expected[None, :, :, None]).all()


def test_floating_point_and_32_bit_images_count_as_broken(tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)).save(
        tmp_path / "real.png", format="TIFF"
    )
    Image.fromarray(np.full((4, 4), 65536, dtype=np.int32)).save(tmp_path / "vast.png", format="TIFF")
    with pytest.raises(
        BadInput, match=r"real\.png: .* floating-point .*; vast\.png: .* 65536, beyond 16 bits"
    ):
        open_images(tmp_path)


def test_a_folder_of_one_broken_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with pytest.raises(BadInput, match="1 of the 1 images"):
        open_images(tmp_path)


def test_empty_and_missing_folders_and_run_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain any images"):
        open_images(tmp_path)
    with pytest.raises(BadInput, match="is not a folder"):
        open_images(tmp_path / "none")
    with pytest.raises(BadInput, match="size is 0 pixels"):
        open_images(tmp_path, size=0)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="the folder of a run"):
        open_images(tmp_path)


def test_images_that_do_not_fit_in_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, noise(4))
    monkeypatch.setattr(images_module, "free_bytes", lambda: 4 * 8 * 8 * 3 - 1)
    with pytest.raises(BadInput, match="4 images of 8 x 8 take"):
        open_images(tmp_path)


def test_our_own_data_sets_open_as_images_at_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        folder_module,
        "run_workers",
        lambda program, orders, jobs: ((order, make(vars(order).copy())) for order in orders),
    )
    result = make_dataset(tmp_path, images=3, size=16)
    assert (open_images(tmp_path).pixels.numpy() == result.pixels()).all()
    turns = open_images(tmp_path).turns
    assert turns is not None and np.allclose(turns, result.factors()[:, result.factors_are.index("u")])
    small = open_images(tmp_path, size=8).pixels.float().numpy()
    boxes = result.pixels().reshape(3, 8, 2, 8, 2, 3).mean(axis=(2, 4))
    assert small.shape == boxes.shape and np.abs(small - boxes).mean() < 6  # another filter, the same picture


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, noise(1))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Missing, match=r"pinchpoint\[radiance\]"):
        open_images(tmp_path)


def test_an_image_that_claims_absurd_sides_is_skipped_before_memory_is_taken(tmp_path: Path) -> None:
    write_images(tmp_path, noise(30))
    head = b"IHDR" + struct.pack(">IIBBBBB", 2_000_000, 2_000_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    assert "huge.png" in open_images(tmp_path).skipped[0]
