"""Counters behave as plain numbers, and remember what was asked about them."""

from __future__ import annotations

import copy
import io
import json
import pickle

import numpy as np
import torch

from pinchpoint.backends.torch.loops.counters import Count, Counter, Fraction


def test_a_counter_behaves_as_the_plain_number() -> None:
    step = Count("train.py:1").give(5)
    assert f"{step:03d} {step} %d" % step == "005 5 5" and json.dumps([step, step / 2]) == "[5, 2.5]"
    for made in (pickle.loads(pickle.dumps(step)), copy.deepcopy(step), int(step), hash(step)):
        assert type(made) is int and made == 5
    assert type(step + 1) is Counter and type(1.0 - step / 2) is Fraction
    assert list(range(step)) == [0, 1, 2, 3, 4] and [0] * step == step * [0] and step in {5: 0}
    assert torch.ones(step, 2).view(2, step)[:, step - 1].shape == (2,)
    assert torch.equal(step * torch.ones(3), torch.ones(3) * 5)
    assert (step < torch.full((2,), 9)).tolist() == [True, True]
    assert (np.ones(3, np.float32) * step).dtype == np.float32 and np.zeros(step).shape == (5,)
    assert step == np.int64(5) and step is not None and step != "5"
    file = io.BytesIO()
    with torch.serialization.safe_globals([int, float]):
        torch.save({"step": step, "part": step / 2}, file)
        file.seek(0)
        assert torch.load(file) == {"step": 5, "part": 2.5}


def turns(count: Count, until: int) -> list[int]:
    values = np.arange(count.value + 1, until)
    return [int(values[at]) for at in count.choose(values)]


def test_the_first_turn_with_another_answer_is_chosen() -> None:
    count = Count("train.py:1")
    for value in range(2):
        step = count.give(value)
        assert not (step and (step + 1) % 100 == 0) and step / 1000 < 0.5
    # The last turn is one with both answers, because an answer that stays may change the other one.
    assert turns(count, 1000) == [99, 500, 999]


def test_a_condition_inside_another_one_is_chosen_where_it_is_asked() -> None:
    count = Count("train.py:1")

    def ask(value: int) -> int:
        step = count.give(value)
        return 64 if step < 300 else 256 if step < 600 else 512

    assert [ask(value) for value in (0, 1)] == [64, 64]
    assert turns(count, 1000) == [300, 999]
    assert ask(999) == 512
    assert count.choose(np.arange(2, 1000))[0] == 298  # step 300, and not the first one below 600


def test_an_old_value_counts_as_a_plain_number() -> None:
    count = Count("train.py:1")
    last, asked = count.give(0), 0
    for value in range(1, 500):
        step = count.give(value)
        if step - last >= 100:
            last, asked = step, asked + 1
    assert asked == 4 and len(count.conditions) == 1
    assert turns(count, 1000) == []


def test_questions_of_libraries_are_not_recorded() -> None:
    count = Count("train.py:1")
    json.dumps({count.give(3): torch.nn.Linear(count.give(3), 2).in_features})
    assert count.conditions == []


def test_every_value_of_a_part_that_is_not_compared_is_chosen() -> None:
    count, sizes = Count("train.py:1"), [64, 128, 4096, 128]
    for value in range(2):
        step = count.give(value)
        assert sizes[step // 250] == 64 and step % 100 != 50
    assert [value // 250 for value in turns(count, 1000) if value != 50] == [1, 2, 3, 3]
