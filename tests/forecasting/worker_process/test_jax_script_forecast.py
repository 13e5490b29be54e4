"""An unmodified JAX script, predicted without a GPU and compared with counts done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.errors import CannotFake, PinchpointError
from pinchpoint.core.files import shown_path
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
    assert shown_path(str(SCRIPTS / "jax_train.py")) in {line.file for line in forecast.lines}


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


def test_a_script_on_eight_devices_is_predicted_per_device() -> None:
    forecast = predict(str(SCRIPTS / "jax_sharded.py"), world_size=8)
    weights = 1024 * 1024 * F32 // 8
    assert (forecast.world_size, forecast.rank) == (8, None)
    assert forecast.breakdown["weights"] == weights
    assert forecast.breakdown["optimizer"] == 2 * weights + 4
    assert forecast.breakdown["inputs"] == pytest.approx(4096 * 1024 * F32 // 8, rel=0.01)
    # XLA gathers the weights, and the batch is divided: 4 MiB, and 2 MiB for the product and its gradient.
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.low_bytes > 3 * weights + 4096 * 1024 * F32 // 8
    assert forecast.nccl_bytes


def test_what_one_device_holds_more_than_the_others_counts(tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n"
        "mesh = jax.sharding.Mesh(np.array(jax.devices()), ('d',))\n"
        "x = jnp.ones((1 << 20, 64))\n"
        "y = jax.device_put(x, NamedSharding(mesh, PartitionSpec('d')))\n"
    )
    forecast = predict(str(script), world_size=4)
    assert forecast.peak_allocated_bytes == pytest.approx((1 << 28) * (1 + 1 / 4), rel=0.001)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "import jax\njax.make_mesh((8,), ('d',))\n",
            {},
            "Give the number that it needs, such as --world-size",
        ),
        ("import jax\njax.make_mesh((8,), ('d',))\n", {"world_size": 4}, "The script saw 4 devices"),
        ("import jax.numpy as jnp\njnp.ones(3)\n", {"world_size": 4, "rank": 1}, "--rank 1 has no meaning"),
        ("import jax.numpy as jnp\njnp.ones(3)\n", {"world_size": 0}, "not a number of processes"),
    ],
)
def test_devices_that_a_jax_script_cannot_have_are_refused(
    tmp_path: Path, source: str, options: dict[str, int], message: str
) -> None:
    script = tmp_path / "mesh.py"
    script.write_text(source)
    with pytest.raises(PinchpointError, match=message):
        predict(str(script), **options)  # pyright: ignore[reportArgumentType]


def test_a_script_of_several_processes_does_not_wait_for_its_peers(tmp_path: Path) -> None:
    script = tmp_path / "processes.py"
    script.write_text(
        "import jax, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n"
        "jax.distributed.initialize('10.0.0.1:1234', num_processes=2, process_id=0)\n"
        "assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 8, 4)\n"
        "mesh = jax.sharding.Mesh(np.array(jax.devices()), ('d',))\n"
        "part = np.ones((64, 1 << 18), np.float32)\n"
        "x = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec('d')), part)\n"
        "assert x.shape == (128, 1 << 18)\n"
        "x.sum()\n"
    )
    forecast = predict(str(script), world_size=8, local_world_size=4)
    assert forecast.peak_allocated_bytes == pytest.approx(16 << 20, rel=0.001)  # 128 rows on 8 devices
    assert any("process 0 of 2" in note for note in forecast.notes)


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
