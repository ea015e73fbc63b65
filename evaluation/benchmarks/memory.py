"""Predicted peak memory against XLA's own buffer assignment, on virtual CPU devices.

The ratio shows how well live ranges, fusion and in-place reuse are modelled, and does not depend on
the machine.
"""

from __future__ import annotations

import toast_lab as tl

SIZES = {
    "layers": 2,
    "d_model": 64,
    "hidden": 256,
    "heads": 4,
    "key_size": 16,
    "vocab": 512,
    "batch": 8,
    "sequence": 64,
}
DATA, FSDP = [("batch", "d")], [("batch", "d"), ("d_model", "d")]
MODEL = [("hidden", "m"), ("heads", "m"), ("vocab", "m")]
PLANS = {
    "unsharded": [],
    "data parallel": DATA,
    "FSDP": FSDP,
    "FSDP, Megatron": [*FSDP, *MODEL],
    "and sequence": [*FSDP, *MODEL, ("sequence", "m", 1)],
}


def run() -> list[str]:
    """Print the table; gives the missed targets."""
    model = tl.load("transformer", **SIZES)
    problem = tl.Problem(tl.analyse(model), {"d": 2, "m": 4}, "cpu")
    missed = []
    print("\nPeak memory a device, small Transformer training step on 8 virtual CPU devices")
    print(
        f"{'plan':<16} {'predicted MB':>12} {'XLA MB':>8} {'ratio':>6} {'gathers':>8} "
        f"{'XLA':>4} {'error':>9}"
    )
    for name, actions in PLANS.items():
        plan = tl.Plan.from_actions(problem, actions)
        cost = tl.price(problem, plan)
        done = tl.run(model, plan, devices="cpu:8", repeats=1)
        ratio = cost.peak_bytes / done.peak_bytes
        gathers = done.collective_counts.get("all_gather", 0)
        print(
            f"{name:<16} {cost.peak_bytes / 1e6:>12.2f} {done.peak_bytes / 1e6:>8.2f} "
            f"{ratio:>6.2f} "
            f"{cost.count('all_gather'):>8} {gathers:>4} {done.max_relative_error:>9.1e}"
        )
        if not 0.7 < ratio < 1.5:
            missed.append(f"{name}: predicted peak is {ratio:.2f} times XLA's (target 0.7 to 1.5)")
    return missed
