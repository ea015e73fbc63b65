"""Calls that the tests of real code make in a child with eight devices."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

import toast_lab as tl
from evaluation.certification.draw import without_latencies
from tests.real_code import decoder, experts
from toast_lab.errors import ToastError
from toast_lab.machines.catalogue import machine as find_machine
from toast_lab.runtime.devices import Devices, environment
from toast_lab.search.usual_plans import usual_plans

#: sizes at which cutting pays
LARGE: dict[str, Any] = {
    "decoder": decoder.Sizes(
        layers=2, batch=32, sequence=1024, embed=1024, heads=8, hidden=4096, vocabulary=16384
    ),
    "experts": experts.Sizes(tokens=16384, embed=2048, hidden=8192, experts=8),
}
MESHES = {"decoder": decoder.MESH, "experts": experts.MESH}
KERNELS = {"tpu-v5e": "splash", "h100": "triton", "cpu": "interpreted"}


def mesh_of(which: str, *, n_devices: int = 8) -> Any:
    """The mesh of all devices that the program is sharded on by hand; or of one, which cuts none.

    A program with ``shard_map`` needs a mesh even where nothing is cut.
    """
    axes = MESHES[which]
    sizes = tuple(axes.values()) if n_devices > 1 else (1,) * len(axes)
    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(sizes, tuple(axes), axis_types=auto, devices=jax.devices()[:n_devices])


def made(which: str, machine: str, *, large: bool, host: bool = True) -> tuple[Any, tuple]:
    """The step as it is sharded by hand, with the kernels of a machine, and its arguments."""
    sizes = LARGE[which] if large else None
    if which == "experts":
        return experts.make(sizes, mesh=mesh_of(which))
    return decoder.make(sizes, mesh=mesh_of(which), kernel=KERNELS[machine], host=host)


def planned(which: str, machine: str, *, large: bool = True) -> tuple[Any, Any, Any]:
    """(the step, its problem, the result of a short search)."""
    step, args = made(which, machine, large=large)
    problem = tl.Problem(tl.analyse(tl.from_jax(step, *args)), MESHES[which], machine=machine)
    return step, problem, tl.search(problem, budget=tl.Budget(None, 600))


def facts(which: str, machine: str) -> dict[str, Any]:
    """What a plan of a step with its kernels says."""
    _, problem, result = planned(which, machine)
    program = problem.analysis.program
    inside = [
        kind for part in program.shard_maps for kind in part.body.kind if "custom_call" in kind
    ]
    return {
        "platforms": sorted(problem.analysis.model.platforms),
        "shard_maps": program.kind.count("shard_map"),
        "kernels": len(inside),
        "relative": result.cost.relative_time,
        "listed": str(tl.listing(problem, result.plan)),
        "coverage": str(tl.coverage(problem.analysis)),
        "notes": problem.analysis.model.notes,
        "unsharded": tl.price(problem, tl.replicated(problem)).time_s,
    }


def executed(which: str) -> dict[str, float]:
    """Largest differences between steps by the plan and as they are sharded by hand.

    They are of the losses of two steps, and of the state after the first.
    """
    step, args = made(which, "cpu", large=False, host=False)
    problem = tl.Problem(tl.analyse(tl.from_jax(step, *args)), MESHES[which])
    plan = tl.search(problem, budget=tl.Budget(None, 300)).plan
    module = {"decoder": decoder, "experts": experts}[which]
    ours, theirs = plan.jit(step), step
    left, right = module.values(), module.values()
    found = []
    for _ in range(2):
        one, other = ours(*left), theirs(*right)
        found.append(differences(which, one, other))
        left, right = (one[0], *left[1:]), (other[0], *right[1:])
    return {"loss": max(step["loss"] for step in found), "state": found[0]["state"]}


def differences(which: str, ours: Any, theirs: Any) -> dict[str, float]:
    """Largest differences of the loss and of the state that two steps give.

    Of Adam's states the means count, which are gradients: it divides by squares, so that rounding
    alone moves a weight whose gradient is near 0.
    """
    (state, loss), (other_state, other_loss) = ours, theirs
    states = [s.means if which == "decoder" else s for s in (state, other_state)]
    pairs = zip(*map(jax.tree.leaves, states), strict=True)
    return {
        "loss": abs(float(loss) - float(other_loss)),
        "state": max(_relative(mine, other) for mine, other in pairs),
    }


def _relative(ours: Any, theirs: Any) -> float:
    """The largest difference of two arrays, over the largest number."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(ours - theirs).max() / (np.abs(theirs).max() or 1.0))


