"""Files that claim absurd counts, or that hold something else, are refused before memory is taken."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pinchpoint.systems.common.data import sample_file
from pinchpoint.systems.common.data.sample_file import FAILURES, load_npz, pack_arrays, unpack_arrays


def npz_of(shape: tuple[int, ...], held: int = 24) -> io.BytesIO:
    """An npz file whose only array claims a shape and holds a few bytes."""
    member, file = io.BytesIO(), io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xyz.npy", member.getvalue() + bytes(held))
    file.seek(0)
    return file


def test_an_array_that_claims_more_than_the_file_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"xyz.npy claims 24,000,000,000,000,000 bytes in its header, but"):
        load_npz(npz_of((10**15, 3)))
    assert load_npz(npz_of((1, 3)))["xyz"].shape == (1, 3)


def test_what_was_packed_is_unpacked_and_other_bytes_fail_in_a_known_way() -> None:
    arrays, about = unpack_arrays(pack_arrays({"xyz": np.ones((2, 3))}, {"name": "a"}))
    assert (arrays["xyz"].shape, about) == ((2, 3), {"name": "a"})
    for data in (b"", b"not a zip", npz_of((2, 3), held=48).getvalue()):
        with pytest.raises(FAILURES):
            unpack_arrays(data)


def test_members_that_are_no_arrays_are_bytes(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state.json", "{}")
    assert load_npz(path) == {"state.json": b"{}"}


def test_a_member_that_claims_more_than_its_compressed_bytes_can_hold_is_refused() -> None:
    file = npz_of((10**9,), held=0)
    data = bytearray(file.getvalue())
    at = data.index(b"PK\x01\x02")  # the directory: the size without compression is at 24
    data[at + 24 : at + 28] = (2**32 - 2).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"xyz\.npy claims more bytes than it can hold"):
        load_npz(io.BytesIO(data))


def test_arrays_that_do_not_fit_into_the_free_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_file, "free_bytes", lambda: 100)
    with pytest.raises(ValueError, match=r"its arrays need .* bytes, but only 100 bytes of memory are free"):
        load_npz(npz_of((1, 3)))


@pytest.mark.parametrize(
    "header", [b"(((((", b"{'descr': '<f8', 'shape': (1" + b"0" * 400 + b",)}", b"\0" * 40]
)
def test_any_header_fails_in_a_known_way_and_shortly(header: bytes) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(FAILURES) as error:
        load_npz(file)
    assert len(str(error.value)) <= 200


def test_a_large_archive_of_a_few_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", xyz=np.zeros((40_000, 3)))
    assert load_npz(tmp_path / "bomb.npz")["xyz"].shape == (40_000, 3)  # small, whatever its ratio
    monkeypatch.setattr(sample_file, "_LARGE", 500_000)
    with pytest.raises(ValueError, match=r"its [\d,]+ bytes expand to 960,128 bytes"):
        load_npz(tmp_path / "bomb.npz")
    np.savez(tmp_path / "plain.npz", xyz=np.zeros((40_000, 3)))
    assert load_npz(tmp_path / "plain.npz")["xyz"].shape == (40_000, 3)
