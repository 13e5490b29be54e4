"""The conda recipe and the Containerfile agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pinchpoint

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch"}


def requirement(text: str) -> tuple[str, str]:
    """`typer>=0.15` or `typer >=0.15` as ("typer", ">=0.15")."""
    name = re.match(r"[\w.-]+", text)
    assert name is not None, text
    return name[0], text[name.end() :].strip()


def conda(text: str) -> tuple[str, str]:
    name, bounds = requirement(text)
    return CONDA_NAMES.get(name, name), bounds


@pytest.fixture
def recipe() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))


def test_the_recipe_has_the_version_and_the_requirements_of_the_project(recipe: dict[str, Any]) -> None:
    project = PROJECT["project"]
    assert recipe["context"]["version"] == pinchpoint.__version__
    run = dict(requirement(text) for text in recipe["requirements"]["run"])
    assert run.pop("python") == project["requires-python"]
    assert run == dict(conda(text) for text in project["dependencies"])
    extras = project["optional-dependencies"]
    frameworks = dict(conda(text) for text in [*extras["torch"], *extras["jax"]])
    assert dict(requirement(text) for text in recipe["requirements"]["run_constraints"]) == frameworks
    host = {requirement(text)[0] for text in recipe["requirements"]["host"]}
    assert {conda(text)[0] for text in PROJECT["build-system"]["requires"]} <= host
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert entry == "pinchpoint = " + project["scripts"]["pinchpoint"]
    assert recipe["about"]["license"] == project["license"]


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "packaging" / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line.strip()]


def test_the_container_installs_what_the_makefile_installs_for_the_demo() -> None:
    steps = instructions()
    install = next(text for name, text in steps if name == "RUN" and "pip install" in text)
    extras = re.search(r"'\.\[([\w,-]+)\]'", install)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    demo = re.search(r"\.venv/\.installed:.*\n\t\$\(call install,([\w,-]+)\)", makefile)
    assert extras is not None and demo is not None
    assert extras[1] == demo[1]
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert "-c constraints.txt" in install
    base = next(text for name, text in steps if name == "FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim-\w+", base)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["project"]["classifiers"]


def test_the_container_copies_files_that_exist_and_that_are_not_ignored() -> None:
    ignored = (ROOT / "packaging" / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for name, text in instructions():
        if name == "COPY":
            for source in text.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source.split('/')[0]}" in ignored, source


def test_the_container_does_not_run_as_root_and_runs_a_command_that_exists() -> None:
    steps = dict(instructions())
    assert steps["USER"] not in ("root", "0")
    assert steps["ENTRYPOINT"] == '["pinchpoint"]'
    assert steps["CMD"].startswith('["demo"')
