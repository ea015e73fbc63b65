"""``WrittenPropagation``: what JAX makes of shardings of arguments and a few constraints.

A person writes shardings of some arguments and constraints on some values; the rest is decided by
Shardy's propagation, which JAX runs, and by XLA's choice of how each op is split. This is both on
our arrays, in milliseconds instead of seconds, so that a search can ask for thousands of written
plans. ``tests/written/test_propagation.py`` compares it with Shardy's own passes.

A constraint sits behind its op. JAX lets an ordinary op make its result in the constrained
sharding at once. An argument, or what a loop, conditional or barrier passes on, keeps the sharding
that it has, and those that read it see the constrained one.

Left out: parts of axes, and dims that a plan cannot express. Start reading at
``WrittenPropagation.run``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.split_ops import OpSplits
from toast_lab.written.propagation_graph import graph_of
from toast_lab.written.propagation_kernel import cut_dims, fix, propagate

#: The dim of a value that each mesh axis cuts, -1: none; one number for each axis.
Dims = Sequence[int] | np.ndarray
_NO_READERS = np.zeros(0, np.int64)


class WrittenPropagation:
    """Propagates through one program on one mesh; holds scratch memory, so use one per thread."""

    def __init__(self, analysis: Analysis, mesh: Mesh) -> None:
        self.analysis, self.mesh = analysis, mesh
        self.splits = OpSplits(analysis.program, analysis.names.shardable)
        self.graph = graph_of(analysis.program, mesh.array())
        self._scratch = self.graph.scratch()

    def run(
        self,
        arguments: Mapping[int, Dims],
        constraints: Mapping[int, Dims] | None = None,
        results: Mapping[int, Dims] | None = None,
    ) -> Sharding:
        """How every value is kept and every op is split.

        Several axes on one dim are in mesh order.

        Args:
            arguments: by number; all others are whole, as ``jax.jit`` has them.
            constraints: by value.
            results: by number; propagation decides how the others are sharded.
        """
        program, graph, scratch = self.analysis.program, self.graph, self._scratch
        for array in (scratch.lists, scratch.closed, scratch.is_cut, scratch.changed):
            array[:] = 0
        scratch.closed[: graph.graph.node_dim[program.n_arguments]] = True
        constraints, results = constraints or {}, results or {}
        fixed: list[tuple[int, Dims]] = [
            (int(graph.node[value]), dims) for value, dims in arguments.items()
        ]
        kept_node, touch_node = graph.node.copy(), graph.graph.touch_node
        redirected: list[tuple[np.ndarray, np.ndarray]] = []
        for value, dims in constraints.items():
            if graph.kept_node[value] >= 0:
                kept_node[value] = graph.kept_node[value]
                readers = graph.readers.get(value, _NO_READERS)
                redirected.append((readers, touch_node[readers]))
                touch_node[readers] = kept_node[value]
            if kept_node[value] >= 0:
                fixed.append((int(kept_node[value]), dims))
        fixed += [(int(graph.result_node[number]), dims) for number, dims in results.items()]
        if fixed:
            nodes = np.array([node for node, _ in fixed], np.int32)
            fix(graph.graph, scratch, nodes, np.array([dims for _, dims in fixed], np.int8))
        try:
            propagate(graph.graph, scratch)
        finally:
            for readers, nodes in redirected:
                touch_node[readers] = nodes
        return self._sharding(kept_node, results)

    def _sharding(self, kept_node: np.ndarray, results: Mapping[int, Dims]) -> Sharding:
        program, graph, scratch = self.analysis.program, self.graph, self._scratch
        sharding = Sharding.whole(program, len(self.mesh.axes))
        kept = sharding.value_dim
        cut_dims(graph.graph, scratch, kept_node, kept)
        computed = kept
        changed = np.flatnonzero(kept_node != graph.node)
        if len(changed):
            computed = kept.copy()
            nodes = np.full_like(kept_node, -1)
            nodes[changed] = graph.node[changed]
            cut_dims(graph.graph, scratch, nodes, computed)
        self.splits.split(computed, kept, self.mesh.array(), sharding.op_factor)
        for number, dims in results.items():
            value = int(program.outputs[number])
            if not program.value_is_constant[value]:
                kept[value] = dims
        return sharding
