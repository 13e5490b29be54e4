"""Numbers to text and back: as Python prints and reads them one by one, for any float64."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.systems.density.files.number_parsing import NotNumbers, parse_any, parse_numbers
from pinchpoint.systems.density.files.number_printing import format_lines


def printed(value: float, wide: bool = False) -> str:
    """Fortran's E17.11, by Python's own correctly rounded printing."""
    mantissa, _, power = f"{abs(value):.10E}".partition("E")
    exponent = int(power) + 1 if value else 0
    sign = "-" if np.signbit(value) else "0"
    digits = mantissa.replace(".", "")
    return f" {sign}.{digits}E{'-' if exponent < 0 else '+'}{abs(exponent):0{3 if wide else 2}d}"


def text_of(values: np.ndarray, per_line: int = 5) -> bytes:
    return format_lines(values.reshape(1, -1), per_line=per_line)


def bits(values: np.ndarray | list[float]) -> list[int]:
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


def octets(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


EDGES = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        10.0,
        1e10,
        1e11,
        1e12,
        99999999999.5,
        0.999999999995,
        9.99999999995,
        1.000000000005,
        5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        1e-99,
        9.9999999999e98,
        9.99999999999e98,
        1e-100,
        1e22,
        1e23,
        1e-11,
        1e-12,
    ]
)


@pytest.mark.parametrize("seed", range(4))
def test_every_float_is_printed_as_python_rounds_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice([-1.0, 1.0], 3000) * rng.random(3000) * 10.0 ** rng.integers(-94, 98, 3000)
    values[:2] = 0.0, -0.0
    assert text_of(values, per_line=3000).decode() == "".join(map(printed, values)) + "\n"


def test_ties_and_near_ties_are_rounded_as_python_does() -> None:
    # Halves of the eleventh digit that float64 holds exactly, and their neighbours on both sides.
    ties = np.array(
        [12345678901.5, 12345678902.5, 1234567890.125, 10000000000.5, 99999999999.5, 0.5 + 2**-35]
    )
    values = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])
    assert text_of(values, per_line=len(values)).decode() == "".join(map(printed, values)) + "\n"


def test_an_exponent_of_three_digits_widens_every_field_and_keeps_its_e() -> None:
    text = text_of(EDGES, per_line=len(EDGES)).decode()
    assert text == "".join(printed(value, wide=True) for value in EDGES) + "\n"
    assert b"E-100" in text_of(np.array([1e-101, 1.0]))


@pytest.mark.parametrize(("low", "high"), [(-300, 30), (-12, 12), (-3, 3)])
@pytest.mark.parametrize("count", [1, 4, 5, 6, 1000, 20_001])
def test_text_is_read_as_python_reads_each_number(low: int, high: int, count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.choice([-1.0, 1.0, 1.0], count) * rng.random(count) * 10.0 ** rng.integers(low, high, count)
    values[rng.random(count) < 0.05] = 0.0
    values[rng.random(count) < 0.05] = -0.0
    text = text_of(values)
    read, end = parse_numbers(octets(text), count)
    assert end == len(text)
    assert bits(read) == bits([float(word) for word in text.split()])
    assert text_of(read) == text


@pytest.mark.parametrize("form", ["%18.10E", " %.11E", "%21.12E", "%17.8E", "%13.5E", " %.17g", "%19.11e"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", " \n"])
def test_other_layouts_give_the_same_numbers(form: str, ending: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=47) * 10.0 ** rng.integers(-6, 6, 47)
    words = [form % value for value in values]
    text = "".join("".join(words[i : i + 5]) + ending for i in range(0, 47, 5)).encode()
    read, end = parse_numbers(octets(text + b"augmentation"), 47)
    assert end == len(text)
    assert bits(read) == bits([float(word) for word in text.split()])


def test_fortran_forms_are_read() -> None:
    text = b" 0.12345678901-100 -.5D+01 .25d-2 -0.1E-101 7 +3.\n"
    assert parse_any(octets(text), 6).tolist() == [0.12345678901e-100, -5.0, 0.0025, -0.1e-101, 7.0, 3.0]
    mixed = (" 0.12345678901E+01" * 5 + "\n" + " 0.12345678901-100" * 5 + "\n").encode()
    assert parse_numbers(octets(mixed), 10)[0].tolist() == [1.2345678901] * 5 + [0.12345678901e-100] * 5


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("*****************", "too large for its column"),
        ("              NaN", "not a number"),
        ("         Infinity", "expected a number, but found"),
        ("0.1234567890xE+01", "expected a number, but found"),
        ("0.12345678901E)01", "expected a number, but found"),
        ("0.12345678901E/01", "expected a number, but found"),
        ("0.12345678901F+01", "expected a number, but found"),
        ("0.12345678901E+:1", "expected a number, but found"),
        ("0.1234567:901E+01", "expected a number, but found"),
        ("0.12345-78901E+01", "expected a number, but found"),
        ("0,12345678901E+01", "expected a number, but found"),
        ("x.12345678901E+01", "expected a number, but found"),
        ("0.1234567.901E+01", "expected a number, but found"),
        ("1.0E+999         ", "too large for float64"),
    ],
)
@pytest.mark.parametrize("at", [0, 7, 24])
def test_what_is_no_number_is_named_with_its_place(word: str, why: str, at: int) -> None:
    fields = [" 0.12345678901E+01"] * 25
    fields[at] = " " + word
    text = "".join("".join(fields[i : i + 5]) + "\n" for i in range(0, 25, 5)).encode()
    with pytest.raises(NotNumbers, match=why) as caught:
        parse_numbers(octets(text), 25)
    assert text[caught.value.at :].startswith(word.strip().encode())


def test_too_few_and_too_many_numbers_are_counted() -> None:
    with pytest.raises(NotNumbers, match="there are 10 numbers, but 12 are expected"):
        parse_numbers(octets(text_of(np.ones(10))), 12)
    with pytest.raises(NotNumbers, match="there are 5 numbers, but 4 are expected"):
        parse_numbers(octets(text_of(np.ones(5))), 4)
    with pytest.raises(NotNumbers, match="blank line"):
        parse_numbers(octets(b"\n 1.0\n"), 1)


@pytest.mark.parametrize("count", [1, 5, 12, 9_000])
def test_rows_of_several_chunks_are_printed_one_after_another(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(20_000 // count, count))
    lines = [row[i : i + 5] for row in values for i in range(0, count, 5)]
    wanted = "".join("".join(map(printed, line)) + "\n" for line in lines)
    assert format_lines(values, per_line=5) == wanted.encode()


def test_no_numbers_are_no_text() -> None:
    assert format_lines(np.empty((0, 5)), per_line=5) == format_lines(np.empty((3, 0)), per_line=5) == b""
