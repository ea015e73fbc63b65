"""Audits of programs with one planted mistake: it comes first, and its fix removes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import toast_lab as tl
from tests.audit import programs
from toast_lab.audit.audit import WIDTH, _confirmation
from toast_lab.audit.code_lines import code_of as code_of_edits
from toast_lab.audit.code_lines import text_of
from toast_lab.audit.findings import Finding, Kind, Remedy
from toast_lab.audit.places_alike import PlacesAlike
from toast_lab.audit.remedies import _joined
from toast_lab.errors import InvalidProblem
from toast_lab.written.annotated import Edits

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
    ("forgotten_batch", "batch: "),
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
def test_the_change_of_other_mistakes_comes_first_as_well(name: str, change: str) -> None:
    audit = audited(name)
    assert change in code_of(audit.findings[0]), audit.text()
    assert audit.over(0.05)
    mended = audited(name, mended=True)
    assert mended.time_s < audit.time_s


def test_a_mistake_comes_after_a_change_of_correct_code_that_saves_more() -> None:
    audit = audited("turned_weight")
    other, planted = audit.findings[:2]
    # By their prices, the sum over what "mix" reads costs more than the weight that is turned
    assert "params['mix']" in code_of(other)
    assert other.saved_share > planted.saved_share
    assert "params['key'], moments['key']: P(None, \"model\")" in code_of(planted)
    assert planted in audit.over(0.05)
    assert audited("turned_weight", mended=True).time_s < audit.time_s


@pytest.mark.parametrize("name", ["clean_data_parallel", "clean_fully_sharded"])
def test_clean_programs_stay_clean(name: str) -> None:
    audit = audited(name)
    assert audit.over(0.05) == [], audit.text()
    assert "moments" not in audit.text()


# -- reports ---------------------------------------------------------------------------------------
def finding_of(kind: str, remedy: Remedy, time_s: float) -> Finding:
    return Finding(
        kind=kind,
        op=0,
        where="",
        place="",
        subject="x",
        axes=("data",),
        time_s=time_s,
        bytes=16.0,
        count=1,
        why="",
        remedy=remedy,
    )


REMEDY = Remedy(
    text="shard x as whole",
    code=(),
    edits=Edits(arguments=((0, ((), ())),)),
    time_s=0.75,
    peak_bytes=1.5 * 2**20,
    fits=True,
    saved_s=0.25,
    saved_bytes=-0.5 * 2**20,
    saved_share=0.25,
    removes=True,
)


def test_what_a_change_saves_has_its_share_behind_each_number() -> None:
    assert str(REMEDY) == (
        "shard x as whole: 250.000 ms (25.0% of a step) saved, 512 KiB (50.0% of the peak) more"
    )


@pytest.mark.parametrize(("time_s", "confirms"), [(0.5, True), (1.5, False)])
def test_a_compiled_change_says_whether_the_gain_is_there(time_s: float, confirms: bool) -> None:
    def compiled(time_s: float) -> Any:
        return SimpleNamespace(refused="", topology="tpu:v5e:2x2", collectives=[], time_s=time_s)

    evidence: Any = SimpleNamespace(compiled=compiled(1.0))
    finding = finding_of(Kind.AVOIDABLE_COLLECTIVE, REMEDY, 0.2)
    sentence = _confirmation(evidence, finding, compiled(time_s))
    assert f"a step takes {time_s * 1e3:.3f} ms instead of 1000.000 ms" in sentence
    assert ("does not confirm" not in sentence) == confirms


def test_a_change_stands_under_the_finding_that_counts() -> None:
    uneven = finding_of(Kind.UNEVEN_DIM, REMEDY, 0.0)
    collective = finding_of(Kind.AVOIDABLE_COLLECTIVE, REMEDY, 0.2)
    (joined,) = _joined([uneven, collective], 1.0)
    assert joined.kind == "collective"
    assert joined.also == ("uneven dim: x",)


def test_what_costs_nothing_is_no_finding_and_lines_are_short() -> None:
    on = programs.on

    def fn(x: Any, w: Any, ids: Any) -> Any:
        hidden = programs.constrain(jnp.tanh(x @ w), None, None)
        return hidden @ w.T, ids[:, 1:] * 2

    x = jax.ShapeDtypeStruct((4096, 1024), "float32", sharding=on("data", None))
    w = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=on(None, None))
    ids = jax.ShapeDtypeStruct((8, 4096), "int32", sharding=on(None, "data"))
    audit = tl.audit(fn, x, w, ids, compile=False, search=False)
    assert audit.findings
    assert all(finding.kind != "uneven dim" for finding in audit.findings)
    assert max(map(len, f"{audit}\n{audit.table()}".splitlines())) <= WIDTH


def test_work_that_is_split_by_hand_is_not_repeated() -> None:
    on = programs.on

    def fn(x: Any, w: Any) -> Any:
        summed = jax.shard_map(
            lambda x: jax.lax.psum(x * 2, "data"),
            mesh=programs.MESH,
            in_specs=P("data"),
            out_specs=P(),
        )(x)
        return jnp.sin(summed) + w

    x = jax.ShapeDtypeStruct((16384, 2048), "float32", sharding=on("data", None))
    w = jax.ShapeDtypeStruct((4096, 2048), "float32", sharding=on(None, None))
    audit = tl.audit(fn, x, w, compile=False, search=False)
    assert [f.kind for f in audit.findings if f.kind == "replicated work"], audit.text()
    by_hand = {row.op for row in audit.model.program.shard_maps}
    assert not [
        f
        for f in audit.findings
        if f.kind == "replicated work" and "data" in f.axes
        if by_hand & {*f.ops}
    ]


def test_an_argument_without_a_sharding_is_not_said_to_have_one() -> None:
    x = jax.ShapeDtypeStruct((64, 32), "float32", sharding=programs.on(None, "model"))
    y = jax.ShapeDtypeStruct((64, 32), "float32")
    program = tl.from_jax(lambda x, y: x + y, x, y).program
    edits = Edits(arguments=tuple((argument, (("data",), ())) for argument in (0, 1)))
    roles = PlacesAlike(program)
    assert text_of(roles, edits) == (
        "shard x as [data, -] instead of [-, model]; shard y as [data, -]"
    )
    assert code_of_edits(roles, edits) == (
        'x: P("data", None)  # in its sharding, instead of P(None, "model")',
        'y: P("data", None)  # it has none',
    )


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
