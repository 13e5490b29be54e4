"""log.csv: complete rows only, without steps that a resumed run repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.training.logs import Log, Row, read


def row(step: int) -> Row:
    return Row(step, 0.5 / step, 1e-3, float(step), 2**20, 0.25 if step == 2 else None)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.csv", keep_to=0)
    log.add([row(1), row(2)])
    assert read(tmp_path / "log.csv") == [row(1), row(2)]
    assert (tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()[
        0
    ] == "step,loss,lr,seconds,memory_bytes,validation"


def test_a_resumed_log_drops_a_partial_line_and_rows_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    Log(path, keep_to=0).add([row(1), row(2), row(3)])
    with path.open("a", encoding="utf-8") as file:
        file.write("4,0.1")
    log = Log(path, keep_to=2)
    assert read(path) == [row(1), row(2)]
    log.add([row(3)])
    assert [entry.step for entry in read(path)] == [1, 2, 3]


@pytest.mark.parametrize("harm", [b"\xff\xfe", b"1,x,1,1,1,\n", b'"' + b"a" * 200_000])
def test_a_damaged_log_is_refused(tmp_path: Path, harm: bytes) -> None:
    path = tmp_path / "log.csv"
    Log(path, keep_to=0).add([row(1)])
    path.write_bytes(path.read_bytes() + harm + b"\n2,0.1,0.1,0.1,1,\n")
    with pytest.raises(BadInput, match="is damaged"):
        read(path)
