"""A new rule of the price touches three places: a toy of one, in a copy of the package.

The toy doubles the time of one kind of op. Kernels that read it are compiled anew, which takes a
minute.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toast_lab

#: 1. How it acts: a column of facts.
COLUMNS = """def _slow_products(fused: FusedProgram) -> dict[str, np.ndarray]:
    is_slow = np.asarray(fused.program.kind) == "dot_general"
    return {"op.toy_factor": np.where(is_slow, 2.0, 1.0)}


"""
#: 2. Its entry in the list of rules, which declares the column.
RULE = """    PriceRule(
        name="slow_products",
        family="computing",
        says="A product takes twice as long.",
        source="a toy",
        compilers=_TPU,
        off={"op.toy_factor": 1.0},
        columns=_slow_products,
    ),
"""
#: 3. The line with which a kernel reads the column.
READS = "    time_s *= facts.op.toy_factor[op]\n"

TRIAL = """
import json
import jax
import jax.numpy as jnp
import toast_lab as tl
from scripts.price_rules import catalogue
from toast_lab.cli import main

def step(x, w):
    return jnp.tanh(x) @ w

shape = jax.ShapeDtypeStruct((2048, 2048), "float32")
analysis = tl.analyse(tl.from_jax(step, shape, shape))
found = {"file": tl.__file__, "page": catalogue()}
for machine in ("tpu-v5e", "h100"):
    problem = tl.Problem(analysis, {"d": 4}, machine)
    plan = tl.replicated(problem)
    without = problem.without_rules("slow_products")
    (rules,) = tl.price_rules(problem, plan, "dot_general")
    found[machine] = {
        "with": rules.time_s,
        "without": {effect.name: effect.time_s for effect in rules.effects},
        "plan": [tl.price(problem, plan).time_s, tl.price(without, plan).time_s],
        "table": str(rules),
    }
print(json.dumps(found))
"""


def inserted(path: Path, before: str, text: str) -> None:
    """Insert a text into a file before another one that occurs once."""
    content = path.read_text()
    assert content.count(before) == 1, path
    path.write_text(content.replace(before, text + before))


@pytest.mark.slow
def test_a_rule_is_added_in_three_places(tmp_path: Path) -> None:
    package, cost = Path(toast_lab.__file__).parent, tmp_path / "toast_lab" / "cost"
    shutil.copytree(package, tmp_path / "toast_lab", ignore=shutil.ignore_patterns("*.pyc"))
    inserted(cost / "price_rules.py", "RULES = (\n", COLUMNS)
    inserted(cost / "price_rules.py", "    VECTOR_PRODUCTS,\n", RULE)
    inserted(
        cost / "computing_prices.py", "    return time_s, ring_row, ring_pieces, waiting_s\n", READS
    )
    path = os.pathsep.join([str(tmp_path), str(package.parent)])
    done = subprocess.run(
        [sys.executable, "-c", TRIAL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["file"]).is_relative_to(tmp_path)
    assert "| `slow_products` | A product takes twice as long. |" in found["page"]
    tpu, gpu = found["tpu-v5e"], found["h100"]
    assert tpu["with"] == pytest.approx(2 * tpu["without"]["slow_products"], rel=1e-9)
    more_s = tpu["with"] - tpu["without"]["slow_products"]
    assert tpu["plan"][0] - tpu["plan"][1] == pytest.approx(more_s, rel=1e-6)
    assert "slow_products" in tpu["table"]
    assert "A product takes twice as long." in tpu["table"]
    assert "slow_products" not in gpu["without"], "it is of another compiler"
    assert gpu["plan"][0] == gpu["plan"][1]
