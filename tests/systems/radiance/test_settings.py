"""Settings of a run: schedules computed by hand, and refusals."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.radiance.settings import Settings

SETTINGS = Settings(steps=1000, size=64, patch=32)


def test_the_smallest_patches_shrink_exponentially_in_the_first_half() -> None:
    assert SETTINGS.smallest == 0.5
    assert [SETTINGS.least_at(step) for step in (1, 251, 501, 1000)] == pytest.approx(
        [1.0, math.sqrt(0.5), 0.5, 0.5]
    )
    assert replace(SETTINGS, least=0.25).least_at(251) == pytest.approx(0.5)
    assert replace(SETTINGS, anneal_until=0.0).least_at(1) == 0.5
    assert replace(SETTINGS, size=32).least_at(700) == 1.0, "the patch is the whole image"
    longer = replace(SETTINGS, steps=2000)
    assert longer.least_at(501) == SETTINGS.least_at(251), (
        "the schedule depends on the fraction of the run, not on steps"
    )


def test_the_density_noise_falls_linearly_to_zero() -> None:
    assert [SETTINGS.noise_at(step) for step in (1, 126, 251, 900)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert replace(SETTINGS, noise=0.0).noise_at(1) == 0


def test_learning_rates_rise_stay_constant_and_fall_to_a_tenth() -> None:
    shares = [SETTINGS.share_of_rate(step) for step in (5, 10, 500, 750, 1000)]
    assert shares == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
    assert SETTINGS.rate(10) == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("choices", "match"),
    [
        ({"patch": 48}, "Patches are 48 x 48"),
        ({"patch": 16}, "Patches are 16 x 16"),
        ({"patch": 64, "superres": 4}, "Patches after super-resolution x4 are 256 x 256"),
        ({"superres": 3}, "--superres 3"),
        ({"size": 16}, "Patches of 32 x 32 do not fit into images of 16 x 16"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown"),
        ({"r1_reduction": "rays"}, "r1_reduction 'rays' is unknown"),
        ({"critic_norm": "batch"}, "critic_norm 'batch' is unknown"),
        ({"sr_pairs": -1.0}, "sr_pairs=-1"),
        ({"memory": "all"}, "memory 'all' is unknown"),
        ({"batch": 0}, "--batch 0"),
        ({"micro": 0}, "micro=0"),
        ({"lr_d": 0.0}, "lr_d=0"),
        ({"noise": -1.0}, "noise=-1"),
        ({"least": 1.5}, "least=1.5"),
        ({"edge": 1.0}, "edge=1"),
        ({"whole": 1.5}, "whole=1.5"),
        ({"superres": 2, "whole": 0.0}, "learns from patches of whole pixels"),
        ({"haze": 1.0}, "haze=1"),
        ({"bound": -1.0}, "bound=-1"),
        ({"bound": 1.0, "samples": 1}, "bound=1 needs at least 2 points per ray"),
        ({"r1_every": 0}, "r1_every=0"),
        ({"radius": 10.0}, "at a distance of 10"),
        ({"radius": 2.0}, "at a distance of 2"),
        ({"v_low": 0.5}, "poses from 0.5 to 0.45"),
        ({"eval_images": 1}, "An evaluation needs at least 2 images"),
        ({"near": 6.0}, "near=6 and far=5"),
    ],
)
def test_invalid_settings_are_refused(choices: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInput, match=match) as excinfo:
        apply_choices(SETTINGS, choices)
    assert excinfo.value.hint


def test_fp16_is_supported_by_this_system_only() -> None:
    from pinchpoint.systems.cloud.settings import Settings as Other

    assert apply_choices(SETTINGS, {"precision": "fp16"}).precision == "fp16"
    with pytest.raises(BadInput, match="precision 'fp16' is unknown"):
        apply_choices(Other(), {"precision": "fp16"})


def test_settings_need_no_framework() -> None:
    code = (
        "import sys, pinchpoint.systems.radiance.settings; assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_occasional_penalty_has_the_same_mean_weight_as_one_at_every_step() -> None:
    settings = replace(SETTINGS, r1=2.0, r1_every=4, steps=100)
    weights = [settings.penalty_at(step) for step in range(1, 101)]
    assert weights[:5] == [8.0, 0.0, 0.0, 0.0, 8.0] and sum(weights) == 2.0 * 100


def test_the_share_of_whole_patches_is_computed_over_all_processes() -> None:
    settings = replace(SETTINGS, size=64, whole=0.5, batch=5)
    assert settings.whole_share == 3 / 5 and replace(settings, ranks=2).whole_share == 0.5
    assert replace(settings, size=32).whole_share == 1.0, "a patch that is the image"
    assert replace(settings, size=32, least=0.5).whole_share == 3 / 5, "with smaller patches besides"


def test_super_resolution_needs_patches_of_whole_pixels() -> None:
    settings = replace(SETTINGS, superres=2, whole=0.0)
    with pytest.raises(BadInput, match="learns from patches of whole pixels"):
        replace(settings, size=64).check()
    replace(settings, size=32).check()  # every patch is the whole image
    replace(settings, size=0).check()  # the size is not known yet


def test_a_patch_larger_than_the_image_gets_only_hints_that_work() -> None:
    def hint(**changes: Any) -> str:
        with pytest.raises(BadInput, match="into images of 16 x 16") as excinfo:
            replace(SETTINGS, size=16, **changes).check()
        return excinfo.value.hint

    assert hint() == "Give images of at least 32 x 32 pixels, or --size 32, to which images are enlarged."
    assert hint(superres=2) == "Give images of at least 64 x 64 pixels, or a smaller --superres."
    assert hint(patch=64).endswith(", or a smaller --patch.")
