"""Cards: real GPUs and the user's own; everything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import GIB, MIB
from pinchpoint.forecasting.cards import (
    Card,
    assumption,
    card,
    cards,
    cublas_workspace,
    estimated_context,
)


def test_the_table_runs_from_4_to_192_gb() -> None:
    sizes = [c.memory_bytes for c in cards().values()]
    assert sizes == sorted(sizes)
    assert 3 * GIB < sizes[0] < 4 * GIB
    assert 170 * GIB < sizes[-1] < 192 * GIB
    assert len(sizes) >= 20


@pytest.mark.parametrize("found", cards().values(), ids=lambda c: c.name)
def test_no_card_has_more_memory_than_its_nominal_size(found: Card) -> None:
    box = float(found.title.split()[-2]) * GIB  # "... 24 GB" means at most 24 GiB of memory chips
    assert 0.9 * box < found.memory_bytes < box
    assert found.name == found.name.lower()


@pytest.mark.parametrize("found", cards().values(), ids=lambda c: c.name)
def test_workspaces_are_the_defaults_torch_uses_for_the_capability(found: Card) -> None:
    assert found.cublas_workspace_bytes == cublas_workspace(found.capability)
    assert found.cublaslt_workspace_bytes == MIB
    assert 64 * MIB < found.context_bytes <= found.context_high_bytes < 1.25 * GIB


def test_workspace_sizes_are_the_sums_of_torchs_configuration_strings() -> None:
    assert (
        cublas_workspace((8, 9))
        == sum(kib * 1024 * count for kib, count in ((4096, 2), (16, 8)))
        == 8_519_680
    )
    assert cublas_workspace((9, 0)) == 4096 * 1024 * 8 == 33_554_432


# MiB that processes took beside torch's allocator: NVML's figure for the process minus what torch reserved,
# from the out-of-memory messages that torch prints; on the H200, driver minus reserved of accuracy_h200.json.
OBSERVED = {
    "t4": (127, 132, 147),
    "rtx3060": (106, 123),
    "rtx2080ti": (197,),
    "a4000": (210,),
    "rtx4080": (349,),
    "a10g": (307,),
    "rtx3090": (307, 353, 420),
    "rtx4090": (440, 461, 473, 504, 561),
    "rtx5090": (500, 595, 672),
    "rtx6000ada": (429,),
    "v100-16": (456,),
    "a100-40": (491, 502, 504, 543, 642),
    "a100-80": (522, 522),
    "h100": (666,),
    "h200": (641, 751, 769),
}


def test_only_cards_with_an_observed_context_name_a_source() -> None:
    assert {c.name for c in cards().values() if not c.estimated} == set(OBSERVED)
    assert all("MiB" in card(name).context_source for name in OBSERVED)


def test_observed_contexts_are_covered_by_the_high_end_and_by_the_estimate_from_the_processors() -> None:
    for name, contexts in OBSERVED.items():
        found = card(name)
        _, high = estimated_context(found.capability, found.processors)
        assert min(contexts) * MIB <= found.context_bytes <= max(contexts) * MIB, name
        assert max(contexts) * MIB <= min(high, found.context_high_bytes), name


def test_estimated_contexts_are_close_to_the_observed_ones() -> None:
    for name, contexts in OBSERVED.items():
        usual, _ = estimated_context(card(name).capability, card(name).processors)
        assert 0.85 * min(contexts) * MIB < usual < 1.25 * max(contexts) * MIB, name


def test_the_high_end_of_the_context_decides_what_is_usable() -> None:
    found = card("rtx3060")
    assert (
        found.usable_bytes == found.memory_bytes - found.context_high_bytes < found.memory_bytes - 160 * MIB
    )


def test_laptop_cards_have_their_own_entries() -> None:
    laptop = card("RTX 3060 Laptop")
    assert (laptop.name, laptop.processors) == ("rtx3060-laptop", 30)
    assert 5 * GIB < laptop.memory_bytes < 6 * GIB < card("rtx3060").memory_bytes


@pytest.mark.parametrize("text", ["rtx4090", "RTX4090", "RTX 4090", "rtx_4090"])
def test_a_card_is_found_whatever_the_spacing_of_its_name(text: str) -> None:
    assert card(text).name == "rtx4090"


@pytest.mark.parametrize(
    ("text", "count"),
    [("24GiB", 24 * GIB), ("24GB", 24 * 10**9), ("8000MiB", 8000 * MIB), ("1.5 gib", 1_610_612_736)],
)
def test_a_number_of_bytes_gives_a_nameless_card(text: str, count: int) -> None:
    matches = card(text)
    assert (matches.name, matches.memory_bytes) == (text, count)
    assert matches.context_bytes == card("h200").context_bytes
    assert matches.cublas_workspace_bytes == 32 * MIB


def test_what_is_assumed_of_a_card_of_bytes_is_said_unless_it_is_given() -> None:
    assert "24GiB is taken to be a card like the h200" in (assumption(card("card:24GiB")) or "")
    for name in ("24GiB like rtx4090", "rtx4090"):
        assert assumption(card(name)) is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rtx409", "rtx4090"),
        ("4090", "rtx4090"),
        ("a100", "a100-40 or a100-80"),
        ("h20", "h200"),
        ("24", "24GiB"),
        ("", "24GiB"),
    ],
)
def test_an_unknown_card_is_refused_with_similar_names(text: str, hint: str) -> None:
    with pytest.raises(BadInput, match="There is no card") as caught:
        card(text)
    assert hint in caught.value.hint


def test_a_card_with_zero_bytes_is_refused() -> None:
    with pytest.raises(BadInput):
        card("0GiB")


def test_a_users_file_adds_and_replaces_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {
                "rtx9000": {"memory": "47.5GiB", "capability": [12, 0], "context": 600 * MIB},
                "h200": {"memory": "100GiB"},
            }
        ),
        encoding="utf-8",
    )
    monkeypatch.setenv("PINCHPOINT_CARDS", str(path))
    mine = card("rtx9000")
    assert (mine.memory_bytes, mine.context_bytes, mine.cublas_workspace_bytes) == (
        int(47.5 * GIB),
        600 * MIB,
        32 * MIB,
    )
    assert card("h200").memory_bytes == 100 * GIB
    assert "rtx4090" in cards()


def test_a_card_file_in_the_configuration_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pinchpoint").mkdir()
    (tmp_path / "pinchpoint" / "cards.json").write_text('{"tiny": {"memory": "2GiB"}}', encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert next(iter(cards())) == "tiny"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"x": 3}', "a card x without memory"),
        ('{"x": {"title": "X"}}', "a card x without memory"),
        ('{"x": {"memory": "24"}}', "x, memory: '24' is not a number of bytes"),
        ('{"x": {"memory": true}}', "x, memory"),
        ('{"x": {"memory": -5}}', "x, memory"),
        ('{"x": {"memory": "1GiB", "memroy": 3}}', "unknown fields of x: memroy"),
        ('{"x": {"memory": "1GiB", "capability": "8.9"}}', "capability"),
        ('{"x": {"memory": "1GiB", "processors": 0}}', "processors"),
        ('{"x": {"memory": "1GiB", "context": "2MiB", "context_high": "1MiB"}}', "context_high is below"),
        ('{"My Card": {"memory": "1GiB"}}', "card named 'My Card'"),
    ],
)
def test_a_damaged_card_file_is_refused_by_name(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PINCHPOINT_CARDS", str(path))
    with pytest.raises(BadInput) as caught:
        cards()
    assert says in caught.value.what
    assert "mine.json" in caught.value.what


def test_a_named_card_file_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINCHPOINT_CARDS", str(tmp_path / "none.json"))
    with pytest.raises(BadInput, match=r"none\.json"):
        cards()