#: A user's script, without TOAST Lab: the exported shardings on the user's step and values
SCRIPT = """
import sys
import jax
import numpy as np
from tests.real_code import {which} as module
import plan

sizes = module.MESH
auto = (jax.sharding.AxisType.Auto,) * len(sizes)
mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=auto)
step, _ = module.make(mesh=mesh, **{options})
sharded = plan.shard(step, *module.values())
given = plan.place(*module.values())
leaves = jax.tree.leaves(given)
whole = sum(leaf.sharding.is_fully_replicated for leaf in leaves) / len(leaves)
memories = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(given[0])]
state, loss = sharded(*given)
arrays = jax.tree.leaves(state)
assert [array.sharding.memory_kind for array in arrays] == memories
assert ("pinned_host" in memories) == {on_host}
assert "toast_lab" not in sys.modules
np.savez("result.npz", whole, *(np.asarray(array) for array in (*arrays, loss)))
"""


def exported(which: str) -> dict[str, float]:
    """Run the Python exported for a plan in a process of its own, on eight devices.

    Gives the share of arguments that it keeps whole, and the largest differences of the loss and
    the state from those of the step on one device. Adam's states stay in host memory.
    """
    options = {"kernel": KERNELS["cpu"]} if which == "decoder" else {}
    module = {"decoder": decoder, "experts": experts}[which]
    step, args = made(which, "cpu", large=False)
    model = tl.from_jax(step, *args)
    # At sizes that a test can execute, cutting does not pay on a real machine
    machine = without_latencies(find_machine("tpu-v5e"))
    problem = tl.Problem(tl.analyse(model), MESHES[which], machine)
    actions = usual_plans(problem).actions("data + tensor parallel")
    text = tl.Plan.from_actions(problem, actions).to_python(problem=problem, model=model)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.py").write_text(text)
        script = SCRIPT.format(which=which, options=options, on_host=which == "decoder")
        (Path(folder) / "run.py").write_text(script)
        path = os.pathsep.join([str(Path(tl.__file__).parents[1]), *sys.path])
        run = subprocess.run(
            [sys.executable, "run.py"],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, **environment(Devices("cpu", 8)), "PYTHONPATH": path},
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        whole, *ours = np.load(Path(folder) / "result.npz").values()
    options = {**options, "host": False} if which == "decoder" else {}
    unsharded, _ = module.make(mesh=mesh_of(which, n_devices=1), **options)
    theirs = unsharded(*module.values())
    return {
        "whole": float(whole),
        **differences(which, jax.tree.unflatten(jax.tree.structure(theirs), ours), theirs),
    }


def compiled(which: str, machine: str, topology: str) -> dict[str, Any]:
    """What the compiler of a topology makes of a plan."""
    _, problem, result = planned(which, machine, large=False)
    compiled = tl.compile(problem.analysis.model, result.plan, topology=topology, store=False)
    # For kernels written by hand the compiler for GPUs has no times, and hence no whole step
    timed = compiled.time_s is not None or compiled.times is not None
    return {"refused": compiled.refused, "timed": timed, "peak_bytes": compiled.peak_bytes}


def audited(which: str, machine: str, topology: str) -> dict[str, Any]:
    """What the audit of a step as it is sharded by hand says."""
    step, args = made(which, machine, large=which == "experts")
    options = {"machine": machine, "topology": topology, "search": False, "store": False}
    audit = tl.audit(step, *args, **options)
    return {
        "kinds": [finding.kind for finding in audit.findings],
        "lines": [str(finding.where) for finding in audit.findings],
        "text": str(audit),
    }


def refused_for(machine: str) -> str:
    """The message for a kernel that JAX cannot lower for the machine's platform."""
    other = {"tpu-v5e": "h100", "h100": "tpu-v5e"}[machine]
    step, args = made("decoder", other, large=False)
    try:
        tl.Problem(tl.analyse(tl.from_jax(step, *args)), MESHES["decoder"], machine=machine)
    except ToastError as error:
        return str(error)
    return ""
