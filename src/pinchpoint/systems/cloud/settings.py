"""Settings of a training run on point clouds: scenes, views and their losses, in addition to those that all
systems share.

No framework is imported here, so that the command line can read defaults and help texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.cell_size import cell_edges
from pinchpoint.systems.common.settings import TrainSettings, option

CONSISTENCIES = ("none", "cos", "mse", "kl")
MODES = ("auto", "batched", "accumulate")
SCHEDULES = ("together", "alternate")
# One view of each scene at a random density. Among recipes with equal numbers of points, this was the best at
# every density.
VIEWS = ("log-uniform:0.05:1",)


@dataclass(frozen=True)
class Settings(TrainSettings):
    """The settings of a run, as config.json holds them. `data`: see `data.sources.fingerprint`."""

    preset: str = option("small", "Preset of the model: small or base.", main=True)
    validation: int | None = option(
        None,
        "How many training scenes are held back to choose the best checkpoint.",
        at_least=0,
        default_text="an eighth, at most 4",
    )
    features: list[str] = field(default_factory=list)  # the columns read at each point, in this order
    classes: list[str] = field(default_factory=list)
    # Share of each class among the labelled points of the training scenes.
    frequency: list[float] = field(default_factory=list)
    ignore: list[int] = option(
        [], "Labels of your files that mean no class, besides -1, such as 255 or 0,255.", default_text="none"
    )
    target: str = option(
        "",
        "Array of your scenes to predict, such as lang_feat; labels are then optional.",
        main=True,
        metavar="NAME",
        default_text="none",
    )
    target_weight: float = option(1.0, "Weight of the loss of --target beside that of the classes.", above=0)
    scenes: int = option(2, "Scenes per step, in each process.", main=True, at_least=1)
    points: int = option(
        20_000,
        "Largest number of points per scene; of larger scenes, those nearest to a random point are used.",
        main=True,
        at_least=1,
        default_text="20k",
    )
    views: list[str] = option(
        list(VIEWS),
        "Views of each scene, such as dense,uniform:0.3:0.7,one-per-cell.",
        main=True,
        metavar="VIEW,...",
    )
    schedule: str = option(
        "together", "Whether a step has all views of its scenes, or one of them in turn", choices=SCHEDULES
    )
    cell: tuple[float, ...] | float | None = option(
        None,
        "Edge of the cells from which views are sampled; x,y,z for three edges.",
        main=True,
        above=0,
        metavar="SIZE|X,Y,Z",
        default_text="the edge of the network's voxels",
    )
    consistency: str = option(
        "none", "Consistency loss between the dense view and the others", main=True, choices=CONSISTENCIES
    )
    consistency_weight: float = option(0.1, "Weight of the consistency loss.", above=0)
    views_mode: str = option(
        "auto",
        "How the views of a scene are processed; accumulate needs less memory",
        choices=MODES,
        may_change=True,
    )
    record_steps: bool | None = option(
        None,
        "Record steps as CUDA graphs and replay them; draws are padded to a few sizes.",
        default_text="on a GPU, in one process, with norm=layer, without --target and views_mode=accumulate; "
        "with --budget, if the recordings are predicted to fit",
        may_change=True,
    )
    augment: bool = option(True, "Rotate, mirror, scale and jitter the scenes.")
    ranks: int = 1  # processes

    @property
    def views_per_step(self) -> int:
        return 1 if self.schedule == "alternate" else len(self.views)

    def check(self) -> None:
        super().check()
        if self.cell is not None:
            cell_edges(self.cell)
        if not self.views:
            raise BadInput(
                "The list of views is empty.",
                hint="Give --views at least one view, such as dense,log-uniform:0.05:1.",
            )
        if self.views.count("dense") > 1:
            raise BadInput(
                "The view `dense` is listed twice.", hint="Leave one out: both would show the same points."
            )
        if self.schedule == "alternate" and (len(self.views) < 2 or self.consistency != "none"):
            raise BadInput(
                "--set schedule=alternate shows one view per step, "
                + (
                    f"but there is only the view {self.views[0]}."
                    if len(self.views) < 2
                    else f"so --consistency {self.consistency} has nothing to compare."
                ),
                hint="Give --views dense,log-uniform:0.05:1 and no --consistency, or leave out the schedule.",
            )
        if self.consistency != "none" and ("dense" not in self.views or len(self.views) < 2):
            raise BadInput(
                f"--consistency {self.consistency} cannot be used with the views {','.join(self.views)}, "
                "because it compares other views with the dense one.",
                hint="Give --views dense,log-uniform:0.05:1, or --consistency none.",
            )
