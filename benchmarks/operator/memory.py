"""The operator's memory study over parts and MLPs, as one record, and the tables of docs/reports/operator.md.

    python benchmarks/operator/memory.py study -o benchmarks/results/operator_predicted.json
    python benchmarks/operator/memory.py study --on cuda --parts encoder -o
    benchmarks/results/operator_h200.json
    python benchmarks/operator/memory.py widths -o benchmarks/results/operator_widths_predicted.json
    python benchmarks/operator/memory.py widths --on cuda -o benchmarks/results/operator_widths_h200.json
    python benchmarks/operator/memory.py merge part1.json part2.json -o benchmarks/results/
    operator_widths_h200.json
    python benchmarks/operator/memory.py page

pinchpoint must be importable. `study` runs one study per part, with the MLPs as its second axis; `widths`
runs one per part over coordinate dimensions and feature widths, with one MLP. Several processes can share
the work of `widths`, each with one dimension and one width (`--dimensions 2 --channels 32 -o part1.json`)
or also one variant (`--variants flat`); `merge` makes one record of theirs. `page` writes the tables between
the page's markers from the existing records.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from pinchpoint.core.files import write_text
from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.settings import show_settings
from pinchpoint.core.units import show_bytes, show_seconds, show_size
from pinchpoint.studies.study import study

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PREDICTED, MEASURED = RESULTS / "operator_predicted.json", RESULTS / "operator_h200.json"
WIDTHS = RESULTS / "operator_widths_predicted.json", RESULTS / "operator_widths_h200.json"
PAGE = ROOT / "docs" / "reports" / "operator.md"
PARTS = ("encoder", "decoder", "full")
MLPS = ("64,64", "128,128,128", "256,256,256")
MAIN_MLP = "128,128,128"  # the MLP with which all variants are compared
DIMENSIONS, CHANNELS = ("2", "3"), ("32", "64", "128")  # the settings of the GAOT-3D study
AXES = ("channels", "dimension")  # the settings of `widths` that vary
Studies = dict[str, Study]


def run(
    *,
    parts: list[str],
    settings: dict[str, list[str]],
    variants: str,
    sizes: str,
    on: str,
    repeats: int,
    output: Path,
    times: bool = True,
) -> None:
    """Run one study per part. settings: the values of each setting, which are further axes.

    times=False leaves times out of the record, since other processes use the device at the same time.

    The record is written after each study, so that an interruption loses at most one. Parts and lines that
    are not run again stay in the record.
    """
    record: dict[str, Any] = {"commands": {}, "studies": {}}
    if output.is_file():
        record = json.loads(output.read_text(encoding="utf-8"))
    command = " ".join(["python", "benchmarks/operator/memory.py", *sys.argv[1:]])
    for part in parts:
        result = study(
            "operator",
            sizes=sizes,
            variants=variants,
            on=on,
            settings={"part": part, **settings},
            repeats=repeats,
            progress=lambda done, total, text, part=part: print(
                f"{part} {done}/{total} {text}", file=sys.stderr
            ),
        )
        new = {point.variant for point in result.points}
        if part in record["studies"]:
            result = with_earlier_lines(result, Study.from_dict(record["studies"][part]))
        data = result.to_dict()
        for point in data["points"]:
            point["modules"] = ()  # the tables do not use them, and they are most of the bytes
            if not times:
                point |= dict.fromkeys(("time_s", "time_low_s", "time_high_s"))
        kept = [] if new == {point.variant for point in result.points} else record["commands"][part]
        record["studies"][part], record["commands"][part] = data, [*kept, command]
        write_text(output, json.dumps(record, indent=1) + "\n")


def with_earlier_lines(result: Study, earlier: Study) -> Study:
    """A study with the lines of an earlier one of the same settings that it does not have itself.

    Verdicts and notes of lines that were run again are those of the new study.
    """
    if (result.settings, result.on) != (earlier.settings, earlier.on):
        return result
    new = {point.variant for point in result.points}

    def both(own: Iterable[Any], others: Iterable[Any]) -> tuple[Any, ...]:
        def line(value: Any) -> str:
            return value["variant"] if isinstance(value, dict) else value.variant

        return (*(value for value in others if line(value) not in new), *own)

    gate = (*_of_other_lines(earlier.gate, new), *result.gate)
    return replace(
        result,
        points=both(result.points, earlier.points),
        laws=both(result.laws, earlier.laws),
        cards=both(result.cards, earlier.cards),
        boundary=both(result.boundary, earlier.boundary),
        passed=not gate,
        gate=gate,
        notes=tuple(dict.fromkeys((*_of_other_lines(earlier.notes, new), *result.notes))),
        took_s=result.took_s + earlier.took_s,
    )


def _of_other_lines(texts: Iterable[str], lines: Iterable[str]) -> list[str]:
    """The sentences that name none of these lines. A mode follows the name: `flat[channels=32] train`."""
    names = "|".join(re.escape(line) for line in lines)
    return [text for text in texts if not re.search(rf"(^|\s)({names}) (train|infer)\b", text)]


def merge(paths: list[Path], output: Path) -> None:
    """Write one record of those that have one dimension and one width each, in the order of the table."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    studies: dict[str, list[Study]] = {}
    commands: dict[str, list[str]] = {}
    for record in records:
        for part, data in record["studies"].items():
            one = Study.from_dict(data)
            missing = [name for name in AXES if name not in one.settings]
            if missing:
                raise SystemExit(f"The study of the {part} has several values of {missing[0]}, not one.")
            _add(studies.setdefault(part, []), one)
            commands.setdefault(part, []).extend(record["commands"][part])
    merged = {part: joined_study(studies[part]).to_dict() for part in PARTS if part in studies}
    write_text(output, json.dumps({"commands": commands, "studies": merged}, indent=1) + "\n")


