"""Compare Shardy's own propagation of argument shardings with ours.

Both start from the unsharded program and take one decision after another (a dim of an argument on a
mesh axis), and propagate each to the end. Shardy's pass ``sdy-basic-propagate`` runs in a child
process; like ours, it stops at an op that would be split along two factors.
``sdy-aggressive-propagate`` settles such conflicts by the sizes of the tensors; it is for
inspection only.

``tests/lowering/test_propagation_oracle.py`` checks where the two differ, and why. Start
reading at ``compare_propagation``. Reference: TOAST section 2.2; Shardy's documentation of
propagation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evaluation.certification.shardy.collectives import argument_axes
from toast_lab import _jaxlib, isolate
from toast_lab._jaxlib import ir
from toast_lab.ir import canonical, op_kinds, walk
from toast_lab.lowering.annotate import MESH_NAME, OP_NUMBER
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import Spec
from toast_lab.sharding.propagate import Propagation
from toast_lab.sharding.sharding import Sharding

if TYPE_CHECKING:
    from toast_lab.conflicts.analysis import Analysis
    from toast_lab.ir.model import Model

Decision = tuple[int, int, str]  #: (argument, dim, mesh axis)


class Compared(NamedTuple):
    """Specs of every value that both propagations know, after one list of decisions."""

    #: arguments and results of ops, without constants and values that loops and branches hand on
    values: tuple[int, ...]
    ours: tuple[Spec, ...]
    theirs: tuple[Spec, ...]

    @property
    def different(self) -> list[tuple[int, Spec, Spec]]:
        """(value, our spec, Shardy's spec) of the values on which the two differ."""
        return [
            row for row in zip(self.values, self.ours, self.theirs, strict=True) if row[1] != row[2]
        ]


def compare_propagation(
    model: Model,
    analysis: Analysis,
    mesh: Mesh,
    decisions: Sequence[Sequence[Decision]],
    *,
    aggressive: bool = False,
    time_limit_s: float = 300.0,
) -> list[Compared]:
    """Propagate each list of decisions with our propagation and with Shardy's pass.

    Raises:
        RunFailed: a pass failed or crashed.
    """
    program, propagation = model.program, Propagation(analysis, mesh)
    shardy_specs = isolate.run_in_child(
        "evaluation.certification.shardy.propagation:_propagate_all",
        model.stablehlo,
        mesh.axes,
        mesh.sizes,
        [list(d) for d in decisions],
        aggressive,
        time_limit_s=time_limit_s,
        activity="propagating with Shardy",
    )
    compared = []
    for taken, (arguments, results) in zip(decisions, shardy_specs, strict=True):
        state = propagation.unsharded()
        for argument, dim, axis in taken:
            propagation.shard(state, np.asarray([argument]), dim, mesh.axes.index(axis))
        theirs = {a: spec for a, spec in enumerate(arguments)}
        theirs |= {int(program.result_ptr[op]) + i: spec for (op, i), spec in results.items()}
        values = sorted(v for v in theirs if not program.value_is_constant[v])
        compared.append(
            Compared(
                tuple(values),
                tuple(spec_of(state, mesh, v, len(program.dims(v))) for v in values),
                tuple(theirs[v] for v in values),
            )
        )
    return compared


def spec_of(state: Sharding, mesh: Mesh, value: int, rank: int) -> Spec:
    """Mesh axes per dim of a value, in mesh order."""
    row = state.value_dim[value]
    return tuple(
        tuple(a for a, dim in zip(mesh.axes, row, strict=True) if dim == d) for d in range(rank)
    )


def _propagate_all(
    text: str,
    axes: tuple[str, ...],
    sizes: tuple[int, ...],
    decisions: list[list[Decision]],
    aggressive: bool,
) -> list[tuple[list[Spec], dict[tuple[int, int], Spec]]]:
    return [_propagate(text, axes, sizes, taken, aggressive) for taken in decisions]


def _propagate(
    text: str,
    axes: tuple[str, ...],
    sizes: tuple[int, ...],
    taken: list[Decision],
    aggressive: bool,
) -> tuple[list[Spec], dict[tuple[int, int], Spec]]:
    module = _jaxlib.parse_module(_jaxlib.make_context(), text)
    with module.context, ir.Location.unknown(module.context):
        main = canonical.main_function(module)
        n = len(main.arguments)
        for number, item in enumerate(
            walk.flatten(main.operation.regions[0].blocks[0]).items, start=n
        ):
            if not op_kinds.is_control(item.kind) and len(item.results) == len(
                item.operation.results
            ):
                item.operation.attributes[OP_NUMBER] = ir.IntegerAttr.get(
                    ir.IntegerType.get_signless(32), number
                )
        with ir.InsertionPoint.at_block_begin(module.body):
            _jaxlib.sdy.MeshOp(MESH_NAME, _jaxlib.mesh_attribute(axes, sizes))
    _jaxlib.run_passes(module, "builtin.module(sdy-import-pipeline)")
    for argument, dim, axis in taken:
        with module.context, ir.Location.unknown(module.context):
            main = canonical.main_function(module)
            argument_specs = argument_axes(main)
            if any(axis == a.partition(":")[0] for dims in argument_specs[argument] for a in dims):
                continue  # an earlier decision already put this axis on the argument
            argument_specs[argument] = tuple(
                (*dims, axis) if d == dim else dims
                for d, dims in enumerate(argument_specs[argument])
            )
            main.attributes["arg_attrs"] = ir.ArrayAttr.get(
                [
                    ir.DictAttr.get(
                        {"sdy.sharding": _jaxlib.sharding_attribute(MESH_NAME, spec, closed=False)}
                        if any(spec)
                        else {}
                    )
                    for spec in argument_specs
                ]
            )
        _jaxlib.run_passes(
            module, f"builtin.module(sdy-{'aggressive' if aggressive else 'basic'}-propagate)"
        )
    main = canonical.main_function(module)

    def in_order(spec: Spec) -> Spec:
        return tuple(
            tuple(sorted(dims, key=lambda a: axes.index(a.partition(":")[0]))) for dims in spec
        )

    found = _jaxlib.numbered_axes(main, OP_NUMBER)
    return [in_order(s) for s in argument_axes(main)], {
        place: in_order(s) for place, s in found.items()
    }
