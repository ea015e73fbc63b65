"""Runs exported files where TOAST Lab cannot be imported: ``python run_exported.py FOLDER JOBS``.

Each job is the name of a function of ``library_steps``, with its sizes, of the exported file, and
of the patched source. FOLDER has these, and the source as it was as ``original_steps``. Prints
the losses of three steps without and with the file, as JSON.
"""

from __future__ import annotations

import importlib
import importlib.abc
import json
import sys
from typing import Any


class NoToastLab(importlib.abc.MetaPathFinder):
    """Refuses to import TOAST Lab."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise for TOAST Lab, leave all else to others."""
        if name.partition(".")[0] == "toast_lab":
            raise ImportError("TOAST Lab is not installed here")


def run(name: str, sizes: dict[str, int], exported: str, source: str) -> dict[str, Any]:
    """Losses without and with the exported file."""
    steps, original = map(importlib.import_module, (source, "original_steps"))
    exports = importlib.import_module(exported)
    case, without = (getattr(module, name)(**sizes) for module in (steps, original))
    given = () if name == "equinox" else without.fresh()
    sharded = exports.shard(case.step, *given)
    final = sharded(*exports.place(*without.fresh()))
    outcome: dict[str, Any] = {
        "memories": [
            leaf.sharding.memory_kind
            for leaf in exports.jax.tree.leaves(final)
            if isinstance(leaf, exports.jax.Array)
        ],
        "losses": steps.losses(case, sharded, exports.place(*without.fresh())),
        "unsharded": steps.losses(without, steps.by_position(without), without.fresh()),
    }
    if name in ("plain", "linen", "haiku"):  # for the others it is no jitted function
        text = sharded.lower(*given).as_text()
        outcome["constraints"] = text.count("sdy.sharding_constraint")
    return outcome


def main() -> None:
    """Run all jobs."""
    sys.meta_path.insert(0, NoToastLab())
    folder, jobs = sys.argv[1:]
    sys.path.insert(0, folder)
    outcomes = [run(*job) for job in json.loads(jobs)]
    assert "toast_lab" not in sys.modules
    print("\n" + json.dumps(outcomes))


if __name__ == "__main__":
    main()
