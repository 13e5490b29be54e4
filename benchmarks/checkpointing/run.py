"""The benchmark of `plan --checkpointing auto`: is the choice right, and is its extra time small?

    python benchmarks/checkpointing/run.py plan -o plans.json
    python benchmarks/checkpointing/run.py measure --plans plans.json -o measured.json
    python benchmarks/checkpointing/run.py table --plans plans.json --measured measured.json

`plan` needs no GPU. The budget of each program is 70 % of the way from what it needs without recomputation to
what it needs with as much of it as helps. `measure` trains on a GPU with the planned choice, with none, with
all, and with random choices of the same modules. A choice fits if three steps run with the allocator limited
to the budget less the CUDA context, starting with an empty device as a new process does. Random choices are
drawn until 20 fit; unlike the plan, they need not leave a margin for errors of a forecast. Step times are
taken in turn (A B C A B C), without a limit. The batches are so large that the GPU and not the host decides
how long a step takes.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import random
import shlex
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RECORD = ROOT / "benchmarks" / "results" / "checkpointing_h200.json"
PROGRAMS = ("gpt2", "unet")
RANDOM, DRAWS, STEPS = 20, 200, 3
SHARE = 0.7  # of the way from the need without recomputation to that with as much as helps: the budget
BAR = 1.2
PRODUCTS = (
    "mm",
    "addmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
Choice = dict[str, bool]  # modules to recompute, and whether the results of products in them are kept


# --- plan


def plan(names: list[str]) -> dict[str, Any]:
    """What the plan chooses for each program, and the modules among which random choices are drawn."""
    from pinchpoint import plan_checkpointing
    from pinchpoint.forecasting.cards import card
    from pinchpoint.forecasting.forecaster import Forecaster
    from pinchpoint.planning.checkpointing.module_choice import choose_smallest, read_profile

    rows: dict[str, Any] = {}
    for name in names:
        path = str((HERE / "programs" / f"{name}.py").relative_to(ROOT))
        with Forecaster(path) as forecaster:
            none = forecaster.predict(recompute={})
            least = none.peak_allocated_bytes // 2000
            profile = read_profile(none.seen["recomputation"], least_bytes=least)
            every_chosen = choose_smallest(profile)
            smallest = [profile.candidates[at] for at in sorted(every_chosen)]
            every = forecaster.predict(recompute={module.name: module.keeps_products for module in smallest})
        context = card("h200").context_high_bytes
        most, least_needed = none.needs_bytes or 0, every.needs_bytes or 0
        budget = context + most - int(SHARE * (most - least_needed))
        started = time.perf_counter()
        result = plan_checkpointing(path, budget=budget)
        rows[name] = {
            "script": path,
            "budget_bytes": budget,
            "plan": result.to_dict(),
            "plan_s": round(time.perf_counter() - started, 1),
            "none": _predicted(none),
            "all": _predicted(every)
            | {
                "modules": {_inside(module.name): module.keeps_products for module in smallest},
                "extra_s": profile.seconds(every_chosen),
            },
            "modules": [
                [
                    _inside(module.name),
                    module.keeps_products,
                    module.freed_bytes,
                    module.device_s,
                    module.host_s,
                ]
                for module in profile.candidates
            ],
        }
        print(f"{name}: {len(result.modules)} modules, fits {result.fits}", file=sys.stderr)
    return rows


def _inside(name: str) -> str:
    return name.partition(".")[2]


def _predicted(forecast: Any) -> dict[str, Any]:
    return {
        "allocated_bytes": forecast.peak_allocated_bytes,
        "reserved_bytes": forecast.peak_reserved_bytes,
        "needs_bytes": forecast.needs_bytes,
        "device_s": forecast.seen["recomputation"]["device_s"],
        "host_s": forecast.seen["recomputation"]["host_s"],
    }


# --- measure


class Trained:
    """One program on the GPU, whose modules can be recomputed or not."""

    def __init__(self, path: Path) -> None:
        import torch

        self.torch = torch
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        self.program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.program)
        torch.manual_seed(0)
        self.model, self.optimizer = self.program.build()
        self.batch = self.program.draw()
        self.forwards = {name: module.forward for name, module in self.model.named_modules()}
        self.total_bytes = torch.cuda.get_device_properties(0).total_memory

    def recompute(self, chosen: Choice) -> None:
        """Recompute the chosen modules, and keep the results of products in some of them."""
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        products = [getattr(self.torch.ops.aten, name).default for name in PRODUCTS]
        policy = {"context_fn": partial(create_selective_checkpoint_contexts, products)}
        for name, module in self.model.named_modules():
            module.forward = self.forwards[name]
            if name in chosen:
                how = policy if chosen[name] else {}
                module.forward = partial(checkpoint, module.forward, use_reentrant=False, **how)

    def step(self) -> None:
        self.program.train_step(self.model, self.optimizer, self.batch)

    def clean(self) -> None:
        """Free everything on the device, and then place the model there, as at the start of a process."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        self.model.cpu()
        gc.collect()
        self.torch.cuda.empty_cache()
        self.model.cuda()

    def peaks(self, limit_bytes: int | None) -> dict[str, Any]:
        """The peaks of three steps with the allocator limited to so many bytes, and whether they ran."""
        torch = self.torch
        self.clean()
        torch.cuda.reset_peak_memory_stats()
        share = 1.0 if limit_bytes is None else limit_bytes / self.total_bytes
        torch.cuda.set_per_process_memory_fraction(share)
        try:
            for _ in range(STEPS):
                self.step()
            torch.cuda.synchronize()
            ran = True
        except torch.OutOfMemoryError:
            ran = False
        torch.cuda.set_per_process_memory_fraction(1.0)
        peaks = {
            "ran": ran,
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        return peaks

    def seconds(self, steps: int) -> list[float]:
        """The times of single steps, after one that is not timed."""
        torch = self.torch
        self.step()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self.step()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def draw_choice(modules: list[tuple[str, bool]], chance: random.Random) -> Choice:
    """Random modules, none inside another: each is taken with a probability that is drawn first."""
    share = chance.random()
    chosen: Choice = {}
    for name, keeps_products in chance.sample(modules, len(modules)):
        is_related = any(f"{one}.".startswith(f"{name}.") or name.startswith(f"{one}.") for one in chosen)
        if not is_related and chance.random() < share:
            chosen[name] = keeps_products
    return chosen


def measure_program(row: dict[str, Any], rounds: int, steps: int, limit_s: float) -> dict[str, Any]:
    """limit_s: no further random choice, and then no further round of times, begins after so many seconds."""
    started_s = time.monotonic()
    trained = Trained(ROOT / row["script"])
    torch = trained.torch
    for _ in range(3):
        trained.step()
    torch.cuda.synchronize()
    trained.clean()
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    room = row["budget_bytes"] - context
    kept = set(row["plan"]["keeping_products"])
    choices: dict[str, Choice] = {
        "none": {},
        "plan": {name: name in kept for name in row["plan"]["modules"]},
        "all": row["all"]["modules"],
    }
    results: dict[str, dict[str, Any]] = {}
    for name, chosen in choices.items():
        trained.recompute(chosen)
        results[name] = {"modules": chosen, **trained.peaks(None)}
        results[name]["fits"] = trained.peaks(room)["ran"]
    chance, drawn = random.Random(0), 0
    while len(choices) < RANDOM + 3 and drawn < DRAWS and time.monotonic() - started_s < limit_s / 2:
        drawn += 1
        chosen = draw_choice([(name, keeps) for name, keeps, *_ in row["modules"]], chance)
        trained.recompute(chosen)
        peaks = trained.peaks(room)
        if peaks["ran"] and chosen not in choices.values():
            name = f"random {len(choices) - 2}"
            choices[name] = chosen
            results[name] = {"modules": chosen, **peaks, "fits": True}
    trained.clean()
    times: dict[str, list[float]] = {name: [] for name in choices}
    for done in range(rounds):
        if done > 1 and time.monotonic() - started_s > limit_s:
            break
        for name, chosen in choices.items():
            trained.recompute(chosen)
            times[name] += trained.seconds(steps)
    for name, values in times.items():
        results[name]["step_s"] = statistics.median(values)
        results[name]["times_s"] = values
    trained.clean()
    return {
        "context_bytes": context,
        "limit_bytes": room,
        "drawn": drawn,
        "took_s": round(time.monotonic() - started_s, 1),
        "steps": steps,
        "choices": results,
    }


# --- table


def table(plans: dict[str, Any], measured: dict[str, Any]) -> tuple[str, bool]:
    """The results as a Markdown table, and whether the bar is met."""
    lines = [
        "| program | budget | choice | modules | predicted peak | measured | step | extra | estimated |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    verdicts, is_met = [], True
    for name, row in plans.items():
        choices = measured[name]["choices"]
        base_s = choices["none"]["step_s"]
        predicted = {
            "none": (row["none"]["allocated_bytes"], 0.0),
            "plan": (row["plan"]["peak_allocated_bytes"], row["plan"]["extra_s"]),
            "all": (row["all"]["allocated_bytes"], row["all"]["extra_s"]),
        }
        best = min(
            (key for key in choices if key.startswith("random")), key=lambda key: choices[key]["step_s"]
        )
        for key in ("none", "plan", "all", best):
            choice = choices[key]
            size, extra_s = predicted.get(key, (None, None))
            lines.append(
                f"| {name} | {row['budget_bytes'] / 2**30:.2f} GiB | {key} | {len(choice['modules'])} "
                f"| {'-' if size is None else f'{size / 2**30:.3f} GiB'} "
                f"| {choice['allocated_bytes'] / 2**30:.3f} GiB | {1e3 * choice['step_s']:.2f} ms "
                f"| {1e3 * (choice['step_s'] - base_s):.2f} ms "
                f"| {'-' if extra_s is None else f'{1e3 * extra_s:.2f} ms'} |"
            )
        ratio = (choices["plan"]["step_s"] - base_s) / max(choices[best]["step_s"] - base_s, 1e-9)
        count = sum(key.startswith("random") for key in choices)
        is_good = choices["plan"]["fits"] and ratio <= BAR
        is_met = is_met and is_good and count == RANDOM
        verdict = "met" if is_good else "missed"
        if is_good and count < RANDOM:
            verdict = f"met so far, but time was left for {count} of {RANDOM} random choices only"
        verdicts.append(
            f"- {name}: {verdict}; the plan fits: {choices['plan']['fits']}; its extra time is {ratio:.2f} "
            f"of that of the best of {count} random choices that fit ({measured[name]['drawn']} drawn)"
        )
    bar = f"Bar: fits when measured, and extra time within {BAR} of the best random choice that fits."
    return "\n".join([*lines, "", bar, "", *verdicts, ""]), is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("plan", "measure", "table"))
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--plans", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=90.0, help="seconds per program in measure")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    command = shlex.join(["python", "benchmarks/checkpointing/run.py", *sys.argv[1:]])
    if options.what == "plan":
        return _write(options.output, {"command": command, "programs": plan(options.programs)})
    plans = json.loads(options.plans.read_text())
    if options.what == "measure":
        import torch

        chosen = {name: plans["programs"][name] for name in options.programs}
        content: dict[str, Any] = {
            "command": command,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "programs": {},
        }
        for name, row in chosen.items():
            content["programs"][name] = measure_program(row, options.rounds, options.steps, options.limit_s)
            _write(options.output, content)
        return 0
    measured = json.loads(options.measured.read_text())
    text, is_met = table(plans["programs"], measured["programs"])
    print(text)
    _write(options.output or RECORD, {"plans": plans, "measured": measured, "met": is_met})
    (options.output or RECORD).with_suffix(".md").write_text(f"# What to recompute, on one H200\n\n{text}")
    return 0 if is_met else 1


def _write(path: Path, content: dict[str, Any]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
