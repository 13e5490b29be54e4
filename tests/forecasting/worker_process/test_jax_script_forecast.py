"""An unmodified JAX script, predicted without a GPU and compared with counts done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput, CannotFake
from pinchpoint.forecasting.predict import predict

SCRIPTS = Path(__file__).parents[2] / "scripts"
F32 = 4
WEIGHTS = (512 * 2048 + 2048 * 10) * F32
DATA = 8192 * 512 * F32 + 8192 * 4  # images and labels
HIDDEN = 8192 * 2048 * F32

pytest.importorskip("optax")


def test_a_training_script_is_followed_and_its_arrays_are_counted() -> None:
    forecast = predict(str(SCRIPTS / "jax_train.py"), card="rtx4090")
    assert (forecast.framework, forecast.mode) == ("jax", "train")
    assert forecast.seen["training_steps"] >= 2
    assert forecast.breakdown["weights"] == WEIGHTS
    assert forecast.breakdown["optimizer"] == 2 * WEIGHTS + 4  # two moments and a counter
    assert forecast.breakdown["inputs"] == pytest.approx(DATA, rel=0.001)
    assert sum(forecast.breakdown.values()) == forecast.peak_allocated_bytes
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert 3 * WEIGHTS + DATA < forecast.low_bytes <= forecast.peak_allocated_bytes <= forecast.high_bytes
    assert forecast.high_bytes > 3 * WEIGHTS + DATA + 2 * HIDDEN
    assert forecast.fits["rtx4090"] is True
    assert any(line.file.endswith("jax_train.py") for line in forecast.lines)


def test_a_branch_that_depends_on_a_value_is_followed_both_ways(tmp_path: Path) -> None:
    script = tmp_path / "branch.py"
    script.write_text(
        "import jax, jax.numpy as jnp\n"
        "x = jnp.ones((1024, 1024))\n"
        "y = x @ x\n"
        "if float(y.sum()) > 5e8:\n"
        "    z = jnp.zeros((1 << 28,))\n"
    )
    forecast = predict(str(script))
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.low_bytes < 1 << 30 < forecast.high_bytes
    assert any("branch.py:4" in note for note in forecast.notes)


def test_a_size_that_depends_on_an_unknown_value_is_refused_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "size.py"
    script.write_text(
        "import jax.numpy as jnp\nx = jnp.ones((64, 64)) @ jnp.ones((64, 64))\nprint(x[x > 1].shape)\n"
    )
    with pytest.raises(CannotFake, match=r"size\.py:3"):
        predict(str(script))


def test_a_world_size_is_refused_for_a_jax_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import jax.numpy as jnp\nprint(jnp.ones(4).sum())\n")
    with pytest.raises(BadInput, match="does not support --world-size for JAX"):
        predict(str(script), world_size=2)


TRAIN = """
import jax, jax.numpy as jnp
@jax.jit
def train(w, x):
    return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
w = jnp.ones((64, 64))
"""


def test_a_turn_with_another_answer_to_a_condition_is_run(tmp_path: Path) -> None:
    script = tmp_path / "epochs.py"
    script.write_text(
        TRAIN
        + "for epoch in range(100_000):\n"
        + "    rows = 64 if epoch < 50_000 else 1 << 20\n"
        + "    for _ in range(50):\n"
        + "        w = train(w, jnp.zeros((rows, 64)))\n"
    )
    forecast = predict(str(script))
    assert forecast.high_bytes is not None and forecast.high_bytes > (1 << 20) * 64 * F32
    assert forecast.reasons == () and any("turns that only repeat others" in note for note in forecast.notes)
