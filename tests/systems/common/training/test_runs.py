"""Run folders: the errors if a run cannot be resumed or has no best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import TrainSettings, differences
from pinchpoint.systems.common.training.runs import Run, at_data, data_folder, read_settings, resume_settings
from pinchpoint.systems.radiance.settings import Settings as Scored


@dataclass(frozen=True)
class Together(TrainSettings):
    ranks: int = 1


@pytest.mark.parametrize(
    ("was", "now", "hint"),
    [
        (2, 1, "Start it with `torchrun --nproc-per-node 2` to resume it"),
        (4, 2, "Start it with `torchrun --nproc-per-node 4` to resume it"),
        (1, 2, "Start it without torchrun to resume it"),
    ],
)
def test_a_run_with_another_number_of_processes_says_how_to_start_them(
    was: int, now: int, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=rf"ranks \(was {was}, is {now}\)") as excinfo:
        resume_settings(tmp_path, Together(data="a", ranks=was), {"ranks": now}, data="a")
    assert excinfo.value.hint.startswith(hint) and "options" not in excinfo.value.hint


def test_other_processes_data_and_options_each_have_their_own_hint(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as excinfo:
        resume_settings(tmp_path, Together(data="a", ranks=2), {"ranks": 1, "lr": 7.0}, data="b")
    assert excinfo.value.hint.startswith(
        "Give the dataset it was started with and start it with `torchrun --nproc-per-node 2` "
        "and leave these options out to resume it"
    )
    with pytest.raises(BadInput) as excinfo:
        resume_settings(tmp_path, Together(data="a", ranks=2), {"ranks": 2, "lr": 7.0}, data="a")
    assert excinfo.value.hint.startswith("Leave these options out to resume it")


def test_a_run_cannot_be_made_shorter(tmp_path: Path) -> None:
    stored = Together(data="a", steps=1000)
    with pytest.raises(
        BadInput, match=r"is of 1,000 steps and cannot be made shorter: --steps 3\."
    ) as caught:
        resume_settings(tmp_path, stored, {"steps": 3}, data="a")
    assert caught.value.hint.startswith("Leave --steps out, or give more than 1,000 to train it longer")
    # Other options and another dataset are named as well: correcting one of them is not enough.
    with pytest.raises(BadInput, match=r"lr \(was .*steps \(was 1000, is 3\)"):
        resume_settings(tmp_path, stored, {"lr": 7.0, "steps": 3}, data="a")


@pytest.mark.parametrize(
    ("settings", "why", "hint"),
    [
        (TrainSettings(validation=0), "nothing was held back", "--set validation=1"),
        (TrainSettings(validation=2, eval_every=50), "none was scored up to step 3", "every 50 steps"),
        (
            Scored(eval_images=0),
            "no distances were measured during training",
            "train with --set eval_images=256",
        ),
        (
            Scored(eval_every=50),
            "none was scored up to step 3",
            "resume the run with --resume: checkpoints are scored every 50 steps",
        ),
    ],
)
def test_a_run_without_a_best_checkpoint_says_why(
    settings: TrainSettings, why: str, hint: str, tmp_path: Path
) -> None:
    run = Run(tmp_path, settings)
    run.checkpoints.save({}, step=3)
    assert run.find_checkpoint("last").step == 3
    with pytest.raises(BadInput, match=f"has no best checkpoint: {why}") as excinfo:
        run.find_checkpoint("best")
    assert excinfo.value.hint.lower().startswith("use --checkpoint last, or ") and hint in excinfo.value.hint


@pytest.mark.parametrize("which", ["last", "best"])
def test_a_run_without_any_checkpoint_is_refused(which: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no checkpoint") as excinfo:
        Run(tmp_path, Scored()).find_checkpoint(which)  # pyright: ignore[reportArgumentType]
    assert excinfo.value.what.endswith("has no checkpoint.") and excinfo.value.hint.startswith("Train it")


def run_with_data(folder: Path, data: Path | str) -> Run[TrainSettings]:
    """A run that stores the path of its data."""
    run = at_data(Run(folder, TrainSettings(data="a")), Path(data), data)
    run.write()
    return run


def test_a_run_stores_the_path_of_its_data_as_typed_and_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rooms").mkdir()
    monkeypatch.chdir(tmp_path)
    run = run_with_data(tmp_path / "run", "rooms")
    assert (run.settings.data_path, run.settings.data_given) == (str(tmp_path / "rooms"), "rooms")
    find_data = partial(data_folder, run=tmp_path / "run", kind=TrainSettings, system="cloud")
    assert find_data(None, resume=True) == tmp_path / "rooms"
    assert find_data("other", resume=True) == Path("other"), "data that were moved"
    other_folder = tmp_path / "moved"
    other_folder.mkdir()
    (tmp_path / "rooms").rename(other_folder / "rooms")
    monkeypatch.chdir(other_folder)
    assert find_data(None, resume=True) == Path("rooms"), "the same name in the current folder"


def test_a_run_resumed_without_data_keeps_their_path_as_typed(tmp_path: Path) -> None:
    run = at_data(Run(tmp_path, TrainSettings(data="a")), Path("rooms"), "rooms")
    settings = at_data(run, tmp_path / "rooms", None).settings
    assert (settings.data_path, settings.data_given) == (str(tmp_path / "rooms"), "rooms")
    settings = at_data(run, tmp_path / "moved", tmp_path / "moved").settings
    assert settings.data_given == str(tmp_path / "moved")


def test_missing_data_are_named_with_a_command_for_another_folder(tmp_path: Path) -> None:
    run_with_data(tmp_path / "my run", tmp_path / "rooms")
    find_data = partial(data_folder, None, kind=TrainSettings, system="cloud")
    with pytest.raises(BadInput, match=f"there is no folder {tmp_path / 'rooms'}") as excinfo:
        find_data(tmp_path / "my run", resume=True)
    command = f"pinchpoint cloud train DATA -o '{tmp_path}/my run' --resume"
    assert excinfo.value.hint == f"If it was moved, name its new folder: {command}."
    with pytest.raises(BadInput, match="There is no DATA to train on"):
        find_data(tmp_path / "new", resume=False)
    with pytest.raises(BadInput, match=r"There is no run in .* to resume"):
        find_data(tmp_path / "new", resume=True)


def test_the_data_folder_does_not_count_as_a_difference_between_two_runs(tmp_path: Path) -> None:
    run = Run(tmp_path, TrainSettings(data="a"))
    settings = at_data(run, Path("here"), "here").settings
    elsewhere = at_data(run, Path("there"), "there").settings
    assert differences(settings, elsewhere.to_dict()) == []


def test_a_run_of_another_system_is_named(tmp_path: Path) -> None:
    Run(tmp_path, TrainSettings()).write()
    (tmp_path / "record.json").write_text('{"kind": "operator-training"}', encoding="utf-8")
    with pytest.raises(BadInput, match=f"{tmp_path} is a run of operator, not cloud.") as excinfo:
        read_settings(tmp_path, TrainSettings, made_by="cloud train")
    assert excinfo.value.hint == "Name a folder that `cloud train` wrote."
    assert read_settings(tmp_path, TrainSettings, made_by="operator train") == TrainSettings()


def test_a_damaged_config_says_where_it_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match=r"config\.json is damaged: it is not JSON \(line 1, column 1\)\."):
        read_settings(tmp_path, TrainSettings, made_by="cloud train")
