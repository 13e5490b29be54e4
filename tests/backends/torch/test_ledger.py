"""Which files the ledger counts as libraries."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from pinchpoint.backends.torch.ledger import is_library_file


@pytest.mark.parametrize(
    ("file", "is_library"),
    [
        (torch.__file__, True),
        (json.__file__, True),
        # With a system's Python, /usr/src/app and /usr/local/src are below its prefix.
        (f"{sys.base_prefix}/src/app/train.py", False),
    ],
)
def test_a_script_below_pythons_prefix_is_the_users(file: str, is_library: bool) -> None:
    assert is_library_file(file) == is_library
