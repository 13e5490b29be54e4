"""Errors cross from a worker process to its parent without losing anything."""

from __future__ import annotations

import json
import traceback

import pytest

from pinchpoint.core import errors


@pytest.mark.parametrize("kind", [errors.PinchpointError, *errors.PinchpointError.__subclasses__()])
def test_an_error_comes_back_from_a_worker_as_its_own_kind(kind: type[errors.PinchpointError]) -> None:
    sent = json.loads(json.dumps(errors.to_dict(kind("no data", hint="get some"))))
    again = errors.from_dict(sent)
    assert type(again) is kind
    assert (again.what, again.hint, again.exit_code) == ("no data", "get some", kind.exit_code)
    assert str(again) == "no data\n  hint: get some"


def test_the_traceback_of_the_worker_is_shown_with_the_error() -> None:
    def users_own_line() -> None:
        raise ZeroDivisionError("theirs")

    try:
        try:
            users_own_line()
        except ZeroDivisionError as cause:
            raise errors.TargetFailed("it raised", hint="fix it") from cause
    except errors.TargetFailed as error:
        sent = errors.to_dict(error)
    shown = "".join(traceback.format_exception(errors.from_dict(sent)))
    assert "users_own_line" in shown
    assert "ZeroDivisionError: theirs" in shown


def test_an_error_without_a_traceback_is_accepted_too() -> None:
    assert errors.from_dict({"error": "Missing", "what": "no jax", "hint": "install it"}).exit_code == 3
