"""An index of the paper's figures and listings: the step of the tour that shows each."""

from __future__ import annotations

from typing import NamedTuple


class FigureEntry(NamedTuple):
    """One row of the index."""

    figure: str
    shows: str
    step: str  #: key of the step


FIGURES = (
    FigureEntry(
        "Figure 1, left", "shards of a tensor of three dims along axis b", "transformer.left"
    ),
    FigureEntry("Figure 1, right", "shards along both axes", "transformer.right"),
    FigureEntry("Figure 2a", "two-layer MLP, dims that should be sharded alike", "mlp.program"),
    FigureEntry("Figure 2b", "batch partitioning, device-local", "mlp.batch"),
    FigureEntry("Figure 2c", "batch and model partitioning, all_reduce", "mlp.megatron"),
    FigureEntry("listing in section 2.2", "f(x) = x @ x.T, one tensor on two paths", "xxt.program"),
    FigureEntry("Figure 3", "rules of the named dimension analysis", "mlp.rules"),
    FigureEntry("Figure 4a", "fresh names, M and I of the MLP", "mlp.fresh"),
    FigureEntry("Figure 4b", "names after I", "mlp.identified"),
    FigureEntry("Figure 4c", "names after I and M: colours", "mlp.colours"),
    FigureEntry("listing in section 3.3", "the conflict of x @ x.T", "xxt.conflict"),
    FigureEntry("Figure 5a", "attention, names after I and M", "attention.program"),
    FigureEntry("Figure 5b", "sequence sharding", "attention.sequence"),
    FigureEntry("Figure 5c", "attention, names after I", "attention.names"),
    FigureEntry("Figure 5d", "dimension graph of S with its conflicts", "attention.graph"),
    FigureEntry("Figure 6, left", "box of compatible conflicts", "attention.box"),
    FigureEntry("Figure 6, middle", "a path across the box", "attention.one_path"),
    FigureEntry("Figure 6, right", "two paths across the box", "attention.two_paths"),
    FigureEntry("Figure 7", "the system's parts", "mlp.system"),
    FigureEntry("Figure 8", "step times; all of them: docs/evaluation.md", "transformer.race"),
    FigureEntry("Figure 9", "search times; all of them: docs/evaluation.md", "transformer.race"),
    FigureEntry("Figure 10", "scaling; the charts: docs/evaluation.md", "transformer.scaling"),
)