def _add(parts: list[Study], one: Study) -> None:
    """Add a study to others; if one of the same dimension and width has other variants, join both."""
    variants = {point.variant for point in one.points}
    for place, other in enumerate(parts):
        same = (other.settings, other.on) == (one.settings, one.on)
        if same and variants.isdisjoint(point.variant for point in other.points):
            parts[place] = with_earlier_lines(one, other)
            return
    parts.append(one)


def joined_study(parts: list[Study]) -> Study:
    """One study of those that differ in dimension and width, which become part of the names of its lines."""
    parts = sorted(parts, key=lambda one: [int(one.settings[name]) for name in reversed(AXES)])
    labels = [show_settings({name: one.settings[name] for name in AXES}) for one in parts]
    if len(set(labels)) < len(labels):
        raise SystemExit("Two records have the same dimension and width.")

    def renamed(values: Callable[[Study], Iterable[Any]]) -> Iterator[Any]:
        for one, label in zip(parts, labels, strict=True):
            for value in values(one):
                if isinstance(value, dict):
                    yield value | {"variant": f"{value['variant']}[{label}]"}
                else:
                    yield replace(value, variant=f"{value.variant}[{label}]")

    return replace(
        parts[0],
        points=tuple(renamed(lambda one: one.points)),
        laws=tuple(renamed(lambda one: one.laws)),
        cards=tuple(renamed(lambda one: one.cards)),
        boundary=tuple(renamed(lambda one: one.boundary)),
        passed=all(one.passed for one in parts),
        gate=tuple(f"{label}: {why}" for one, label in zip(parts, labels, strict=True) for why in one.gate),
        notes=tuple(
            f"{label}: {note}" for one, label in zip(parts, labels, strict=True) for note in one.notes
        ),
        complete=all(one.complete for one in parts),
        took_s=sum(one.took_s for one in parts),
        settings={name: value for name, value in parts[0].settings.items() if name not in AXES},
    )


def read(path: Path) -> Studies:
    if not path.is_file():
        return {}
    return {
        part: Study.from_dict(data)
        for part, data in json.loads(path.read_text(encoding="utf-8"))["studies"].items()
    }


def line_name(variant: str, mlp: str, record: Study) -> str:
    """Return the name of a line of the study, including the MLP if there are several."""
    return variant if "mlp" in record.settings else f"{variant}[mlp={mlp}]"


def law(studies: Studies, part: str, variant: str, mlp: str, mode: str) -> Law | None:
    record = studies.get(part)
    if record is None or record.settings.get("mlp", mlp) != mlp:
        return None
    return next(
        (one for one in record.laws if (one.variant, one.mode) == (line_name(variant, mlp, record), mode)),
        None,
    )


