"""The operator's memory study over parts and MLPs, as one record, and the tables of docs/operator-memory.md.

    python benchmarks/operator_memory.py study -o benchmarks/results/operator_predicted.json
    python benchmarks/operator_memory.py study --on cuda --parts encoder -o benchmarks/results/operator_h200.json
    python benchmarks/operator_memory.py page

pinchpoint must be importable. `study` runs one study for each part with the MLPs as its second axis;
`page` writes the tables between the page's markers from the records that are there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pinchpoint.core.files import write_text
from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.units import show_bytes, show_seconds, show_size
from pinchpoint.studies.study import study

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PREDICTED, MEASURED = RESULTS / "operator_predicted.json", RESULTS / "operator_h200.json"
PAGE = ROOT / "docs" / "operator-memory.md"
PARTS = ("encoder", "decoder", "full")
MLPS = ("64,64", "128,128,128", "256,256,256")
ALONE = "128,128,128"  # the MLP that all variants are compared with
Studies = dict[str, Study]


def run(
    *, parts: list[str], mlps: list[str], variants: str, sizes: str, on: str, repeats: int, output: Path
) -> None:
    """One study a part. The record is written after each, so that a lost machine costs one; parts not redone stay in it."""
    record: dict[str, Any] = {"commands": {}, "studies": {}}
    if output.is_file():
        record = json.loads(output.read_text(encoding="utf-8"))
    command = " ".join(["python", "benchmarks/operator_memory.py", *sys.argv[1:]])
    for part in parts:
        found = study(
            "operator",
            sizes=sizes,
            variants=variants,
            on=on,
            settings={"part": part, "mlp": mlps},
            repeats=repeats,
            progress=lambda done, total, text, part=part: print(
                f"{part} {done}/{total} {text}", file=sys.stderr
            ),
        )
        data = found.to_dict()
        for point in data["points"]:
            point["modules"] = ()  # the tables need none, and they are most of the bytes
        record["studies"][part], record["commands"][part] = data, command
        write_text(output, json.dumps(record, indent=1) + "\n")


def read(path: Path) -> Studies:
    if not path.is_file():
        return {}
    return {
        part: Study.from_dict(data)
        for part, data in json.loads(path.read_text(encoding="utf-8"))["studies"].items()
    }


def name_of(variant: str, mlp: str, made: Study) -> str:
    """The line of a study: the MLP is in its name where several were studied."""
    return variant if "mlp" in made.settings else f"{variant}[mlp={mlp}]"


def law(studies: Studies, part: str, variant: str, mlp: str, mode: str) -> Law | None:
    made = studies.get(part)
    if made is None or made.settings.get("mlp", mlp) != mlp:
        return None
    return next(
        (one for one in made.laws if (one.variant, one.mode) == (name_of(variant, mlp, made), mode)), None
    )


def points(studies: Studies, part: str, variant: str, mlp: str, mode: str) -> list[Point]:
    made = studies.get(part)
    if made is None or made.settings.get("mlp", mlp) != mlp:
        return []
    return [
        p for p in made.points if (p.variant, p.mode, p.status) == (name_of(variant, mlp, made), mode, "ok")
    ]


def shown_mlp(mlp: str) -> str:
    widths = mlp.split(",")
    return f"[{widths[0]}]x{len(widths)}" if len(widths) > 2 and len(set(widths)) == 1 else f"[{mlp}]"


def slopes(predicted: Studies, measured: Studies) -> Iterator[list[str]]:
    """Bytes an edge: predicted, measured in brackets where there is a record."""

    def both(part: str, variant: str, mlp: str, mode: str) -> str:
        said, met = (law(studies, part, variant, mlp, mode) for studies in (predicted, measured))
        text = "-" if said is None else f"{said.slope_bytes_per_point:,.0f}"
        return text if met is None else f"{text} ({met.slope_bytes_per_point:,.0f})"

    for part in PARTS:
        for mlp in MLPS:
            train, infer = (law(predicted, part, "eager", mlp, mode) for mode in ("train", "infer"))
            ratio = (
                "-"
                if train is None or infer is None
                else f"{train.slope_bytes_per_point / infer.slope_bytes_per_point:.2f}"
            )
            row = [
                both(part, variant, mlp, mode) for variant in ("eager", "flat") for mode in ("train", "infer")
            ]
            yield [part, shown_mlp(mlp), row[0], row[1], ratio, row[2], row[3]]


def peaks(predicted: Studies, measured: Studies) -> Iterator[list[str]]:
    """Peaks and times of a training step of the encoder, each size and variant."""
    for variant in ("eager", "checkpoint", "flat"):
        met = {p.size: p for p in points(measured, "encoder", variant, ALONE, "train")}
        for point in points(predicted, "encoder", variant, ALONE, "train"):
            real = met.get(point.size)
            error = "-"
            if real is not None and real.peak_allocated_bytes and real.theory_bytes:
                error = f"{100 * (real.theory_bytes / real.peak_allocated_bytes - 1):+.2f} %"
            yield [
                variant,
                show_size(point.size),
                show_bytes(point.peak_allocated_bytes),
                "-" if real is None else show_bytes(real.peak_allocated_bytes),
                error,
                "-" if real is None or real.time_s is None else show_seconds(real.time_s),
            ]


def cards(predicted: Studies) -> Iterator[list[str]]:
    """The largest number of edges a card trains, with a tenth of it in reserve."""
    made = predicted.get("encoder")
    rows = [] if made is None else [row for row in made.cards if row["mode"] == "train"]
    for card, memory in dict.fromkeys((row["card"], row["memory_bytes"]) for row in rows):
        sizes = {row["variant"]: row["size"] for row in rows if row["card"] == card}
        assert made is not None
        line = [sizes.get(name_of("eager", mlp, made)) for mlp in MLPS] + [
            sizes.get(name_of("flat", ALONE, made))
        ]
        yield [card, show_bytes(memory), *("-" if size is None else show_size(_round(size)) for size in line)]


def _round(size: int) -> int:
    """Three digits: more would be noise."""
    digits = max(len(str(size)) - 3, 0)
    return size // 10**digits * 10**digits


def table(header: list[str], rows: Iterator[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def fill(text: str, name: str, body: str) -> str:
    """The page with what lies between the markers of `name` exchanged."""
    found = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not found.search(text):
        raise SystemExit(f"{PAGE} has no markers for {name}")
    return found.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text)


def page(text: str, predicted: Studies, measured: Studies) -> str:
    """The page's text with every table made anew."""
    where = {made.machine.get("gpu") for made in measured.values()}
    said = (
        f"Measured on {', '.join(sorted(filter(None, where)))}."
        if measured
        else "Predicted; no record of a measurement is here."
    )
    mlps = [shown_mlp(mlp) for mlp in MLPS]
    columns = ["variant", "edges", "predicted", "measured", "error", "step"]
    shown = len(columns) if measured else 3  # no columns of dashes
    compared = table(columns[:shown], (row[:shown] for row in peaks(predicted, measured)))
    made = {
        "slopes": table(
            ["part", "MLP", "eager train", "eager infer", "train / infer", "flat train", "flat infer"],
            slopes(predicted, measured),
        ),
        "peaks": f"{compared}\n\n{said}",
        "cards": table(
            ["card", "memory", *(f"eager {mlp}" for mlp in mlps), f"flat {shown_mlp(ALONE)}"],
            cards(predicted),
        ),
    }
    for name, body in made.items():
        text = fill(text, name, body)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("study")
    runs.add_argument("--parts", default=",".join(PARTS))
    runs.add_argument("--mlp", action="append", help="hidden widths; may be given for several")
    runs.add_argument("--variants", default="all")
    runs.add_argument("--sizes", default="500k,1M,2M")
    runs.add_argument("--on", default="fake")
    runs.add_argument("--repeats", type=int, default=10)
    runs.add_argument("-o", "--output", type=Path, required=True)
    verbs.add_parser("page")
    asked = parser.parse_args()
    if asked.verb == "study":
        run(
            parts=asked.parts.split(","),
            mlps=asked.mlp or list(MLPS),
            variants=asked.variants,
            sizes=asked.sizes,
            on=asked.on,
            repeats=asked.repeats,
            output=asked.output,
        )
    else:
        write_text(PAGE, page(PAGE.read_text(encoding="utf-8"), read(PREDICTED), read(MEASURED)))


if __name__ == "__main__":
    main()
