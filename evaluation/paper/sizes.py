"""What the evaluation adds to its searches: reasons for their sizes, and plans to compile."""

from __future__ import annotations

from typing import Any

#: Why each model has the sizes of ``paper_cases.CASES``.
REASONS = {
    "gns": (
        "2048 nodes, 24 steps and the widths of the paper; 65,536 edges are the upper end of "
        "its range, and the only one at which no device holds the unsharded step (80 GiB and "
        "more)."
    ),
    "unet": (
        "the 3.6B parameters of the paper; batch 64 of 64x64 images, 8 per data shard, needs "
        "117 GiB unsharded."
    ),
    "itx": (
        "one decoding step at the paper's sizes, with a KV cache of 1024 + 1024 positions; at "
        "batch 128 the unsharded step needs 83 GiB because of the cache, at batch 32 an A100 "
        "would hold it whole."
    ),
    "t2b": (
        "16,384 positions as in the paper, one example per data shard. Layers keep only their "
        "inputs (the model's own remat, not XLA's): without it no plan found fits TPU v3 or "
        "P100 (31 to 60 GiB); with it plans that cut the sequence do."
    ),
    "t7b": (
        "2048 positions as in the paper, 4 examples per data shard; with the model's own "
        "remat plans fit all three machines (9 to 12 GiB), without it and batch 16 none fits "
        "TPU v3 or P100 (21 to 33 GiB)."
    ),
}

#: Sizes of each model that take a compiler about a minute.
COMPILED_SIZES: dict[str, dict[str, Any]] = {
    "gns": {"edges": 65536, "steps": 1, "hidden_layers": 1},
    "unet": {"channels": 256, "multipliers": [1], "blocks": 1, "heads": 8, "batch": 64},
    "itx": {"batch": 128, "layers": 2},
    "t2b": {"sequence": 16384, "batch": 8, "remat": True, "layers": 1},
    "t7b": {"sequence": 2048, "batch": 32, "remat": True, "layers": 1},
}

#: Machine and topology of the slices in the table of compiled plans, 32 devices each.
SLICES = (("tpu-v3", "tpu:v3:4x4"), ("tpu-v5e", "tpu:v5e:4x8"))
