"""What the forecasts of one rank must reach."""

from __future__ import annotations

from table import Bar, Row  # pyright: ignore[reportMissingImports]

NEAR, NEAR_STAGES, NEAR_RESERVED = 0.01, 0.02, 0.08
_LOOSER = ("pipeline.py", "tensor_parallel.py", "context_parallel.py")


def judge(rows: list[Row]) -> list[Bar]:
    """Allocated within 1 % (tensor and context parallel, stages: 2 %), reserved within 8 %, no wrong fits."""

    def missed(chosen: list[Row], key: str, limit: float) -> list[str]:
        errors = [(row.program.name, row.error(key)) for row in chosen]
        return [name for name, error in errors if error is None or abs(error) > limit]

    def bar(name: str, chosen: list[Row], key: str, limit: float) -> Bar:
        names = missed(chosen, key, limit)
        return Bar(name, not names, ", ".join(names) or f"all {len(chosen)}")

    looser = [row for row in rows if row.program.path.name in _LOOSER]
    sharded = [row for row in rows if row not in looser]
    wrong = [f"{row.program.name} {row.wrong_fits}" for row in rows if row.wrong_fits]
    return [
        bar("FSDP, DDP, ZeRO: allocated within 1 %", sharded, "peak_allocated_bytes", NEAR),
        bar(
            "tensor and context parallel, stages: allocated within 2 %",
            looser,
            "peak_allocated_bytes",
            NEAR_STAGES,
        ),
        bar("reserved within 8 %", rows, "peak_reserved_bytes", NEAR_RESERVED),
        Bar("no wrong fits", not wrong, "; ".join(wrong) or "none"),
    ]
