"""Settings of a workload: which are accepted, which are refused, and that they reach the workload."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.settings import Setting, parse_pairs, resolve, resolve_one, show_settings
from pinchpoint.core.workload import Case, Variant, Workload, build

MLP = Setting("mlp", "128,128", "hidden widths", pattern=r"\d+(,\d+)*")
PART = Setting("part", "encoder", choices=("encoder", "decoder"))


def workload(*settings: Setting) -> tuple[Workload, list[dict[str, Any]]]:
    built: list[dict[str, Any]] = []

    def make(size: int, **options: Any) -> Case:
        built.append(options)
        return Case(step=lambda: None, processed=size)

    return Workload("w", "points", "torch", make, (Variant("eager"),), settings=settings), built


def test_pairs_keep_commas_inside_a_value_and_collect_repeated_keys() -> None:
    assert parse_pairs(["mlp=64,64", "part=decoder", "mlp=128,128,128", "mlp=64,64", "at=a=b"]) == {
        "mlp": ("64,64", "128,128,128"),
        "part": ("decoder",),
        "at": ("a=b",),
    }


@pytest.mark.parametrize("pair", ["mlp", "mlp=", "=64", ""])
def test_text_that_is_not_a_pair_is_refused(pair: str) -> None:
    with pytest.raises(BadInput, match="does not have the form KEY=VALUE"):
        parse_pairs([pair])


def test_settings_that_are_not_given_have_their_default() -> None:
    assert resolve_one("w", (MLP, PART), {"part": "decoder"}) == {"mlp": "128,128", "part": "decoder"}
    assert resolve("w", (MLP, PART), {"mlp": ["64", "32"]}) == {"mlp": ("64", "32"), "part": ("encoder",)}


@pytest.mark.parametrize(
    ("asked", "what", "hint"),
    [
        ({"width": "3"}, "w has no setting 'width'", "Use one of: mlp, part"),
        ({"part": "middle"}, "The setting part cannot be 'middle'", "Use one of: encoder, decoder"),
        ({"mlp": "64,x"}, "The setting mlp cannot be '64,x'", "Give hidden widths, such as 128,128"),
        (
            {"mlp": ["64", "32"]},
            "The setting mlp has 2 values, but only a study takes several",
            "Give one value",
        ),
        ({"mlp": []}, "The setting mlp has no value", "omit it to use the default"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_known_names(asked: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve_one("w", (MLP, PART), asked)
    assert what in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "wrong", [{"name": "MLP size", "default": "1"}, {"name": "part", "default": "x", "choices": ("a", "b")}]
)
def test_a_setting_with_an_invalid_name_or_default_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Setting(**wrong)


def test_a_workload_is_built_with_all_its_settings() -> None:
    result, built = workload(MLP, PART)
    build(result, 8, text="w", device="cpu", settings={"mlp": "7"})
    assert built[0]["settings"] == {"mlp": "7", "part": "encoder"}


def test_a_workload_without_settings_is_built_without_them_and_refuses_any() -> None:
    result, built = workload()
    build(result, 8, text="w", device="cpu")
    assert "settings" not in built[0]
    with pytest.raises(BadInput, match="has no setting 'mlp'"):
        build(result, 8, text="w", device="cpu", settings={"mlp": "7"})
    assert len(built) == 1, "refused before anything was built"


def test_a_plain_factory_has_no_settings() -> None:
    with pytest.raises(BadInput, match="plain factory and has no settings"):
        build(
            lambda size, device: lambda: None, 8, text="mine.py:step_of", device="cpu", settings={"mlp": "7"}
        )


def test_settings_are_shown_as_they_are_typed() -> None:
    assert show_settings({"mlp": "64,64", "part": "full"}) == "mlp=64,64 part=full"
