"""Sizes, bytes and times as people type and read them."""

from __future__ import annotations

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import (
    common_root,
    parse_bytes,
    parse_ladder,
    parse_size,
    show_bytes,
    show_choices,
    show_count,
    show_seconds,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512k", 512_000),
        ("1M", 1_000_000),
        ("1.5k", 1_500),
        ("2e3", 2_000),
        ("1_000", 1_000),
        ("10,000", 10_000),
        (" 7 ", 7),
        (42, 42),
        ("0.5M", 500_000),
        ("1.001M", 1_001_000),
        ("2G", 2_000_000_000),
    ],
)
def test_sizes_are_decimal(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["0", "-5", "abc", "", "1.5", "12q", "0.4k0", "k", "nan", "inf", 0, -3, "1e400", "1e9999999"]
)
def test_a_size_that_is_not_a_whole_number_above_0_is_refused(text: str | int) -> None:
    with pytest.raises(BadInput) as caught:
        parse_size(text)
    assert repr(text) in caught.value.what or str(text) in caught.value.what
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["0", "foo", "1.5", "1e400"])
def test_an_error_about_a_size_names_its_option(text: str) -> None:
    with pytest.raises(BadInput, match=f"^--images '{text}' is") as caught:
        parse_size(text, what="--images")
    assert "points" not in caught.value.what and "size" not in caught.value.hint
    with pytest.raises(BadInput, match=f"^The size '{text}' is"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("24GiB", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("8000MiB", 8000 * 2**20),
        ("0.5 gib", 2**29),
        ("100b", 100),
        (123, 123),
    ],
)
def test_binary_and_decimal_byte_units_are_distinguished(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["24", "24G", "GiB", "0GiB", "1e400GiB", "-1GiB", "lots", "", 0, -1])
def test_bytes_without_a_unit_or_amount_are_refused(text: str | int) -> None:
    with pytest.raises(BadInput):
        parse_bytes(text)


def test_a_ladder_is_geometric_and_includes_both_ends() -> None:
    sizes = parse_ladder("1k:16k:5")
    assert sizes == (1_000, 2_000, 4_000, 8_000, 16_000)


def test_a_ladder_over_a_narrow_range_has_no_repeated_sizes() -> None:
    sizes = parse_ladder("2:4:12")
    assert sizes == (2, 3, 4)


def test_a_list_of_sizes_comes_back_sorted_without_repeats() -> None:
    assert parse_ladder("4k,1k,2k,1k") == (1_000, 2_000, 4_000)


@pytest.mark.parametrize("text", ["1M:5k", "5k:5k", "5k:1M:1", "5k:1M:12:3", "5k:", ":5k", "a:b", "5k,,1k"])
def test_a_ladder_that_does_not_increase_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_ladder(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**20, "3.00 MiB"),
        (25_769_803_776, "24.00 GiB"),
        (None, "-"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(count: int | None, text: str) -> None:
    assert show_bytes(count) == text


@pytest.mark.parametrize("size", [1, 999, 1_000, 1_500, 512_000, 999_999, 1_000_000, 1_234_567, 2_500_000])
def test_a_formatted_size_is_parsed_to_itself(size: int) -> None:
    assert parse_size(show_size(size)) == size


def test_a_count_of_one_is_shown_in_the_singular() -> None:
    assert [show_count(value, "picture") for value in (0, 1, 2000)] == [
        "0 pictures",
        "1 picture",
        "2,000 pictures",
    ]


@pytest.mark.parametrize(
    ("time_s", "text"), [(2.5, "2.50 s"), (0.0125, "12.50 ms"), (3.2e-5, "32.0 us"), (None, "-")]
)
def test_times_are_shown_in_a_readable_unit(time_s: float | None, text: str) -> None:
    assert show_seconds(time_s) == text


def test_choices_are_listed_with_or_before_the_last() -> None:
    assert [show_choices(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a or b",
        "a, b or c",
    ]


def test_the_root_of_modules_is_left_out_only_if_it_is_the_same_for_all() -> None:
    assert common_root(["Net.a.b", "Net", "", "Net.c"]) == "Net."
    assert common_root(["Net.a", "Other.a"]) == common_root(["Net"]) == common_root([]) == ""
    assert common_root(["Sequential.0", "Sequential.*.mlp"]) == ""