def width_law(
    studies: Studies, part: str, variant: str, dimension: str, channels: str, mode: str
) -> Law | None:
    name = f"{variant}[{show_settings({'channels': channels, 'dimension': dimension})}]"
    laws = studies[part].laws if part in studies else ()
    return next((one for one in laws if (one.variant, one.mode) == (name, mode)), None)


def points(studies: Studies, part: str, variant: str, mlp: str, mode: str) -> list[Point]:
    record = studies.get(part)
    if record is None or record.settings.get("mlp", mlp) != mlp:
        return []
    return [
        p
        for p in record.points
        if (p.variant, p.mode, p.status) == (line_name(variant, mlp, record), mode, "ok")
    ]


def format_mlp(mlp: str) -> str:
    widths = mlp.split(",")
    return f"[{widths[0]}]x{len(widths)}" if len(widths) > 2 and len(set(widths)) == 1 else f"[{mlp}]"


def slope_cells(
    law_of: Callable[[Studies, str, str], Law | None], both: tuple[Studies, Studies]
) -> list[str]:
    """Bytes per edge: eager in training and inference, their ratio, and flat in training and inference.

    Predicted, and measured in brackets if there is a record. law_of(studies, variant, mode): of a row.
    """

    def cell(variant: str, mode: str) -> str:
        forecast, measurement = (law_of(studies, variant, mode) for studies in both)
        text = "-" if forecast is None else f"{forecast.slope_bytes_per_point:,.0f}"
        return text if measurement is None else f"{text} ({measurement.slope_bytes_per_point:,.0f})"

    train, infer = (law_of(both[0], "eager", mode) for mode in ("train", "infer"))
    ratio = (
        "-"
        if train is None or infer is None
        else f"{train.slope_bytes_per_point / infer.slope_bytes_per_point:.2f}"
    )
    row = [cell(variant, mode) for variant in ("eager", "flat") for mode in ("train", "infer")]
    return [row[0], row[1], ratio, row[2], row[3]]


def slopes(predicted: Studies, measured: Studies) -> Iterator[list[str]]:
    """Yield rows for every part and MLP."""
    for part in PARTS:
        for mlp in MLPS:
            cells = slope_cells(
                lambda studies, variant, mode, part=part, mlp=mlp: law(studies, part, variant, mlp, mode),
                (predicted, measured),
            )
            yield [part, format_mlp(mlp), *cells]


def widths(predicted: Studies, measured: Studies) -> Iterator[list[str]]:
    """Yield rows for every part, coordinate dimension and feature width."""
    for part, dimension, channels in product(filter(predicted.__contains__, PARTS), DIMENSIONS, CHANNELS):
        row = part, dimension, channels
        cells = slope_cells(
            lambda studies, variant, mode, row=row: width_law(studies, row[0], variant, *row[1:], mode),
            (predicted, measured),
        )
        yield [*row, *cells]


def peaks(predicted: Studies, measured: Studies) -> Iterator[list[str]]:
    """Yield rows of peaks and times of the encoder's training step, for each size and variant."""
    for variant in ("eager", "checkpoint", "flat"):
        by_size = {p.size: p for p in points(measured, "encoder", variant, MAIN_MLP, "train")}
        for point in points(predicted, "encoder", variant, MAIN_MLP, "train"):
            real = by_size.get(point.size)
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
    """Yield rows of the most edges that fit each card in training, with a tenth of its memory left free."""
    record = predicted.get("encoder")
    rows = [] if record is None else [row for row in record.cards if row["mode"] == "train"]
    for card, memory in dict.fromkeys((row["card"], row["memory_bytes"]) for row in rows):
        sizes = {row["variant"]: row["size"] for row in rows if row["card"] == card}
        assert record is not None
        line = [sizes.get(line_name("eager", mlp, record)) for mlp in MLPS] + [
            sizes.get(line_name("flat", MAIN_MLP, record))
        ]
        yield [card, show_bytes(memory), *("-" if size is None else show_size(_round(size)) for size in line)]


def _round(size: int) -> int:
    """Round down to three digits, because further digits are noise."""
    digits = max(len(str(size)) - 3, 0)
    return size // 10**digits * 10**digits


