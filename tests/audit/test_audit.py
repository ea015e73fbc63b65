"""Audits of programs with one planted mistake: it comes first, and its fix removes it."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec as P

import toast_lab as tl
from tests.audit import programs
from toast_lab.audit.findings import Finding
from toast_lab.errors import InvalidProblem

TRIAL_S = 60.0


def audited(name: str, *, mended: bool = False, **options: Any) -> tl.Audit:
    fn, args = getattr(programs, name)(mended)
    settings = {"compile": False, "search": False, "trial_s": TRIAL_S, **options}
    return tl.audit(fn, *args, machine="tpu-v5e", **settings)


def code_of(finding: Finding) -> str:
    assert finding.remedy is not None
    return "\n".join(finding.remedy.code)


def line_of(text: str) -> int:
    """The line of the programs' file that starts with this text."""
    with open(programs.__file__) as file:
        lines = [number for number, line in enumerate(file, 1) if line.strip().startswith(text)]
    return lines[0]


#: (program, kind of the first finding, text of its line, what its change says)
PLANTED = [
    ("replicated_optimizer", "replicated state", "", "moments"),
    ("uneven_heads", "uneven dim", "", 'P(("data", "model"), None, None, None)'),
    (
        "wrong_contraction",
        "collective",
        'return jnp.mean((hidden @ params["down"] - x)',
        "params['down'], moments['down']: P(\"model\", None)",
    ),
    ("gather_in_scan", "collective in a loop", "state = jnp.tanh(", "table"),
    (
        "lost_in_reshape",
        "replicated work",
        "tokens = x.swapaxes(0, 1)",
        'tokens = jax.lax.with_sharding_constraint(tokens, P("data", None))',
    ),
]
UNTUNED = [
    ("gathered_logits", 'P("data", None, "model")'),
    ("forgotten_batch", "batch"),
    ("turned_weight", "params['key']"),
]


@pytest.mark.parametrize(("name", "kind", "line", "change"), PLANTED, ids=lambda x: str(x)[:24])
def test_a_planted_mistake_is_first_and_its_fix_removes_it(
    name: str, kind: str, line: str, change: str
) -> None:
    audit = audited(name)
    first = audit.findings[0]
    assert first.kind == kind, audit.text()
    if line:
        assert first.where.endswith(f"programs.py:{line_of(line)}"), first.where
    assert change in code_of(first)
    assert audit.over(0.05)[0] is first
    mended = audited(name, mended=True)
    assert mended.time_s < audit.time_s
    assert not [f for f in mended.findings if f.title == first.title]


def test_a_rematerialisation_of_the_compiler_is_first_and_its_fix_removes_it() -> None:
    audit = audited("rematerialised", compile=True, topology="cpu:16", store=False)
    assert audit.compiled is not None
    assert audit.compiled.rematerialised, "XLA no longer warns: plant another"
    first = audit.findings[0]
    assert first.kind == "involuntary full rematerialisation"
    assert first.where.endswith(f"programs.py:{line_of('x = jnp.tanh(patches')}")
    assert first.remedy is not None
    assert first.remedy.removes
    mended = audited("rematerialised", mended=True, compile=True, topology="cpu:16", store=False)
    assert mended.compiled is not None
    assert not mended.compiled.rematerialised


@pytest.mark.parametrize(("name", "change"), UNTUNED)
def test_other_mistakes_are_among_the_first_as_well(name: str, change: str) -> None:
    audit = audited(name)
    assert any(change in code_of(finding) for finding in audit.findings[:2]), audit.text()
    assert audit.over(0.05)
    mended = audited(name, mended=True)
    assert mended.time_s < audit.time_s


@pytest.mark.parametrize("name", ["clean_data_parallel", "clean_fully_sharded"])
def test_clean_programs_stay_clean(name: str) -> None:
    audit = audited(name)
    assert audit.over(0.05) == [], audit.text()
    assert "moments" not in audit.text()


# -- inputs ----------------------------------------------------------------------------------------
def small(*spec: Any, mesh: Any = programs.MESH) -> Any:
    rows = jax.NamedSharding(mesh, P(*spec))
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    return tl.from_jax(lambda x: jax.lax.with_sharding_constraint(x * 2, rows) @ x, x)


def test_a_function_without_shardings_is_told_to_search() -> None:
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    with pytest.raises(InvalidProblem, match=r"no shardings.*tl\.search"):
        tl.audit(lambda x: x @ x, x)


def test_another_mesh_is_told_with_the_lines() -> None:
    model = small("data")
    with pytest.raises(InvalidProblem, match=r"data=4, model=4: constraint .*test_audit\.py:\d+"):
        tl.audit(model, mesh={"data": 8, "model": 4})
    with pytest.raises(InvalidProblem, match=r"not on the mesh data=16"):
        tl.audit(model, mesh={"data": 16})


def test_two_meshes_are_told_with_the_lines() -> None:
    other = jax.sharding.AbstractMesh((8,), ("rows",))
    x = jax.ShapeDtypeStruct((64, 64), "float32")

    def fn(x: Any) -> Any:
        x = programs.constrain(x, "data")
        return jax.lax.with_sharding_constraint(x, jax.NamedSharding(other, P("rows")))

    with pytest.raises(tl.ToastError, match="mesh"):
        tl.audit(fn, x)


def test_shardings_that_arguments_carry_are_read() -> None:
    x = jax.ShapeDtypeStruct((64, 32), "float32", sharding=programs.on(None, "model"))
    model = tl.from_jax(lambda x: x + 1, x)
    (annotation,) = model.annotations
    assert (annotation.kind, annotation.spec) == ("argument", ((), ("model",)))
    assert annotation.mesh == (("data", 4), ("model", 4))


def test_numbers_are_plain_data_and_stand_beside_others() -> None:
    x = jax.ShapeDtypeStruct((4096, 1024), "float32", sharding=programs.on("data", None))
    w = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=programs.on())
    audit = tl.audit(
        lambda x, w: jax.nn.relu(programs.constrain(x @ w)) @ w,
        *(x, w),
        compile=False,
        search_s=1.0,
    )
    assert [row.name.split(" in ")[0] for row in audit.contenders][-1] == "best plan found"
    data = audit.to_json()
    assert data["findings"][0]["kind"] == audit.findings[0].kind
    assert data["contenders"][0]["time_s"] == audit.time_s
    assert audit.best is not None
    assert str(audit).count("\n") < 60
