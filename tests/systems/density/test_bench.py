"""`bench density`: three forms in turn, the slow ones scaled up, and a record that says so."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.bench import Benchmark, bench

pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Benchmark, Path]:
    ticks = itertools.count()
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    # Every reading of this clock is a second after the one before: each run takes one.
    found = bench(
        device="cpu",
        grid=(8, 8, 8),
        mul=20,
        lmax=1,
        repeats=2,
        chunks=2,
        chunk=100,
        output=path,
        clock=lambda: float(next(ticks)),
    )
    return found, path


def test_a_form_that_ran_on_part_of_the_grid_is_scaled_to_all_of_it(made: tuple[Benchmark, Path]) -> None:
    record = made[0]
    original, full, scalar = record.forms
    assert (scalar.scaled, scalar.timed_probes, scalar.seconds) == (False, 512, 1.0)
    for slow in (original, full):
        # Chunks of 13 bricks of 8 probes: 104 each.
        assert (slow.scaled, slow.chunk, slow.timed_probes) == (True, 104, 208)
        assert slow.seconds == pytest.approx(512 / 208)
    assert scalar.speedup == pytest.approx(512 / 208)
    assert any("timed on 208 probes" in note for note in record.notes)


def test_the_forms_agree_at_the_probes_that_all_computed(made: tuple[Benchmark, Path]) -> None:
    original, full, scalar = made[0].forms
    assert original.error == 0.0 and full.error is None
    assert scalar.error is not None and 0 < scalar.error < 1e-5


def test_the_record_is_written_and_read_again(made: tuple[Benchmark, Path]) -> None:
    record, path = made
    assert Benchmark.from_json(path.read_text(encoding="utf-8")) == record
    said = dict(record.summary())
    assert "8 x 8 x 8 = 512 probes, mul 20, lmax 1, on cpu" in said["case"]
    assert set(said) == {"case", "original", "full", "scalar"}


def test_a_form_alone_has_the_peak_it_has_among_others_and_no_error(made: tuple[Benchmark, Path]) -> None:
    record = bench(device="cpu", grid=(8, 8, 8), mul=20, lmax=1, repeats=1, forms=("scalar",))
    (alone,), (original, full, scalar) = record.forms, made[0].forms
    assert alone.form == "scalar" and alone.error is None
    assert alone.peak_bytes == scalar.peak_bytes != full.peak_bytes
    # 512 probes of at least 20 slots, 3 interactions of 13 channels each.
    assert scalar.peak_bytes > 512 * 20 * 3 * 13 * 4
    assert original.peak_bytes > full.peak_bytes  # it describes the atoms too


def test_the_scalar_form_in_plain_torch_is_timed_beside_it_where_asked_for(
    made: tuple[Benchmark, Path],
) -> None:
    record = bench(device="cpu", grid=(8, 8, 8), mul=20, lmax=1, repeats=1, forms=("plain", "scalar"))
    plain, scalar = record.forms
    assert (plain.form, plain.scaled, plain.timed_probes) == ("plain", False, 512)
    assert plain.peak_bytes == scalar.peak_bytes, "on a CPU they are the same"


@pytest.mark.parametrize(
    "wrong",
    [
        {"forms": ("fast",)},
        {"forms": ()},
        {"forms": ("full", "full")},
        {"repeats": 0},
        {"chunk": 0},
        {"mul": 0},
        {"grid": (10**5,) * 3},
    ],
)
def test_wrong_questions_are_refused(wrong) -> None:
    with pytest.raises(BadInput):
        bench(device="cpu", **wrong)
