"""Options that take several words."""

from __future__ import annotations

import pytest

from pinchpoint.console.list_options import repeat_options


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("--from A B -o C", "--from A --from B -o C"),
        ("--from A --test-files B C --jobs 2 D", "--from A --test-files B --test-files C --jobs 2 D"),
        ("--from=A B", "--from=A --from B"),
        ("--from -o C", "--from -o C"),
        ("-o C --jobs 2", "-o C --jobs 2"),
    ],
)
def test_a_list_takes_all_words_up_to_the_next_option(given: str, made: str) -> None:
    assert repeat_options(given.split(), ("--from", "--test-files")) == made.split()
