"""Folders of .npy files: read as one scene, written completely, and rejected if files are missing or differ
in length.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.cloud.files.pointcept import read_folder, write_folder

COORD = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_arrays(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def test_a_folder_is_read_as_one_scene(tmp_path: Path) -> None:
    segment = np.array([[3], [-1], [0], [1]], dtype=np.int16)
    scene = read_scene(
        write_arrays(
            tmp_path / "scene0000_00",
            coord=COORD,
            color=np.full((4, 3), 51, np.uint8),
            segment200=np.arange(4),
            segment20=segment,
            instance=np.arange(4),
            normal=COORD / 9,
            opacity=np.ones((4, 1)),
            quat=np.ones((4, 4)),
        )
    )
    assert scene.name == "scene0000_00" and np.array_equal(scene.xyz, COORD)
    assert scene.names == (
        "red",
        "green",
        "blue",
        "opacity",
        "rot_0",
        "rot_1",
        "rot_2",
        "rot_3",
        "nx",
        "ny",
        "nz",
    )
    assert np.allclose(scene.features[:, 0], 0.2)
    assert scene.labels is not None and scene.labels.tolist() == [3, -1, 0, 1]


def test_a_scenesplat_folder_has_the_inputs_of_its_splat_and_not_its_language_features(
    tmp_path: Path,
) -> None:
    """The same Gaussians as a splat PLY, a gsplat npz and a SceneSplat folder are the same scene."""
    rng = np.random.default_rng(0)
    term, logit, log_scale, quat = (
        rng.standard_normal((9, width)).astype(np.float32) for width in (3, 1, 3, 4)
    )
    xyz = rng.standard_normal((9, 3)).astype(np.float32)
    opacity = 1 / (1 + np.exp(-logit[:, 0]))
    unit = quat / np.linalg.norm(quat, axis=1, keepdims=True) * np.sign(quat[:, :1])
    colour = np.clip(0.5 + term / (2 * np.sqrt(np.pi)), 0, 1)
    folder = write_arrays(
        tmp_path / "scene",
        coord=xyz,
        color=np.rint(colour * 255).astype(np.uint8),
        opacity=opacity,
        scale=np.exp(log_scale),
        quat=unit,
        lang_feat=rng.standard_normal((9, 768)).astype(np.float16),
        valid_feat_mask=np.arange(9) % 2 == 0,
        pc_coord=rng.standard_normal((20, 3)),
        pc_segment=np.zeros(20, int),
    )
    np.savez(
        tmp_path / "splat.npz",
        means=xyz,
        quats=3 * quat,
        scales=log_scale,
        opacities=logit[:, 0],
        sh0=term[:, None],
        shN=rng.standard_normal((9, 15, 3)),
    )
    zeros = {name: np.zeros(9) for name in ("nx", "ny", "nz")}
    columns = dict(zip("xyz", xyz.T, strict=True)) | zeros
    columns |= {f"f_dc_{n}": term[:, n] for n in range(3)} | {f"f_rest_{n}": term[:, 0] for n in range(45)}
    columns |= {"opacity": logit[:, 0]} | {f"scale_{n}": log_scale[:, n] for n in range(3)}
    columns |= {f"rot_{n}": quat[:, n] for n in range(4)}
    header = "".join(f"property float {name}\n" for name in columns)
    (tmp_path / "splat.ply").write_bytes(
        f"ply\nformat binary_little_endian 1.0\nelement vertex 9\n{header}end_header\n".encode()
        + np.stack(list(columns.values()), axis=1).astype("<f4").tobytes()
    )
    scenes = [read_scene(folder), read_scene(tmp_path / "splat.npz"), read_scene(tmp_path / "splat.ply")]
    rotations, scales = [f"rot_{n}" for n in range(4)], [f"scale_{n}" for n in range(3)]
    truth = np.concatenate([colour, opacity[:, None], log_scale, unit], axis=1)
    for scene in scenes:
        assert scene.names == ("red", "green", "blue", "opacity", *scales, *rotations)
        assert np.allclose(scene.features[:, 3:], truth[:, 3:], atol=1e-5)
        assert np.allclose(scene.features[:, :3], truth[:, :3], atol=1 / 255)
    assert [scene.unused for scene in scenes] == [("lang_feat", "valid_feat_mask"), (), ()]


def test_language_features_stored_once_each_do_not_stop_a_scene_from_being_read(tmp_path: Path) -> None:
    folder = write_arrays(
        tmp_path, coord=COORD, lang_feat=np.ones((2, 8)), lang_feat_index=np.array([0, 1, 1, 0])
    )
    scene = read_scene(folder)
    assert scene.names == () and scene.unused == ("lang_feat", "lang_feat_index")
    with pytest.raises(BadInput, match=r"lang_feat\.npy has shape \(2, 8\)"):
        read_folder(folder)


def test_coordinates_alone_are_a_scene(tmp_path: Path) -> None:
    scene = read_scene(write_arrays(tmp_path, coord=COORD))
    assert scene.features.shape == (4, 0) and scene.labels is None


def test_a_folder_is_written_completely_and_never_overwrites_another(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "out", {"coord": COORD, "instance": np.arange(4)})
    assert np.array_equal(read_folder(out)["instance"], np.arange(4))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(BadInput, match="already exists"):
        write_folder(out, {"coord": COORD})


def test_a_folder_that_is_not_a_scene_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no coord\.npy"):
        read_scene(write_arrays(tmp_path / "a", color=COORD))
    with pytest.raises(BadInput, match=r"color\.npy has shape \(3, 3\), but there are 4 points"):
        read_scene(write_arrays(tmp_path / "b", coord=COORD, color=COORD[:3]))
    with pytest.raises(BadInput, match=r"segment\.npy has shape \(5,\)"):
        read_scene(write_arrays(tmp_path / "c", coord=COORD, segment=np.arange(5)))
    folder = write_arrays(tmp_path / "d", coord=COORD)
    (folder / "color.npy").write_bytes(b"\x93NUMPY cut")
    with pytest.raises(BadInput, match=r"Cannot read .*color\.npy"):
        read_scene(folder)
    header = (folder / "coord.npy").read_bytes().replace(b"), }", b"(((((")
    (folder / "color.npy").write_bytes(header)  # numpy's parser fails in its own way
    with pytest.raises(BadInput, match="Cannot read"):
        read_scene(folder)
    np.save(folder / "color.npy", np.array([{}] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="Cannot read"):
        read_scene(folder)
