"""Five common models: pinchpoint beside torch's MemTracker, torch-kitsune, and accelerate's estimator.

    python benchmarks/estimators/peers.py measure -o measured.json     # needs a GPU; runs MemTracker, too
    python benchmarks/estimators/peers.py estimate -o estimated.json   # any machine
    python benchmarks/estimators/peers.py table --measured measured.json --estimated estimated.json

`estimate` needs transformers, accelerate, and torch-kitsune; pinchpoint must be importable. Each estimator is
asked for what it offers: MemTracker runs the step on fake CUDA tensors, which needs a CUDA build of torch;
torch-kitsune gets the model, the shape of one input, and the batch size; accelerate's rule is four times the
weights (weights, gradients, two states of Adam), whatever the batch size. The truth is
`torch.cuda.max_memory_allocated` after three steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from five_models import MODELS

HERE = Path(__file__).parent
RECORD = HERE.parent / "results" / "peers_h200.json"
INPUT_SHAPES = {
    "bert_base": (512,),
    "gpt2": (1024,),
    "resnet50": (3, 224, 224),
    "vit_b16": (3, 224, 224),
    "t5_base": (512,),
}
COLUMNS = {
    "pinchpoint": "pinchpoint",
    "memtracker": "MemTracker",
    "kitsune": "torch-kitsune",
    "accelerate": "accelerate",
}


def measure_case(name: str) -> dict[str, Any]:
    """Peaks of three real steps."""
    model = MODELS[name]
    case = model.case(model.batch, "cuda")
    for _ in range(3):
        case.step()
    torch.cuda.synchronize()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def memtracker_case(name: str) -> dict[str, Any]:
    """The peak of two steps on fake CUDA tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    model = MODELS[name]
    with FakeTensorMode():
        with torch.device("cuda"):
            built = model.build()
        case = model.case_of(built, model.batch, "cuda")
        tracker = MemTracker()
        tracker.track_external(case.model, case.optimizer, *case.inputs.values())
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                case.step()
    peaks = tracker.get_tracker_snapshot("peak")
    return {"allocated_bytes": max(parts["Total"] for parts in peaks.values())}


def kitsune_case(name: str) -> dict[str, Any]:
    from kitsune.predict import predict_memory  # pyright: ignore[reportMissingImports]

    model = MODELS[name]
    result = predict_memory(
        model.build(),
        input_shape=INPUT_SHAPES[name],
        batch_size=model.batch,
        optimizer="adamw",
        training=True,
    )
    return {"allocated_bytes": int(result.total_bytes)}


def accelerate_case(name: str) -> dict[str, Any]:
    from accelerate import init_empty_weights
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with init_empty_weights():
        built = MODELS[name].build()
    total_bytes, _ = calculate_maximum_sizes(built)
    return {"allocated_bytes": int(max(estimate_training_usage(total_bytes, "float32").values()))}


def pinchpoint_case(name: str) -> dict[str, Any]:
    from pinchpoint import predict

    forecast = predict(f"{HERE / 'five_models.py'}:{name}", size=MODELS[name].batch, card="h200")
    return {
        "allocated_bytes": forecast.peak_allocated_bytes,
        "reserved_bytes": forecast.peak_reserved_bytes,
        "low_bytes": forecast.low_bytes,
        "high_bytes": forecast.high_bytes,
        "total_bytes": forecast.total_bytes,
    }


def _send(pipe: Any, job: Callable[[str], dict[str, Any]], name: str) -> None:
    start = time.perf_counter()
    try:
        answer = job(name)
    except Exception as error:  # a failed case is one cell of the table and does not stop the others
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    pipe.send({**answer, "wall_s": round(time.perf_counter() - start, 2)})


def start(job: Callable[[str], dict[str, Any]], name: str) -> Callable[[], dict[str, Any]]:
    """Start the job in a forked process with its own CUDA context and allocator; the result waits for it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, job, name))
    process.start()

    def wait() -> dict[str, Any]:
        answer = ours.recv() if ours.poll(300) else {"error": "no answer within 300 s"}
        process.join(10)
        print(json.dumps({"model": name, "job": job.__name__, **answer}), flush=True)
        return answer

    return wait


def write(output: Path, results: dict[str, dict[str, Any]], **about: Any) -> int:
    from pinchpoint.core import machine
    from pinchpoint.core.records import now

    data = {
        "command": shlex.join(["python", *sys.argv]),
        "created": now(),
        "machine": {**machine.describe(), **about},
        "models": results,
    }
    output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    tracked = {name: start(memtracker_case, name) for name in MODELS}
    measured = {name: start(measure_case, name)() for name in MODELS}
    results = {name: {"measured": measured[name], "memtracker": tracked[name]()} for name in MODELS}
    return write(args.output, results)


def estimate(args: argparse.Namespace) -> int:
    import importlib.metadata

    torch.set_num_threads(1)
    packages = ("transformers", "accelerate", "torch-kitsune")
    results = {
        name: {
            "kitsune": start(kitsune_case, name)(),
            "accelerate": start(accelerate_case, name)(),
            "pinchpoint": pinchpoint_case(name),
        }
        for name in MODELS
    }
    versions = {package: importlib.metadata.version(package) for package in packages}
    return write(args.output, results, peers=versions)


def table_lines(record: dict[str, Any]) -> list[str]:
    """The table in GiB, with the error of each estimate."""
    lines = [
        "| training step, fp32, AdamW | measured | " + " | ".join(COLUMNS.values()) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for name, case in record["models"].items():
        truth = case["measured"]["allocated_bytes"]
        cells = [f"{truth / 2**30:.2f}"]
        for column in COLUMNS:
            value = case[column].get("allocated_bytes")
            cells.append("failed" if value is None else f"{value / 2**30:.2f} ({value / truth - 1:+.1%})")
        lines.append(f"| {MODELS[name].title} | " + " | ".join(cells) + " |")
    return lines


def table(args: argparse.Namespace) -> int:
    measured, estimated = (
        json.loads(path.read_text(encoding="utf-8")) for path in (args.measured, args.estimated)
    )
    record = {
        "kind": "peers",
        "schema": 1,
        "target": "benchmarks/estimators",
        "created": measured["created"],
        "commands": [measured["command"], estimated["command"]],
        "machine": measured["machine"],
        "estimated_on": estimated["machine"],
        "models": {
            name: {"title": MODELS[name].title, **measured["models"][name], **estimated["models"][name]}
            for name in MODELS
        },
    }
    args.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table_lines(record)))
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="measure|estimate|table")
    for name, job, about in (
        ("measure", measure, "Run the models, and MemTracker, on the GPU."),
        ("estimate", estimate, "Ask the estimators that need no GPU."),
        ("table", table, "Write the record and print the table."),
    ):
        verb = verbs.add_parser(name, help=about, description=about)
        verb.set_defaults(run=job)
        if name == "table":
            verb.add_argument("--measured", type=Path, required=True)
            verb.add_argument("--estimated", type=Path, required=True)
            verb.add_argument("--record", type=Path, default=RECORD)
        else:
            verb.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
