"""XLA's text of a partitioned program, read as operations of one device and compared with counts by hand."""

from __future__ import annotations

from dataclasses import replace

from pinchpoint.backends.jax.liveness import walk
from pinchpoint.backends.jax.sharded.hlo_program import read_hlo
from pinchpoint.backends.jax.sharded.schedule import best_order

KIB = 1024
FRAMES = """
FileNames
1 "/home/me/train.py"
2 "/usr/lib/jax/lax.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=4}
2 {file_name_id=2 function_name_id=1 line=99 end_line=99 column=4 end_column=4}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
"""
GATHERED = 'metadata={op_name="jit(step)/jvp()/dot" stack_frame_id=2}'
MULTIPLIED = 'metadata={op_name="jit(step)/transpose(jvp())/dot" stack_frame_id=1}'
GATHER = f"""HloModule jit_step, buffer_donor={{ (0, {{}}) }}, num_partitions=8
{FRAMES}
%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main_spmd (param: f32[16,256]) -> f32[16,256] {{
  %param = f32[16,256]{{1,0}} parameter(0), sharding={{devices=[8,1]<=[8]}}
  %all-gather = f32[128,256]{{1,0}} all-gather(%param), replica_groups=[1,8]<=[8], {GATHERED}
  %dot = f32[16,128]{{1,0}} dot(%param, %all-gather), lhs_contracting_dims={{1}}, {MULTIPLIED}
  %scattered = f32[16,256]{{1,0}} reduce-scatter(%all-gather), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  %zero = f32[] constant(0)
  %sum = f32[16]{{0}} reduce(%dot, %zero), dimensions={{1}}, to_apply=%add
  %spread = f32[16,256]{{1,0}} broadcast(%sum), dimensions={{0}}
  ROOT %result = f32[16,256]{{1,0}} add(%scattered, %spread)
}}
"""

LOOP = """HloModule jit_loop, entry_computation_layout={(f32[64,256]{1,0})->f32[256]{0}}, num_partitions=2

%body (state: (s32[], f32[256], f32[64,256])) -> (s32[], f32[256], f32[64,256]) {
  %state = (s32[], f32[256]{0}, /*index=2*/f32[64,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %carry = f32[256]{0} get-tuple-element(%state), index=1
  %rows = f32[64,256]{1,0} get-tuple-element(%state), index=2
  %row = f32[1,256]{1,0} dynamic-slice(%rows, %i, %i), dynamic_slice_sizes={1,256}
  %flat = f32[256]{0} reshape(%row)
  %sum = f32[256]{0} add(%carry, %flat)
  ROOT %out = (s32[], f32[256]{0}, f32[64,256]{1,0}) tuple(%next, %sum, %rows)
}

%condition (state: (s32[], f32[256], f32[64,256])) -> pred[] {
  %state = (s32[], f32[256]{0}, f32[64,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %n = s32[] constant(64)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (rows: f32[64,256]) -> f32[256] {
  %rows = f32[64,256]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = f32[] constant(0)
  %zeros = f32[256]{0} broadcast(%start), dimensions={}
  %state = (s32[], f32[256]{0}, f32[64,256]{1,0}) tuple(%zero, %zeros, %rows)
  %loop = (s32[], f32[256]{0}, f32[64,256]{1,0}) while(%state), condition=%condition, body=%body
  ROOT %result = f32[256]{0} get-tuple-element(%loop), index=1
}
"""


def _is_mine(file: str) -> bool:
    return file.startswith("/home")


def test_operations_have_the_bytes_of_one_device_and_the_users_lines() -> None:
    hlo = read_hlo(GATHER, is_user_file=_is_mine)
    program = hlo.program
    sizes = {op.name: [program.sizes[v] for v in op.outs] for op in program.ops}
    assert sizes["all-gather"] == [128 * KIB] and sizes["dot"] == [8 * KIB]
    assert {(op.name, op.phase) for op in program.ops if op.phase} == {
        ("all-gather", "forward"),
        ("dot", "backward"),
    }
    assert {op.line for op in program.ops if op.name in ("all-gather", "dot")} == {12}
    assert program.input_bytes == 16 * KIB and program.donated == frozenset(program.inputs)
    assert hlo.products == ((16 * KIB, 128 * KIB, 8 * KIB),)
    # The argument, the gathered weights, the product and the scattered sum are alive at the same time.
    assert walk(program).peak_bytes <= (16 + 128 + 8 + 16) * KIB
    assert walk(program, fused=False).peak_bytes >= (128 + 8 + 16) * KIB


def test_groups_of_devices_are_told_apart() -> None:
    assert read_hlo(GATHER, is_user_file=_is_mine).groups == {
        frozenset({frozenset(range(8))}),
        frozenset({frozenset(range(4)), frozenset(range(4, 8))}),
    }


def test_what_a_loop_only_reads_is_not_copied() -> None:
    program = read_hlo(LOOP, is_user_file=_is_mine).program
    assert program.input_bytes == 64 * KIB
    # The sum of the rows, which each turn overwrites, and a counter.
    assert walk(program).peak_bytes <= (64 + 1) * KIB + 100


def test_a_result_that_is_returned_twice_takes_its_bytes_twice() -> None:
    text = (
        "HloModule twice, entry_computation_layout={()->(f32[256]{0}, f32[256]{0})}\n\n"
        "ENTRY %main () -> (f32[256], f32[256]) {\n"
        "  %zero = f32[] constant(0)\n"
        "  %zeros = f32[256]{0} broadcast(%zero), dimensions={}\n"
        "  ROOT %both = (f32[256]{0}, f32[256]{0}) tuple(%zeros, %zeros)\n"
        "}\n"
    )
    assert walk(read_hlo(text, is_user_file=_is_mine).program).peak_bytes == 2 * KIB


def test_the_order_that_keeps_fewer_bytes_is_chosen() -> None:
    lines = ["  %x = f32[256]{0} parameter(0)"]
    # Eight large products that are reduced to scalars: one at a time needs one of them.
    lines += [f'  %big{i} = f32[256,256]{{1,0}} custom-call(%x), custom_call_target="make"' for i in range(8)]
    lines += [f'  %small{i} = f32[256]{{0}} custom-call(%big{i}), custom_call_target="sum"' for i in range(8)]
    names = ", ".join(f"%small{i}" for i in range(8))
    text = (
        "HloModule many, entry_computation_layout={(f32[256]{0})->f32[256]{0}}\n\n"
        "ENTRY %main (x: f32[256]) -> f32[256] {\n"
        + "\n".join(lines)
        + f"\n  ROOT %all = f32[2048]{{0}} concatenate({names}), dimensions={{0}}\n}}\n"
    )
    hlo = read_hlo(text, is_user_file=_is_mine)
    assert walk(hlo.program).peak_bytes > 8 * 256 * KIB
    ordered = best_order(hlo.program)
    assert walk(ordered).peak_bytes < 2 * 256 * KIB
    assert replace(ordered, ops=()) == replace(hlo.program, ops=())
