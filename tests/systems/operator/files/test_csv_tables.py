"""Tables as solvers and spreadsheets export them: each has the same points, pressure and velocity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pinchpoint.systems.operator.files.csv_tables import read_csv, read_text

ROWS = [(0.0, 0.5, 7.0, 1.0, -2.0), (1.0, 0.25, 8.5, 3.0, 0.125)]  # x, y, p, and both components of U


def table(names: list[str], separator: str = ",", *, before: str = "", decimal: str = ".") -> str:
    rows = [separator.join(str(value).replace(".", decimal) for value in row) for row in ROWS]
    return before + "\n".join([separator.join(names), *rows]) + "\n"


@pytest.mark.parametrize(
    ("text", "pressure", "velocity"),
    [
        (table(["x", "y", "p", "U_x", "U_y"]), "p", "U"),
        (
            table(["X (m)", "Y (m)", "Pressure (Pa)", "Velocity[i] (m/s)", "Velocity[j] (m/s)"]),
            "Pressure",
            "Velocity",
        ),
        (
            table(["  x-coordinate", "y-coordinate", "pressure", "x-velocity", " y-velocity"]),
            "pressure",
            "velocity",
        ),
        (table(["Points:0", "Points:1", "p", "U:0", "U:1"]), "p", "U"),
        (
            table(
                ["X [ m ]", "Y [ m ]", "Pressure [ Pa ]", "Velocity u [ m s^-1 ]", "Velocity v [ m s^-1 ]"],
                ", ",
                before="[Name]\nPlane 1\n\n[Data]\n",
            ),
            "Pressure",
            "Velocity",
        ),
        (table(["x", "y", "p", "U_x", "U_y"], ";", decimal=","), "p", "U"),
        (table(["x", "y", "p", "U_x", "U_y"], "\t"), "p", "U"),
        (table(["x", "y", "p", "U_x", "U_y"], "\t", decimal=","), "p", "U"),
        (table(["x", "y", "p", "U_x", "U_y"], "   ", before="# by hand\n"), "p", "U"),
        (table(["x", "y", "p", "U_x", "U_y"], "  ", decimal=","), "p", "U"),
    ],
    ids=[
        *("plain", "star", "fluent", "paraview", "cfx", "decimal comma"),
        *("tabs", "tabs and decimal comma", "spaces", "spaces and decimal comma"),
    ],
)
def test_names_units_and_separators_of_exports_are_understood(
    tmp_path: Path, text: str, pressure: str, velocity: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    arrays = read_csv(tmp_path / "a.csv")
    truth = np.array(ROWS)
    assert set(arrays) == {"points", pressure, velocity}
    assert np.array_equal(arrays["points"], truth[:, :2]) and np.array_equal(arrays[pressure], truth[:, 2])
    assert np.array_equal(arrays[velocity], truth[:, 3:])


def test_units_that_tell_columns_apart_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,p (Pa),p (bar)\n1,2,3,4\n")
    assert set(read_csv(tmp_path / "a.csv")) == {"points", "p (Pa)", "p (bar)"}


def test_a_single_component_and_words_are_not_a_vector(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,U_x,name\n1,2,3,wall\n")
    assert set(read_csv(tmp_path / "a.csv")) == {"points", "U_x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("x,y,p\n", "no rows"),
        ("x,y,p\n1,2,3\n1,2\n", "row 2 has 2 values, not 3"),
        ("x,y,p,p\n1,2,3,4\n", "repeated"),
    ],
)
def test_what_is_not_a_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_csv(tmp_path / "a.csv")


def test_a_table_in_latin_1_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("alpha [\u00b0]".encode("latin-1"))
    assert read_text(tmp_path / "a.csv") == "alpha [\u00b0]"
