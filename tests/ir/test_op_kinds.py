"""One entry in the registry of op kinds is all that a new kind takes.

No other table of the package is keyed by op kinds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import toast_lab
from evaluation.certification.rules.cases import CASES
from evaluation.certification.rules.left_out import BROADCASTING, LEFT_OUT, all_kinds
from toast_lab import _jaxlib
from toast_lab.conflicts.annotated_listing import op_text, value_text
from toast_lab.cost.program_facts import make_program_facts
from toast_lab.ir import canonical, own_rules
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import OP_KINDS, OpKind, kinds_where, op_kind, ops_where
from toast_lab.ir.read import read_program
from toast_lab.sharding.steps import tables

PACKAGE = Path(toast_lab.__file__).parent

# -- one entry is enough ---------------------------------------------------------------------------

TOY = "toy.scaled_matmul"
TOY_MODULE = f"""
func.func @main(%x: tensor<8x16xf32>, %w: tensor<8x16xf32>) -> tensor<8x16xf32> {{
  %0 = stablehlo.add %x, %w : tensor<8x16xf32>
  %1 = "{TOY}"(%0, %w) {{scale = 3 : i64}} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}}
"""  # noqa: E501


def read_toy() -> p.Program:
    module = _jaxlib.parse_module(_jaxlib.make_context(), TOY_MODULE)
    canonical.canonicalise(module)
    _jaxlib.populate_rules(module)
    return read_program(module, "toy")


def toy_op(program: p.Program) -> int:
    return program.kind.index(TOY)


def test_a_kind_without_an_entry_stays_whole_and_costs_its_bytes() -> None:
    program = read_toy()
    op = toy_op(program)
    assert program.op_class[op] == p.OPAQUE
    assert set(program.factor_class[program.factors(op)].tolist()) == {p.NEED_REPLICATION}
    assert program.missing_rules == ((op, f"no sharding rule for {TOY}"),)
    assert program.flops[op] == 0


def test_one_entry_carries_a_kind_through_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = OpKind(
        cost_class=p.DOT,
        rule=own_rules.elementwise,
        monoid="add",
        flops=lambda op, rule, results: 7.0 * float(np.prod(results[0].shape)),
        detail=lambda op, monoid: f"{str(op.attributes['scale']).split()[0]},{monoid}",
        paper_name="toymul",
        reads_part=True,
        moves_elements=True,
    )
    monkeypatch.setitem(OP_KINDS, TOY, entry)
    program = read_toy()
    op = toy_op(program)
    # The rule: both dims pass, and no rule is reported as missing.
    assert program.factor_class[program.factors(op)].tolist() == [p.PASS, p.PASS]
    assert program.use_names(int(program.use_ptr[op])) == program.def_names(program.results(op)[0])
    assert program.missing_rules == ()
    # The cost class, monoid and FLOPs.
    assert program.op_class[op] == p.DOT
    assert p.MONOIDS[program.monoid[op]] == "add"
    assert program.flops[op] == 7 * 8 * 16
    # The text in listings.
    operands = [value_text(program, value) for value in program.operands(op)]
    assert op_text(program, op, operands) == f"toymul_{{3,add}}({', '.join(operands)})"
    # The facts for prices: the sum before it is written, and only part of its operand is read.
    facts, _ = make_program_facts(program, tables(program), [1.0] * program.n_ops)
    assert facts.op.flops[op] == 7 * 8 * 16
    assert facts.op.slices[op]
    assert facts.op.computes_kept_slice[op]
    assert facts.use.delivered[program.use_ptr[op]]


# -- the entries -----------------------------------------------------------------------------------


def test_every_entry_is_of_known_classes_and_monoids() -> None:
    for name, kind in OP_KINDS.items():
        assert 0 <= kind.cost_class < len(p.CLASSES), name
        given = {kind.monoid} if isinstance(kind.monoid, str) else set()  # else that of the op
        assert given | {kind.as_combiner} <= set(p.MONOIDS), name
        assert kind.monoid == "none" or kind.combiner_region is None, f"{name}: which of the two?"
        assert bool(kind.line) == (kind.cost_class == p.CONTROL), name


def test_every_rule_of_ours_is_certified_or_left_out_for_a_reason() -> None:
    certified = {case.kind for case in CASES} | set(BROADCASTING)
    with_own_rule = {name for name, kind in OP_KINDS.items() if kind.rule or kind.narrow}
    # Pseudo-ops and foreign ops are left aside, since no case can cut them out of a program.
    known = all_kinds() & with_own_rule
    assert known - certified - set(LEFT_OUT) == set()
    assert len(known) > 30


def test_every_entry_is_an_op_that_stablehlo_or_chlo_has() -> None:
    of_shardy = {"sdy.propagation_barrier", "sdy.sharding_constraint"}
    pseudo = {"argument", "func.call", "shard_map"} | of_shardy
    # Ops of other versions of StableHLO than this jaxlib's.
    versions = {"collective_reduce", "chlo.mulhi", "rng"}
    of_control = {name for name in OP_KINDS if op_kind(name).line}
    assert set(OP_KINDS) - all_kinds() <= pseudo | versions | of_control


def test_what_has_no_entry_is_told_by_its_dialect() -> None:
    assert op_kind("an_op_of_tomorrow").cost_class == p.ELEMENTWISE
    assert op_kind("chlo.of_tomorrow").cost_class == p.OTHER
    assert op_kind("mhlo.of_tomorrow").cost_class == p.OPAQUE
    assert op_kind("chlo.broadcast_of_tomorrow").rule is own_rules.broadcasting


def test_fields_are_asked_for_by_name() -> None:
    assert kinds_where("picks_slice") == {"dynamic_slice", "dynamic_update_slice"}
    assert ops_where(("add", "slice", "pad", "add"), "moves_elements").tolist() == [
        False,
        True,
        True,
        False,
    ]


# -- no other table --------------------------------------------------------------------------------

#: Tables of op names outside the registry, with the reason.
OTHER_TABLES = {
    "_jaxlib.py": "what Shardy does to products and concatenations after it has propagated",
    "runtime/schedule_steps.py": "opcodes of compiled HLO",
    "cli.py": "commands and their modules; one of them is called compare",
    "ir/narrowing.py": "below the registry: which constants are one number, read before there is "
    "a program",
    "ir/walk.py": "how a conditional is opened up, by its regions; the registry knows what it "
    "becomes",
    "ir/canonical.py": "calls, which are inlined before there are ops of ours",
    "ir/loops.py": "rewrites while and case in the module, before there are ops of ours",
    "ir/batched_indices.py": "rewrites gathers and scatters in the module, before there are ops of "
    "ours",
    "ir/known_numbers.py": "computes constants in the module, op by op",
    "ir/trips.py": "interprets what counts the rounds of a loop, op by op",
    "frontends/padded_function.py": "primitives of JAX, before there is a program; exports carry "
    "this module, which needs JAX alone",
    "compare/local_program.py": "ops of a module that XLA's partitioner has made",
}


def kind_tables(source: str) -> Iterator[tuple[int, list[str]]]:
    """(line, op kinds) of every literal that lists op kinds.

    Such a literal is a collection, or a text that is split, and at least half of it are op kinds.
    """
    for node in ast.walk(ast.parse(source)):
        items: list[ast.expr | None] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            items = list(node.elts)
        elif isinstance(node, ast.Dict):
            items = list(node.keys)
        texts = [
            item.value
            for item in items
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "split"
        ):
            split_text = node.func.value
            if isinstance(split_text, ast.Constant) and isinstance(split_text.value, str):
                texts = split_text.value.split()
        names = [text.removeprefix("stablehlo.") for text in texts]
        # The names of collectives are also those of our steps and of compilers' instructions; our
        # programs hold no such op.
        kinds = [
            name
            for name in names
            if name in OP_KINDS and name != "argument" and not op_kind(name).per_device
        ]
        if len(kinds) > 1 and 2 * len(kinds) >= len(names):
            yield node.lineno, kinds


def test_no_stage_keeps_a_table_of_op_kinds_of_its_own() -> None:
    tables_by_file = {
        path.relative_to(PACKAGE).as_posix(): list(kind_tables(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    others = {
        file: rows for file, rows in tables_by_file.items() if rows and file not in OTHER_TABLES
    }
    assert not others, f"add a field to ir/op_kinds.py instead, or give the reason here: {others}"
    stale = [file for file in OTHER_TABLES if not tables_by_file.get(file)]
    assert not stale, f"no table of op kinds any more: {stale}"


@pytest.mark.parametrize(
    "source",
    [
        '_SLICES = ("slice", "dynamic_slice")',
        'if kind in {"gather", "scatter", "something"}: pass',
        'NAMES = {"dot_general": "matmul", "stablehlo.divide": "div"}',
        'LINEAR = frozenset("add subtract convert".split())',
    ],
)
def test_the_search_for_tables_sees_one(source: str) -> None:
    assert list(kind_tables(source))
