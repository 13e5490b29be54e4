"""Groups of devices in XLA's three ways of writing them."""

from __future__ import annotations

import pytest

from pinchpoint.backends.jax.sharded.communicators import nccl_bytes, read_groups

PAIRS = {(0, 1), (2, 3), (4, 5), (6, 7)}
STRIDED = {(0, 2, 4, 6), (1, 3, 5, 7)}


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", PAIRS),
        ("[4,2]<=[8]", PAIRS),
        ("[2,4]<=[4,2]T(1,0)", STRIDED),
        ("mesh['a'=4,'b'=2] {'b'}", PAIRS),
        ("mesh['a'=4,'b'=2] {'a'}", STRIDED),
        ("mesh['a'=4,'b'=2] {'a','b'}", {tuple(range(8))}),
    ],
)
def test_groups_are_read(text: str, groups: set[tuple[int, ...]]) -> None:
    assert read_groups(text) == {frozenset(group) for group in groups}


def test_a_device_has_a_communicator_for_each_of_its_groups() -> None:
    pairs, strided = read_groups("[4,2]<=[8]"), read_groups("[2,4]<=[4,2]T(1,0)")
    assert nccl_bytes([pairs, strided], 8).usual == 2 * nccl_bytes([pairs], 8).usual > 0
    assert nccl_bytes([frozenset()], 8) == nccl_bytes([pairs], 8)
    assert nccl_bytes([], 8).most == 0
