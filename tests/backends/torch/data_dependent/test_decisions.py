"""Answers to questions about unknown values that are asked over and over."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="decisions are part of torch's backend")

from pinchpoint.backends.torch.data_dependent.decisions import Decisions  # noqa: E402


def test_only_a_while_loop_is_recorded_as_cut_short() -> None:
    """Elsewhere the answers do not depend on the patience, so a run with more of it would be the same."""
    answers = {}
    for patience in (4, 8):
        decisions = Decisions(patience=patience)
        answers[patience] = [decisions.decide(True, 0) for _ in range(5000)]
        assert not decisions.cut
        turns = 0
        while decisions.decide(True, 0):
            turns += 1
        assert turns == patience and len(decisions.cut) == 1
    assert answers[4] == answers[8] and not all(answers[4])
