"""The pieces of the comparison: preparing bodies, tuning both models, training with a seed, timing steps.

Tuning uses only training bodies: it trains on nine tenths of them, with fewer steps, and evaluates on the
rest. The learning rate of both models is chosen from the same list. GINO's shape is tuned too, one change
after another, all of them twice, each kept if it lowers the error; pinchpoint's operator keeps its preset.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from contenders import Problem
from parts import Part
from peer import Choices, NoSuchSize, parameter_count, reduce_by
from states import States
from training import Contender, Prepared, Schedule, judge, prepare, relative_error, train

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.files import write_bytes
from pinchpoint.studies.timing import interleave, measure, timing_of
from pinchpoint.systems.operator.data.sample import Sample

CHANGES: tuple[dict[str, Any], ...] = (
    {"modes": "half"},
    {"modes": "half", "factorization": "tucker"},
    {"decoder": "nonlinear"},
    {"weighting": "half_cos"},
    {"decoder_radius": "smallest"},
    {"norm": "instance_norm"},
    {"frequencies": 4},
)
Say = Callable[[str], None]


@dataclass
class Work:
    """One problem, its bodies and its device."""

    problem: Problem
    bodies: Mapping[str, Sequence[Sample]]  # train, held (the last of train), test, fine
    device: torch.device
    steps: int
    tune_steps: int
    rates: Sequence[float]
    loss: str
    say: Say
    states: States
    cache: Path  # folder for prepared bodies, which the processes of one comparison share
    in_memory: dict[tuple[Any, ...], list[Prepared]] = field(default_factory=dict)

    def tune(self, part: Part, save: Callable[[], None]) -> None:
        """Fill `tuning` and `chosen`; existing entries are not repeated."""
        best: dict[str, tuple[float, float]] = {}
        for name in ("ours", "gino"):
            trials = [(self._error_of(part, save, name, rate, Choices()), rate) for rate in self.rates]
            best[name] = min(trials)
        error, rate = best["gino"]
        choices = Choices()
        for change in (*CHANGES, *CHANGES):  # twice, because a change may help only together with another
            candidate = replace(choices, **change)
            trial = self._error_of(part, save, "gino", rate, candidate)
            if trial < error:
                error, choices = trial, candidate
        part["chosen"] = {"ours": {"lr": best["ours"][1]}, "gino": {"lr": rate, "choices": asdict(choices)}}
        save()

    def run(self, part: Part, name: str, seed: int) -> None:
        """Train with all training bodies and evaluate on the test bodies."""
        model, lr = self.model(part, name, seed)
        schedule = Schedule(self.steps, lr, seed=seed, loss=self.loss)
        what = f"{name}:{seed}"
        result = train(
            model,
            self.prepared(model, name, "train"),
            schedule,
            progress=self._progress(what),
            states=self.states,
            what=what,
        )
        result |= {"parameters": parameter_count(model), "about": _about(model)}  # pyright: ignore[reportArgumentType]
        for split in ("test", "fine"):
            if self.bodies[split]:
                result[split] = judge(model, self.prepared(model, name, split))
                self.say(f"{name}:{seed} {split}: median relative L1 {result[split]['median']['l1']:.2%}")
        part["runs"][what] = result

    def time(self, part: Part, *, repeats: int, loops: int) -> None:
        """Time a training step on the first test body, both models in turn.

        Then time GINO's own reduce, and compare the results of both reduces.
        """
        steps = {name: self._step(part, name) for name in ("ours", "gino")}
        with reduce_by("vectorised"):
            times = interleave(steps["ours"], steps["gino"], wait=self._wait, warmup=5, repeats=repeats)
        part["times"] = {
            name: asdict(timing_of(seconds)) for name, seconds in zip(("ours", "gino"), times, strict=True)
        }
        if loops:
            part["times"]["reduces_differ"] = self.reduces_differ(part)
            with reduce_by("loop"):
                part["times"]["gino, its own reduce"] = asdict(
                    measure(steps["gino"], wait=self._wait, warmup=0, repeats=loops)
                )

    def reduces_differ(self, part: Part) -> dict[str, float]:
        """Return the relative L2 difference of outputs and gradients between GINO's own reduce and ours.

        All gradients are compared together, not separately: the exact gradient of a bias before a norm is
        zero, so its relative difference would be rounding error.
        """
        model, _ = self.model(part, "gino", 0)
        one = self.prepared(model, "gino", "test")[0]
        results = {}
        for how in ("loop", "vectorised"):
            model.zero_grad()  # pyright: ignore[reportAttributeAccessIssue]
            with reduce_by(how):
                output = model(one.body)
                output.square().mean().backward()
            gradients = [p.grad.detach().clone() for p in model.parameters()]
            flat = [(torch.view_as_real(g) if g.is_complex() else g).reshape(-1) for g in gradients]
            results[how] = {"output": output.detach().reshape(-1), "gradients": torch.cat(flat)}
        own, ours = results["loop"], results["vectorised"]
        return {name: float((ours[name] - own[name]).norm() / own[name].norm()) for name in own}

    def model(self, part: Part, name: str, seed: int) -> tuple[Contender, float]:
        if not part["chosen"]:
            raise BadInput(
                "The learning rates are not tuned yet.",
                hint="Run with --only tune first, or pass the tuned part with --from.",
            )
        about = part["chosen"]["ours" if name == "ours" else "gino"]
        choices = Choices(**part["chosen"]["gino"]["choices"])
        return self._build(name, seed, choices), about["lr"]

    def prepared(self, model: Contender, name: str, split: str) -> list[Prepared]:
        """Return the prepared bodies of a split, computed once for all models with the same inputs."""
        key = (name, split, *_input_choices(model))
        if key not in self.in_memory:
            stale = [old for old in self.in_memory if old[:2] == key[:2]]
            for old in stale:
                del self.in_memory[old]
            self.in_memory[key] = self._load_or_prepare(
                key, lambda: prepare(model, self.bodies[split], self.device)
            )
        return self.in_memory[key]

    def _load_or_prepare(self, key: tuple[Any, ...], make: Callable[[], list[Prepared]]) -> list[Prepared]:
        """Return prepared bodies, cached on disk because building hundreds of graphs is slow."""
        bodies = [(body.name, len(body.points), float(body.target.sum())) for body in self.bodies[key[1]]]
        identity = json.dumps([*map(str, key), self.problem.config.to_json(), torch.__version__, bodies])
        path = self.cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:20]}.prepared"
        if path.exists():
            return torch.load(path, map_location=self.device, weights_only=False)
        prepared = make()
        buffer = io.BytesIO()
        torch.save(prepared, buffer)
        self.cache.mkdir(exist_ok=True)
        write_bytes(path, buffer.getvalue())
        return prepared

    def prepare(self) -> None:
        """Cache all bodies for both models, with the choices that tuning starts from."""
        for name in ("ours", "gino"):
            model = self._build(name, 0, Choices())
            for split in ("train", "test", "fine"):
                if self.bodies[split]:
                    self.prepared(model, name, split)

    def _error_of(
        self, part: Part, save: Callable[[], None], name: str, rate: float, choices: Choices
    ) -> float:
        changed = {key: value for key, value in asdict(choices).items() if value != asdict(Choices())[key]}
        key = " ".join([name, f"lr={rate:g}", *(f"{key}={value}" for key, value in changed.items())])
        if key not in part["tuning"]:
            part["tuning"][key] = self._trial(key, name, rate, choices)
            save()
            self.states.remove(key)
        return part["tuning"][key].get("l1", float("inf"))

    def _trial(self, key: str, name: str, rate: float, choices: Choices) -> dict[str, Any]:
        held_back = len(self.bodies["held"])
        try:
            model = self._build(name, 0, choices)
        except NoSuchSize as error:
            self.say(f"{key}: {error.what}")
            return {"refused": error.what}
        bodies = self.prepared(model, name, "train")
        try:
            schedule = Schedule(self.tune_steps, rate, loss=self.loss)
            result = train(model, bodies[: len(bodies) - held_back], schedule, states=self.states, what=key)
        except TargetFailed as error:
            self.say(f"{key}: {error.what}")
            return {"refused": error.what}
        errors = judge(model, bodies[len(bodies) - held_back :])["median"]
        self.say(
            f"{key}: median relative L1 {errors['l1']:.2%} on {held_back} held-back bodies, "
            f"{result['seconds']:.0f} s"
        )
        return {
            "steps": self.tune_steps,
            "step_s": result["step_s"],
            "parameters": parameter_count(model),
            **errors,
        }  # pyright: ignore[reportArgumentType]

    def _build(self, name: str, seed: int, choices: Choices) -> Contender:
        return self.problem.build(name, seed=seed, choices=choices).to(self.device)  # pyright: ignore[reportAttributeAccessIssue]

    def _step(self, part: Part, name: str) -> Callable[[], Any]:
        model, lr = self.model(part, name, 0)
        one = self.prepared(model, name, "test")[0]
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

        def step() -> torch.Tensor:
            loss = relative_error(model(one.body), one.target, self.loss)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss

        return step

    def _wait(self, _: Any) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _progress(self, what: str) -> Callable[[int, int, float], None]:
        def report(step: int, steps: int, loss: float) -> None:
            if step * 5 % steps < steps // 20 * 5:
                self.say(f"{what}: step {step:,} of {steps:,}, loss {loss:.4f}")

        return report


def _input_choices(model: Any) -> tuple[Any, ...]:
    """Return the choices that change a model's inputs."""
    gino = getattr(model, "gino", None)
    return () if gino is None else (gino.out_radius, gino.choices.weighting, gino.choices.repeat)


def _about(model: Any) -> dict[str, Any]:
    gino = getattr(model, "gino", None)
    return {} if gino is None else {"channels": gino.channels, **asdict(gino.choices)}