def table(header: list[str], rows: Iterator[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def fill(text: str, name: str, body: str) -> str:
    """Return the page with the text between the markers of `name` replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{PAGE} has no markers for {name}.")
    return pattern.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text)


def page(
    text: str, predicted: Studies, measured: Studies, widths_of: tuple[Studies, Studies] | None = None
) -> str:
    """Return the page's text with every table rewritten.

    widths_of: predicted and measured studies of widths; None leaves their table as it is.
    """
    where = {record.machine.get("gpu") for record in measured.values()}
    source = (
        f"Measured on {', '.join(sorted(filter(None, where)))}."
        if measured
        else "These peaks are predicted; there is no record of a measurement."
    )
    mlps = [format_mlp(mlp) for mlp in MLPS]
    columns = ["variant", "edges", "predicted", "measured", "error", "step"]
    column_count = len(columns) if measured else 3  # without columns of dashes
    peak_table = table(columns[:column_count], (row[:column_count] for row in peaks(predicted, measured)))
    slope_columns = ["eager train", "eager infer", "train / infer", "flat train", "flat infer"]
    tables = {
        "slopes": table(["part", "MLP", *slope_columns], slopes(predicted, measured)),
        "peaks": f"{peak_table}\n\n{source}",
        "cards": table(
            ["card", "memory", *(f"eager {mlp}" for mlp in mlps), f"flat {format_mlp(MAIN_MLP)}"],
            cards(predicted),
        ),
    }
    if widths_of is not None:
        tables["widths"] = table(["part", "coordinates", "channels", *slope_columns], widths(*widths_of))
    for name, body in tables.items():
        text = fill(text, name, body)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    by_mlp = verbs.add_parser("study", help="Study parts and MLPs, and write the record.")
    by_width = verbs.add_parser("widths", help="Study coordinate dimensions and feature widths.")
    for verb, variants in ((by_mlp, "all"), (by_width, "eager,flat")):
        verb.add_argument("--parts", default=",".join(PARTS), help="Parts of the operator.")
        verb.add_argument("--variants", default=variants, help="Variants to study.")
        verb.add_argument("--sizes", default="500k,1M,2M", help="Numbers of edges.")
        verb.add_argument("--on", default="fake", help="Where to run: fake, cpu, cuda or card:24GiB.")
        verb.add_argument("--repeats", type=int, default=10, help="Timed runs per point.")
        verb.add_argument("-o", "--output", type=Path, required=True, help="File of the record.")
    by_mlp.add_argument(
        "--mlp", action="append", help="Hidden widths of an MLP; repeat the option for several."
    )
    by_width.add_argument("--mlp", default=MAIN_MLP, help="Hidden widths of the MLP.")
    by_width.add_argument("--dimensions", default=",".join(DIMENSIONS), help="Coordinates that edges read.")
    by_width.add_argument("--channels", default=",".join(CHANNELS), help="Features of a point and a token.")
    by_width.add_argument(
        "--no-times", action="store_true", help="Leave times out: other processes share the device."
    )
    merger = verbs.add_parser("merge", help="Make one record of those of `widths` with one value each.")
    merger.add_argument("records", type=Path, nargs="+", help="Records of `widths`.")
    merger.add_argument("-o", "--output", type=Path, required=True, help="File of the record.")
    verbs.add_parser("page", help="Write the tables of the page.")
    args = parser.parse_args()
    if args.verb == "merge":
        merge(args.records, args.output)
    elif args.verb != "page":
        settings: dict[str, list[str]] = (
            {"mlp": args.mlp or list(MLPS)}
            if args.verb == "study"
            else {
                "mlp": [args.mlp],
                "dimension": args.dimensions.split(","),
                "channels": args.channels.split(","),
            }
        )
        run(
            parts=args.parts.split(","),
            settings=settings,
            variants=args.variants,
            sizes=args.sizes,
            on=args.on,
            repeats=args.repeats,
            output=args.output,
            times=not getattr(args, "no_times", False),
        )
    else:
        text = PAGE.read_text(encoding="utf-8")
        both = read(WIDTHS[0]), read(WIDTHS[1])
        write_text(PAGE, page(text, read(PREDICTED), read(MEASURED), both))


if __name__ == "__main__":
    main()
