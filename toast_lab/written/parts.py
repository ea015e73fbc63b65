"""What the parts of a program are, as far as words for plans need it; the same for all plans.

Start reading at ``program_parts``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.colour_roles import ColourRoles, roles
from toast_lab.conflicts.data_arguments import groups_of
from toast_lab.conflicts.uses_of_colours import uses_of_colours
from toast_lab.ir.program import CONVOLUTION, DOT, Program

#: Parts of data that run along activations; weights have none of them.
DATA_ROLES = ("batch", "sequence", "nodes", "edges", "space", "cache")


class WeightUse(NamedTuple):
    """An operand that is made of a parameter alone, read beside activations."""

    use: int
    parameter: int  #: argument
    is_lookup: bool


class ProgramParts(NamedTuple):
    """The arguments and ops of a program, sorted for words."""

    roles: ColourRoles
    name_role: tuple[str, ...]  #: [N] the part that each name's colour plays, empty: none
    name_layer: np.ndarray  #: [N] layer of each name's colour, -1: none of its own
    layer_count: int  #: 0: no layers alike
    parameters: tuple[int, ...]  #: weights that activations are computed with
    states: tuple[int, ...]  #: other weights: an optimizer's
    uses: tuple[WeightUse, ...]
    work: np.ndarray  #: [O] FLOPs of products; of all ops if the program has no products
    attention: frozenset[int]  #: ops: products of data with data, along positions
    residual: tuple[int, ...]  #: values of the residual stream: features at each position


@functools.lru_cache(maxsize=8)
def program_parts(analysis: Analysis) -> ProgramParts:
    """Sort the arguments and ops of a program."""
    program, played = analysis.program, roles(analysis)
    name_role = _roles_of_names(analysis, played)
    name_layer, layer_count = _layers_of_names(analysis)
    facts = uses_of_colours(analysis, played.arguments)
    products = {product.op for product in facts.weight_products}
    lookups = {lookup.op for lookup in facts.lookups if lookup.argument >= 0}
    active = _activations(analysis, played)
    weights = sorted(played.arguments.weights)
    parameters = set(weights)
    if played.arguments.trains:
        feeding = _feeding(program, active, products | lookups)
        parameters = {weight for weight in weights if feeding[weight]} or parameters
    return ProgramParts(
        roles=played,
        name_role=name_role,
        name_layer=name_layer,
        layer_count=layer_count,
        parameters=tuple(sorted(parameters)),
        states=tuple(weight for weight in weights if weight not in parameters),
        uses=tuple(_weight_uses(program, parameters, active, products=products, lookups=lookups)),
        work=_work(program),
        attention=frozenset(
            product.op
            for product in facts.data_products
            if any(
                played.of_group(int(analysis.group[colour])) in ("sequence", "cache")
                for colour in product.left | product.right | product.summed
            )
        ),
        residual=_residual(program, played, name_role),
    )


def _roles_of_names(analysis: Analysis, played: ColourRoles) -> tuple[str, ...]:
    role_of = {row.group: row.role for row in reversed(played.played)}
    by_group = [role_of.get(group.index, "") for group in analysis.groups]
    for group in _kv_heads(analysis, played):
        by_group[group] = "kv heads"
    return tuple(by_group[group] for group in analysis.group[analysis.colour].tolist())


def _kv_heads(analysis: Analysis, played: ColourRoles) -> set[int]:
    """Groups of heads that keys and values have, where queries have further ones."""
    of_queries = {
        row.group for row in played.played if row.role == "heads" and "queries" in row.evidence
    }
    heads = set(played.groups("heads"))
    return heads - of_queries if of_queries else set()


def _layers_of_names(analysis: Analysis) -> tuple[np.ndarray, int]:
    """([N] layer of each name, number of layers): colours alike, one of each layer."""
    counts = Counter(len(group.colours) for group in analysis.groups if len(group.colours) > 1)
    of_name = np.full(len(analysis.colour), -1, np.int64)
    if not counts:
        return of_name, 0
    layer_count = counts.most_common(1)[0][0]
    layer_of = np.full(len(analysis.group), -1, np.int64)
    for group in analysis.groups:
        if len(group.colours) == layer_count:
            layer_of[sorted(group.colours)] = np.arange(layer_count)
    return layer_of[analysis.colour], layer_count


def _activations(analysis: Analysis, played: ColourRoles) -> np.ndarray:
    """[V] bool: values that have a dim of the examples, or of positions if there are none."""
    program = analysis.program
    on_weights = {
        group for weight in played.arguments.weights for group in groups_of(analysis, weight)
    }
    groups = [group for group in played.groups("batch") if group not in on_weights]
    if not groups:
        groups = [group for group in played.groups(*DATA_ROLES) if group not in on_weights]
    in_group = np.isin(analysis.group[analysis.colour[program.def_dim_factor]], groups)
    active = np.zeros(program.n_values, bool)
    active[program.dim_value[in_group & (program.shape > 1)]] = True
    return active & ~program.value_is_constant


def _feeding(program: Program, active: np.ndarray, products: set[int]) -> np.ndarray:
    """[V] bool: values from which activations are computed, rounds of loops apart."""
    feeding = active.copy()
    for op in range(program.n_ops - 1, program.n_arguments - 1, -1):
        if op in products or any(feeding[value] for value in program.results(op)):
            feeding[program.operands(op)] = True
    return feeding


def _weight_uses(
    program: Program,
    parameters: Iterable[int],
    active: np.ndarray,
    *,
    products: set[int],
    lookups: set[int],
) -> list[WeightUse]:
    source = np.full(program.n_values, -1, np.int64)
    source[list(parameters)] = list(parameters)
    rank = np.diff(program.shape_ptr)
    uses: list[WeightUse] = []
    for op in program.ops():
        operands = program.operands(op)
        sources = [int(source[value]) for value in operands if source[value] >= 0]
        if not sources:
            continue
        others = [
            value
            for value in operands
            if source[value] < 0 and rank[value] and not program.value_is_constant[value]
        ]
        results = program.results(op)
        reads = op in products or op in lookups or any(active[value] for value in results)
        if reads:
            uses += [
                WeightUse(use, int(source[value]), op in lookups)
                for use, value in zip(program.uses(op), operands, strict=True)
                if source[value] >= 0
            ]
        elif not others:
            source[list(results)] = max(sources, key=program.nbytes)
    return uses


def _work(program: Program) -> np.ndarray:
    flops = program.flops * program.trips
    is_product = np.isin(program.op_class, (DOT, CONVOLUTION))
    return np.where(is_product, flops, 0.0) if flops[is_product].any() else flops


def _residual(program: Program, played: ColourRoles, name_role: tuple[str, ...]) -> tuple[int, ...]:
    """Values that have a dim of features, one of positions, and no other but the batch."""
    has_batch = bool(played.groups("batch"))
    residual = []
    for value in range(program.n_arguments, program.n_values):
        names = zip(program.def_names(value), program.dims(value), strict=True)
        parts = [name_role[name] for name, size in names if size > 1]
        wanted = {"features", "sequence", "batch"} if has_batch else {"features", "sequence"}
        if sorted(parts) == sorted(wanted) and not program.value_is_constant[value]:
            residual.append(value)
    return tuple(residual)
