"""A classifier of features: right where features say the class, at chance where they do not."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"


def test_a_classifier_finds_the_class_that_features_say_and_no_other() -> None:
    script = importlib.import_module("labels")
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    noise = torch.randn(180, 12, generator=source)
    clear = noise[:90] + 4 * torch.eye(3)[labels].repeat(1, 4)
    classifier = script.Classifier(clear, labels, 3)
    again = noise[90:] + 4 * torch.eye(3)[labels].repeat(1, 4)
    assert (classifier.predict(again) == labels).float().mean() > 0.95
    guesses = script.Classifier(noise[:90], labels, 3).predict(noise[90:])
    assert (guesses == labels).float().mean() < 0.6
    matrix = script.confusion(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 2, 1, 0]), 3)
    assert matrix == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]
