"""AutoSharding as a rival: HLO shardings are read as mesh axes and become a plan."""

from __future__ import annotations

import pytest

from evaluation.corpus import autosharding
from toast_lab.conflicts.analysis import analyse
from toast_lab.frontends import load
from toast_lab.lowering.annotate import annotate
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import unsharded_plan

MESH = Mesh(("d", "m"), (4, 2))


@pytest.mark.parametrize(
    ("text", "rank", "dims"),
    [
        ("{replicated}", 2, ((), ())),
        ("{maximal device=0}", 1, ((),)),
        ("{devices=[8,1]<=[8]}", 2, ((0, 1), ())),
        ("{devices=[1,8]<=[4,2]T(1,0)}", 2, ((), (1, 0))),
        ("{devices=[4,2]<=[8]}", 2, ((0,), (1,))),
        ("{devices=[2,4]<=[4,2]T(1,0)}", 2, ((1,), (0,))),
        ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", 2, ((0,), ())),
        ("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", 2, ((), (1,))),
        # Halves of the first axis, which whole axes cannot express
        ("{devices=[2,4]<=[8] last_tile_dim_replicate}", 1, None),
    ],
)
def test_an_hlo_sharding_is_axes_per_dim(
    text: str, rank: int, dims: autosharding.Dims | None
) -> None:
    assert autosharding.dims_of_sharding(text, rank, MESH) == dims


# x is cut by rows; w1 is kept in parts and gathered; w2 is cut by rows, so sums remain to be made
HLO = """HloModule jit_mlp

%region (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}

ENTRY %main (p0: f32[64,32], p1: f32[32,128], p2: f32[128,32]) -> f32[64,32] {
  %p0 = f32[64,32]{1,0} parameter(0), sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}, \
metadata={op_name="x"}
  %p1 = f32[32,128]{1,0} parameter(1), sharding={devices=[4,2]<=[8]}, metadata={op_name="w1"}
  %whole = f32[32,128]{1,0} reshape(%p1), \
sharding={devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}
  %dot.1 = f32[64,128]{1,0} dot(%p0, %whole), sharding={devices=[4,2]<=[8]}, \
metadata={op_name="toast.FIRST/jit(mlp)/dot_general"}
  %p2 = f32[128,32]{1,0} parameter(2), \
sharding={devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}, metadata={op_name="w2"}
  ROOT %dot.2 = f32[64,32]{1,0} dot(%dot.1, %p2), \
sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}, \
metadata={op_name="toast.SECOND/jit(mlp)/dot_general"}
}
"""


def test_decisions_become_a_plan() -> None:
    analysis = analyse(load("mlp", batch=64, inputs=32, hidden=128, outputs=32))
    program = analysis.program
    first, second = (op for op in range(program.n_ops) if program.kind[op] == "dot_general")
    hlo = HLO.replace("FIRST", str(first)).replace("SECOND", str(second))
    plan = autosharding.plan_of_hlo(analysis, MESH, hlo)
    dims = plan.sharding.value_dim
    assert dims[:3].tolist() == [[0, -1], [0, 1], [-1, 0]]
    for op in range(first, second):  # the ops between the products follow them
        if not program.value_is_constant[program.results(op)[0]]:
            assert dims[program.results(op)[0]].tolist() == [0, 1], program.kind[op]
    # Rows on one axis, the contracted dim on the other: partial sums remain
    summed = program.use_names(program.uses(second)[0])[1]
    rows = program.def_names(program.results(second)[0])[0]
    assert plan.sharding.op_factor[second].tolist() == [rows, summed]
    assert dims[program.results(second)[0]].tolist() == [0, -1]


def test_the_text_that_is_handed_over_has_locations_and_no_shardings() -> None:
    model = load("mlp")
    analysis = analyse(model)
    located = annotate(model, unsharded_plan(analysis, MESH), located=True)
    bare = autosharding.without_shardings(located)
    assert "sdy." in located
    assert "sdy." not in bare
    assert "toast." in bare
