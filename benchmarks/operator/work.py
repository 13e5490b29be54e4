"""The pieces of the comparison: prepare the bodies, tune both models, train one with one seed, time a step of each.

Tuning sees training bodies alone: it trains on nine tenths of them, with fewer steps, and judges on the rest. Both models
choose their learning rate from the same list. GINO also chooses its shape, one change after another and all of them
twice, each kept where it lowers the error; ours stays as its preset is.
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
    """One problem, its bodies and where it runs."""

    problem: Problem
    bodies: Mapping[str, Sequence[Sample]]  # train, held (the last of train), test, fine
    device: torch.device
    steps: int
    tune_steps: int
    rates: Sequence[float]
    loss: str
    say: Say
    states: States
    cache: Path  # folder for what the models read of bodies, which processes of one comparison share
    kept: dict[tuple[Any, ...], list[Prepared]] = field(default_factory=dict)

    def tune(self, part: Part, save: Callable[[], None]) -> None:
        """Fill `tuning` and `chosen`; what is there already is not done again."""
        best: dict[str, tuple[float, float]] = {}
        for name in ("ours", "gino"):
            tried = [(self._tried(part, save, name, rate, Choices()), rate) for rate in self.rates]
            best[name] = min(tried)
        error, rate = best["gino"]
        choices = Choices()
        for change in (*CHANGES, *CHANGES):  # again, as a change may help only beside another
            candidate = replace(choices, **change)
            found = self._tried(part, save, "gino", rate, candidate)
            if found < error:
                error, choices = found, candidate
        part["chosen"] = {"ours": {"lr": best["ours"][1]}, "gino": {"lr": rate, "choices": asdict(choices)}}
        save()

    def run(self, part: Part, name: str, seed: int) -> None:
        """Train with all training bodies and judge on the test bodies."""
        model, lr = self.model(part, name, seed)
        schedule = Schedule(self.steps, lr, seed=seed, loss=self.loss)
        what = f"{name}:{seed}"
        found = train(
            model,
            self.prepared(model, name, "train"),
            schedule,
            told=self._told(what),
            states=self.states,
            what=what,
        )
        found |= {"parameters": parameter_count(model), "about": _about(model)}  # pyright: ignore[reportArgumentType]
        for split in ("test", "fine"):
            if self.bodies[split]:
                found[split] = judge(model, self.prepared(model, name, split))
                self.say(f"{name}:{seed} {split}: median relative L1 {found[split]['median']['l1']:.2%}")
        part["runs"][what] = found

    def time(self, part: Part, *, repeats: int, loops: int) -> None:
        """A training step on the first test body, ours and GINO in turn; GINO's own reduce after that; and that both agree."""
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
        """Relative L2 difference between GINO's own reduce and the vectorised one: of the output, and of all gradients as one.

        Not of each gradient by itself: a bias before a norm has none in truth, and what is left there is rounding.
        """
        model, _ = self.model(part, "gino", 0)
        one = self.prepared(model, "gino", "test")[0]
        found = {}
        for how in ("loop", "vectorised"):
            model.zero_grad()  # pyright: ignore[reportAttributeAccessIssue]
            with reduce_by(how):
                output = model(one.body)
                output.square().mean().backward()
            gradients = [p.grad.detach().clone() for p in model.parameters()]
            flat = [(torch.view_as_real(g) if g.is_complex() else g).reshape(-1) for g in gradients]
            found[how] = {"output": output.detach().reshape(-1), "gradients": torch.cat(flat)}
        own, ours = found["loop"], found["vectorised"]
        return {name: float((ours[name] - own[name]).norm() / own[name].norm()) for name in own}

    def model(self, part: Part, name: str, seed: int) -> tuple[Contender, float]:
        if not part["chosen"]:
            raise BadInput(
                "no learning rates are known yet", hint="--only tune first, or --from the part that has them"
            )
        about = part["chosen"]["ours" if name == "ours" else "gino"]
        choices = Choices(**part["chosen"]["gino"]["choices"])
        return self._built(name, seed, choices), about["lr"]

    def prepared(self, model: Contender, name: str, split: str) -> list[Prepared]:
        """What the model reads of the bodies of a split, made once for all models that read the same."""
        key = (name, split, *_reads(model))
        if key not in self.kept:
            stale = [old for old in self.kept if old[:2] == key[:2]]
            for old in stale:
                del self.kept[old]
            self.kept[key] = self._read_or_made(key, lambda: prepare(model, self.bodies[split], self.device))
        return self.kept[key]

    def _read_or_made(self, key: tuple[Any, ...], make: Callable[[], list[Prepared]]) -> list[Prepared]:
        """From the cache, or made and kept there: graphs of hundreds of bodies take longer than a short training."""
        bodies = [(body.name, len(body.points), float(body.target.sum())) for body in self.bodies[key[1]]]
        named = json.dumps([*map(str, key), self.problem.config.to_json(), torch.__version__, bodies])
        path = self.cache / f"{hashlib.sha256(named.encode()).hexdigest()[:20]}.prepared"
        if path.exists():
            return torch.load(path, map_location=self.device, weights_only=False)
        made = make()
        held = io.BytesIO()
        torch.save(made, held)
        self.cache.mkdir(exist_ok=True)
        write_bytes(path, held.getvalue())
        return made

    def prepare(self) -> None:
        """All that either model reads of any body, at the choices tuning begins with, into the cache."""
        for name in ("ours", "gino"):
            model = self._built(name, 0, Choices())
            for split in ("train", "test", "fine"):
                if self.bodies[split]:
                    self.prepared(model, name, split)

    def _tried(self, part: Part, save: Callable[[], None], name: str, rate: float, choices: Choices) -> float:
        changed = {key: value for key, value in asdict(choices).items() if value != asdict(Choices())[key]}
        key = " ".join([name, f"lr={rate:g}", *(f"{key}={value}" for key, value in changed.items())])
        if key not in part["tuning"]:
            part["tuning"][key] = self._trial(key, name, rate, choices)
            save()
            self.states.done(key)
        return part["tuning"][key].get("l1", float("inf"))

    def _trial(self, key: str, name: str, rate: float, choices: Choices) -> dict[str, Any]:
        held = len(self.bodies["held"])
        try:
            model = self._built(name, 0, choices)
        except NoSuchSize as error:
            self.say(f"{key}: {error.what}")
            return {"refused": error.what}
        bodies = self.prepared(model, name, "train")
        try:
            schedule = Schedule(self.tune_steps, rate, loss=self.loss)
            found = train(model, bodies[: len(bodies) - held], schedule, states=self.states, what=key)
        except TargetFailed as error:
            self.say(f"{key}: {error.what}")
            return {"refused": error.what}
        errors = judge(model, bodies[len(bodies) - held :])["median"]
        self.say(
            f"{key}: median relative L1 {errors['l1']:.2%} on {held} bodies held back, {found['seconds']:.0f} s"
        )
        return {
            "steps": self.tune_steps,
            "step_s": found["step_s"],
            "parameters": parameter_count(model),
            **errors,
        }  # pyright: ignore[reportArgumentType]

    def _built(self, name: str, seed: int, choices: Choices) -> Contender:
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

    def _told(self, what: str) -> Callable[[int, int, float], None]:
        def told(step: int, steps: int, loss: float) -> None:
            if step * 5 % steps < steps // 20 * 5:
                self.say(f"{what}: step {step:,} of {steps:,}, loss {loss:.4f}")

        return told


def _reads(model: Any) -> tuple[Any, ...]:
    """The choices that change what a model reads of a body."""
    gino = getattr(model, "gino", None)
    return () if gino is None else (gino.out_radius, gino.choices.weighting, gino.choices.repeat)


def _about(model: Any) -> dict[str, Any]:
    gino = getattr(model, "gino", None)
    return {} if gino is None else {"channels": gino.channels, **asdict(gino.choices)}
