"""Where the tour shows each figure and listing of the paper."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One line of the index."""

    figure: str
    shows: str
    step: str  #: key of the step


FIGURES = (
    Entry("Figure 1, left", "shards of a tensor of three dims along axis b", "transformer.left"),
    Entry("Figure 1, right", "shards along both axes", "transformer.right"),
    Entry("Figure 2a", "two-layer MLP, dims that should be sharded alike", "mlp.program"),
    Entry("Figure 2b", "batch partitioning, device-local", "mlp.batch"),
    Entry("Figure 2c", "batch and model partitioning, all_reduce", "mlp.megatron"),
    Entry("listing in section 2.2", "f(x) = x @ x.T, one tensor on two paths", "xxt.program"),
    Entry("Figure 3", "rules of the named dimension analysis", "mlp.rules"),
    Entry("Figure 4a", "fresh names, M and I of the MLP", "mlp.fresh"),
    Entry("Figure 4b", "names after I", "mlp.identified"),
    Entry("Figure 4c", "names after I and M: colours", "mlp.colours"),
    Entry("listing in section 3.3", "the conflict of x @ x.T", "xxt.conflict"),
    Entry("Figure 5a", "attention, names after I and M", "attention.program"),
    Entry("Figure 5b", "sequence sharding", "attention.sequence"),
    Entry("Figure 5c", "attention, names after I", "attention.names"),
    Entry("Figure 5d", "dimension graph of S with its conflicts", "attention.graph"),
    Entry("Figure 6, left", "box of compatible conflicts", "attention.box"),
    Entry("Figure 6, middle", "a path across the box", "attention.one_path"),
    Entry("Figure 6, right", "two paths across the box", "attention.two_paths"),
    Entry("Figure 7", "the system's parts", "mlp.system"),
    Entry("Figure 8", "step times; all of them: docs/evaluation.md", "transformer.race"),
    Entry("Figure 9", "search times; all of them: docs/evaluation.md", "transformer.race"),
    Entry("Figure 10", "scaling; the charts: docs/evaluation.md", "transformer.scaling"),
)
