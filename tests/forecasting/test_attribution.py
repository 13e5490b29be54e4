"""Who holds the peak: lines, modules, and what is inside a line, from runs written by hand."""

from __future__ import annotations

from pinchpoint.core.events import BlockInfo, Observation, Phase
from pinchpoint.core.records import Inside, Line
from pinchpoint.forecasting import attribution, replay

MIB = 2**20
PACKAGE = "/env/site-packages/zoo/bert.py"


def run(*blocks: tuple[int, str, int, int], phase: Phase = "forward", role: str = "") -> Observation:
    """Blocks of (MiB, module, line of the user, line of the package), none of them freed."""
    infos = [
        BlockInfo(
            mib * MIB,
            phase,
            "/somewhere/train.py",
            line,
            module,
            role=role,
            library_file=PACKAGE if package_line else "",
            library_line=package_line,
        )
        for mib, module, line, package_line in blocks
    ]
    return Observation(blocks=infos, events=list(range(len(infos))), marks=[(0, phase)])


def lines_of(observation: Observation) -> tuple[Line, ...]:
    return attribution.top_lines(observation, replay.replay(observation))


def modules_of(observation: Observation) -> list[tuple[object, ...]]:
    shares = attribution.module_shares(observation, replay.replay(observation))
    return [(one["name"], one["count"], one["bytes_each"] // MIB, one["bytes"] // MIB) for one in shares]


def test_the_top_lines_are_the_largest_and_exclude_the_workspace() -> None:
    observation = run((10, "", 1, 0), (20, "Net.a", 3, 0), (30, "Net.b", 4, 0), (22, "Net.b", 4, 0))
    observation.blocks[2].phase = "backward"
    observation.blocks.append(BlockInfo(99 * MIB, "forward", "/somewhere/train.py", 3, role="workspace"))
    observation.events.append(4)
    assert [(line.line, line.phase, line.bytes // MIB) for line in lines_of(observation)] == [
        (4, "backward", 30),
        (4, "forward", 22),
        (3, "forward", 20),
        (1, "forward", 10),
    ]


def test_repeated_layers_are_merged_with_their_count() -> None:
    layers = [(6, f"Bert.layer.{i}.mlp", 7, 30) for i in range(4)]
    assert modules_of(run(*layers, (3, "Bert.head", 7, 31), (1, "", 7, 0))) == [
        ("Bert.layer.*.mlp", 4, 6, 24),
        ("Bert.head", 1, 3, 3),
    ]


def test_layers_of_a_sequence_are_merged_only_if_they_are_equal() -> None:
    two = ((9, "Net.0", 7, 0), (4, "Net.1", 7, 0), (4, "Net.3", 7, 0))
    assert modules_of(run(*two)) == [("Net.0", 1, 9, 9), ("Net.1", 1, 4, 4), ("Net.3", 1, 4, 4)]
    assert modules_of(run(*two, (4, "Net.5", 7, 0))) == [("Net.*", 3, 4, 12), ("Net.0", 1, 9, 9)]
    blocks = run((9, "Net.h.0", 7, 0), (4, "Net.h.1", 7, 0), (1, "Net.h.0.a", 7, 0), (1, "Net.h.1.a", 7, 0))
    assert modules_of(blocks)[0] == ("Net.h.*", 2, 6, 13)  # each consists of others, so it is a layer


def test_a_number_that_is_the_same_everywhere_stays() -> None:
    assert modules_of(run((2, "Net.1.layers.0.a", 7, 0), (2, "Net.1.layers.5.a", 7, 0))) == [
        ("Net.1.layers.*.a", 2, 2, 4)
    ]


def test_a_line_with_more_than_a_third_is_split_into_modules_and_library_lines() -> None:
    layers = [
        block
        for i in range(3)
        for block in (
            (30, f"Bert.layer.{i}.mlp.dense", 7, 30),
            (1, f"Bert.layer.{i}.attention.query", 7, 40),
            (2, f"Bert.layer.{i}.attention.key", 7, 41),
        )
    ]
    large, small = lines_of(run(*layers, (10, "", 8, 0)))
    assert (large.line, large.bytes, small.line, small.inside) == (7, 99 * MIB, 8, ())
    # Query and key are small, so they count as attention, with the line that has most of it.
    assert large.inside == (
        Inside("Bert.layer.*.mlp.dense", 3, 90 * MIB, True, "zoo/bert.py", 30, ""),
        Inside("Bert.layer.*.attention", 3, 9 * MIB, True, "zoo/bert.py", 41, ""),
    )


def test_a_place_has_no_line_if_no_line_allocates_most_of_it() -> None:
    (line,) = lines_of(run((2, "Net.a", 7, 30), (2, "Net.a", 7, 31), (2, "Net.a", 7, 32)))
    assert line.inside == (Inside("Net.a", 1, 6 * MIB, True, "zoo/bert.py", None, ""),)


def test_phases_of_a_line_count_together_and_a_line_of_its_own_is_not_split() -> None:
    observation = run((4, "Net.a", 7, 30), (4, "Net.a", 7, 30), (6, "", 8, 0), (6, "", 9, 0))
    observation.blocks[1].phase = "backward"
    assert {line.phase: len(line.inside) for line in lines_of(observation) if line.line == 7} == {
        "forward": 1,
        "backward": 1,
    }
    (alone,) = lines_of(run((4, "Net.a", 7, 0)))
    assert alone.inside == ()


def test_states_of_the_optimizer_have_a_module_but_no_line_of_a_package() -> None:
    (line,) = lines_of(run((4, "Net.a", 7, 30), (4, "Net.b", 7, 30), phase="optimizer"))
    assert [(part.module, part.file, part.line) for part in line.inside] == [
        ("Net.a", "", None),
        ("Net.b", "", None),
    ]


def test_layers_that_differ_are_marked() -> None:
    (line,) = lines_of(run((4, "Net.h.0.a", 7, 0), (6, "Net.h.1.a", 7, 0)))
    assert [(part.module, part.count, part.equal) for part in line.inside] == [("Net.h.*.a", 2, False)]
    assert line.file.endswith("train.py")  # the file of the user, not of the package
