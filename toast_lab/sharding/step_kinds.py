"""The kinds of device-local steps and their numbers."""

STEP_KINDS = (
    "compute",
    "slice",
    "reduce_scatter",
    "all_reduce",
    "permute",
    "all_to_all",
    "all_gather",
)
COMPUTE, SLICE, REDUCE_SCATTER, ALL_REDUCE, PERMUTE, ALL_TO_ALL, ALL_GATHER = range(len(STEP_KINDS))
