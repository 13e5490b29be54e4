"""Workloads are found by walking the package and by the entry points of other packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core import discovery
from pinchpoint.core.errors import BadInput, Missing, TargetFailed
from pinchpoint.core.targets import find, likely_framework, load

WORKLOAD = """
from pinchpoint.core.workload import Case, Variant, Workload
def build(size, **options):
    return Case(step=lambda: None, processed=size)
VARIANTS = (Variant("only"),)
WORKLOAD = Workload("{name}", "points", "jax", build, VARIANTS, about="a workload of another package")
"""


def install(folder: Path, package: str, entries: dict[str, str], modules: dict[str, str]) -> None:
    """Write a package with its metadata into a folder on the path."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{discovery.GROUP}]", *lines]) + "\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages that add a workload that works and several that are broken."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(
        tmp_path,
        "goodpack",
        {"good": "goodpack_workload:WORKLOAD"},
        {"goodpack_workload": WORKLOAD.format(name="good")},
    )
    install(
        tmp_path,
        "badpack",
        {
            "raising": "badpack_raises:WORKLOAD",
            "lacking": "badpack_lacks:WORKLOAD",
            "number": "badpack_number:WORKLOAD",
            "renamed": "badpack_renamed:WORKLOAD",
        },
        {
            "badpack_raises": "raise RuntimeError('no luck')",
            "badpack_lacks": "import a_package_that_is_not_installed",
            "badpack_number": "WORKLOAD = 3",
            "badpack_renamed": WORKLOAD.format(name="other"),
        },
    )
    return tmp_path


def loaded_modules() -> set[str]:
    return {name for name in sys.modules if name.startswith(("goodpack", "badpack"))}


@pytest.fixture(autouse=True)
def forget_modules():
    yield
    for name in loaded_modules():
        del sys.modules[name]


def test_every_built_in_workload_has_the_name_of_its_folder() -> None:
    workloads, broken = discovery.find_workloads()
    assert broken == {} and {"field", "orbital"} <= set(workloads)
    assert {name: workload.name for name, workload in workloads.items()} == {name: name for name in workloads}


def test_a_workload_of_another_package_is_found_and_only_it_is_imported(others: Path) -> None:
    target = find("good")
    assert target.kind == "workload" and loaded_modules() == set(), "finding imports nothing"
    assert likely_framework(target) == "torch" and loaded_modules() == set(), "its source shows no framework"
    workload = load(target)
    assert workload.framework == "jax" and loaded_modules() == {"goodpack_workload"}
    assert find(workload) == target, "the live object is found by its name"


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("raising", TargetFailed, "badpack_raises:WORKLOAD raised RuntimeError: no luck"),
        ("lacking", Missing, "a_package_that_is_not_installed is not installed"),
        ("number", BadInput, "is a int, not a Workload"),
        ("renamed", BadInput, "its own name is 'other'"),
    ],
)
def test_a_broken_workload_names_its_package_when_it_is_used(
    others: Path, name: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match="of the package badpack") as caught:
        load(find(name))
    assert text in str(caught.value) and "badpack" in caught.value.hint


def test_the_list_shows_broken_workloads_with_their_errors(others: Path, capsys) -> None:
    assert run(["list", "workloads"]) == 0
    out = capsys.readouterr().out
    assert "good: a workload of another package" in out and "field" in out
    assert "raising: error: The workload 'raising' of the package badpack cannot be loaded" in out
    assert run(["list", "workloads", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["good"]["axis"] == "points" and "no luck" in rows["raising"]["error"]


def test_two_packages_with_the_same_workload_are_refused(others: Path) -> None:
    install(others, "twinpack", {"good": "twinpack_workload:WORKLOAD"}, {})
    with pytest.raises(BadInput, match="more than one package") as caught:
        load(find("good"))
    assert "goodpack" in caught.value.what and "twinpack" in caught.value.what


def test_an_entry_point_does_not_replace_a_built_in_workload(others: Path) -> None:
    install(others, "thiefpack", {"field": "badpack_raises:WORKLOAD"}, {})
    assert load(find("field")) is discovery.load_workload("field")
    assert discovery.entry_module("field") is None and discovery.find_workloads()[0]["field"].axis == "points"
