"""Targets: resolving what the user typed, with an error for every kind of mistake."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pinchpoint.core.discovery import find_workloads
from pinchpoint.core.errors import BadInput, Missing, TargetFailed
from pinchpoint.core.targets import find, framework_of, likely_framework, load
from pinchpoint.core.workload import Case, Variant, Workload


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; additions of targets to the import path and to sys.modules are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")


def test_a_factory_in_a_file_is_found_and_loaded(folder: Path) -> None:
    write(folder, "mine.py", "def step_of(size, device):\n    return lambda: size")
    target = find("mine.py:step_of")
    assert (target.kind, target.name) == ("object", "step_of")
    factory = load(target)
    assert callable(factory)
    assert factory(7, "cpu")() == 7


def test_a_file_may_import_its_neighbours(folder: Path) -> None:
    write(folder, "neighbour_of_mine.py", "WIDTH = 3")
    write(
        folder,
        "mine_with_neighbour.py",
        "from neighbour_of_mine import WIDTH\ndef step_of(size, device): return WIDTH",
    )
    assert load(find("mine_with_neighbour.py:step_of"))(1, "cpu") == 3  # type: ignore[operator]


def test_a_file_with_the_name_of_an_installed_module_does_not_replace_it(folder: Path) -> None:
    import json

    write(folder, "json.py", "def step_of(size, device): return 'mine'")
    assert load(find("json.py:step_of"))(1, "cpu") == "mine"  # type: ignore[operator]
    assert sys.modules["json"] is json


def test_finding_a_target_does_not_import_it(folder: Path) -> None:
    write(folder, "boom.py", "raise RuntimeError('imported')")
    assert find("boom.py:step_of").kind == "object"
    assert find("boom.py").kind == "script"


def test_a_module_on_the_path_is_a_target(folder: Path) -> None:
    (folder / "mypackage").mkdir()
    write(folder, "mypackage/__init__.py", "")
    write(folder, "mypackage/work.py", "def step_of(size, device): return size")
    sys.path.insert(0, str(folder))
    assert load(find("mypackage.work:step_of"))(5, "cpu") == 5  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "There is no target"),
        ("none.py", "The file none.py does not exist"),
        ("none.py:step_of", "The file none.py does not exist"),
        ("no.such.module:step_of", "no module"),
        ("mine.py:other", "no 'other'"),
        ("mine.py:NUMBER", "is a int"),
        ("mine.py", "is a script"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused_with_a_hint(text: str, says: str, folder: Path) -> None:
    write(folder, "mine.py", "NUMBER = 3\ndef step_of(size, device):\n    return lambda: size")
    with pytest.raises(BadInput, match=says) as caught:
        load(find(text))
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_missing_name_is_refused_with_the_existing_names(folder: Path) -> None:
    write(folder, "mine.py", "import os\ndef step_of(size, device): ...\ndef _hidden(): ...")
    with pytest.raises(BadInput) as caught:
        load(find("mine.py:stepof"))
    assert caught.value.hint == "Use one of the names it defines: step_of."


def test_a_target_that_raises_is_reported_with_its_own_line(folder: Path) -> None:
    write(folder, "boom.py", "x = 1\nraise RuntimeError('no data\\nhere')")
    with pytest.raises(TargetFailed) as caught:
        load(find("boom.py:step_of"))
    assert "boom.py:2" in caught.value.what
    assert "no data here" in caught.value.what
    assert "\n" not in caught.value.what


def test_a_target_that_needs_a_missing_package_exits_3(folder: Path) -> None:
    write(folder, "needy.py", "import a_package_nobody_has")
    with pytest.raises(Missing, match="a_package_nobody_has") as caught:
        load(find("needy.py:step_of"))
    assert caught.value.exit_code == 3


def test_shipped_workloads_are_found_by_name() -> None:
    known, _ = find_workloads()
    assert {"field", "orbital"} <= set(known)
    for name, workload in known.items():
        assert workload.name == name
        assert load(find(name)) == workload
        assert find(workload).where == name


def test_a_live_function_becomes_the_address_of_its_file(folder: Path) -> None:
    write(folder, "live.py", "def step_of(size, device):\n    return lambda: size")
    factory = load(find("live.py:step_of"))
    target = find(factory)  # type: ignore[arg-type]
    assert (target.where, target.name) == (str(folder / "live.py"), "step_of")


def test_a_function_that_a_fresh_process_cannot_import_is_refused() -> None:
    def inner(size: int, device: str) -> None: ...

    for thing in (inner, lambda size, device: None):
        with pytest.raises(BadInput, match="fresh process"):
            find(thing)


def test_a_live_workload_in_a_users_file_becomes_its_address(folder: Path) -> None:
    write(
        folder,
        "workload_of_mine.py",
        """
        from pinchpoint import Case, Variant, Workload
        PLAIN = (Variant("plain"),)
        MINE = Workload("mine", "rays", "torch", lambda size, **_: Case(lambda: None, size), PLAIN)
        """,
    )
    workload = load(find("workload_of_mine.py:MINE"))
    assert isinstance(workload, Workload)
    assert find(workload).name == "MINE"


def test_an_unknown_variant_or_mode_is_refused_with_the_known_ones() -> None:
    workload = Workload(
        "w",
        "rays",
        "torch",
        lambda size, **_: Case(lambda: None, size),
        (Variant("a"), Variant("b")),
        modes=("infer",),
    )
    assert workload.variant(None).name == workload.baseline.name == "a"
    with pytest.raises(BadInput, match="no variant 'c'"):
        workload.variant("c")
    with pytest.raises(BadInput, match="no mode 'train'"):
        workload.case(8, device="cpu", mode="train")
    with pytest.raises(BadInput, match="no variants"):
        Workload("w", "rays", "torch", lambda size, **_: Case(lambda: None, size), ())


def test_a_target_is_found_in_the_same_way_in_a_fresh_process(folder: Path) -> None:
    write(folder, "mine.py", "def step_of(size, device):\n    return lambda: size")
    code = "from pinchpoint.core.targets import find, load; print(load(find('mine.py:step_of'))(9, 'cpu')())"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "9"


@pytest.mark.parametrize(
    ("first", "framework"),
    [("import jax", "jax"), ("import torch", "torch"), ("import jax, torch", "jax"), ("", "torch")],
)
def test_the_likely_framework_is_read_from_the_source_of_a_file_or_a_module(
    folder: Path, first: str, framework: str
) -> None:
    """The framework is needed before the import: torch is simulated from a target's first line on."""
    (folder / "package").mkdir()
    write(folder, "package/__init__.py", "raise RuntimeError('imported')")
    write(folder, "package/mine.py", f"{first}\ndef step_of(size, device): ...")
    sys.path.insert(0, str(folder))
    assert likely_framework(find("package/mine.py:step_of")) == framework
    assert likely_framework(find("package.mine:step_of")) == framework


def test_a_jax_script_may_load_its_data_with_torch(folder: Path) -> None:
    write(folder, "loads.py", "import jax\nimport torch\nfrom torch.utils.data import DataLoader")
    write(folder, "trains.py", "import jax\nimport torch\nmodel = torch.nn.Linear(2, 2)")
    assert likely_framework(find("loads.py")) == "jax"
    assert likely_framework(find("trains.py")) == "torch"


def test_the_framework_is_the_declared_one_or_the_one_that_the_module_imports(folder: Path) -> None:
    write(
        folder, "uses_jax.py", "import types\njax = types.ModuleType('jax')\ndef step_of(size, device): ..."
    )
    assert framework_of(load(find("uses_jax.py:step_of"))) == "jax"
    assert {framework_of(workload) for workload in find_workloads()[0].values()} == {"torch", "jax"}
