"""How the ops of a program use its colours: facts from which roles follow (see ``colour_roles``).

Values have one of three *origins*: constants (and random numbers), weights, and data. A product
of data with a weight is a *weight product*, one of data with data is a *data product*, as in
attention. Only weight products of the forward pass count: a later one that sums over other
colours of the weight than its first one did belongs to the backward pass. A product of data with
data that sums over the batch makes the gradient of a weight.

Start reading at ``uses_of_colours``.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from toast_lab.conflicts.colouring import Colouring
from toast_lab.conflicts.data_arguments import (
    ArgumentKinds,
    groups_of,
    indexed_names,
    is_whole_number,
)
from toast_lab.ir.op_kinds import is_control, op_kind
from toast_lab.ir.program import CONVOLUTION, DOT, MONOIDS, PASS, REDUCE, REDUCTION, Program

CONSTANT_ORIGIN, WEIGHT_ORIGIN, DATA_ORIGIN = range(3)
MOST_PASSES = 4  # data reaches loops in loops after a few passes


@dataclasses.dataclass(frozen=True)
class WeightProduct:
    """A product of data with a weight, in the forward pass; dims are given as colours."""

    op: int
    weight: int  #: argument
    summed: frozenset[int]  #: summed over, on the data and on the weight
    produced: frozenset[int]  #: of the weight, kept in the result
    shared: frozenset[int]  #: on data, weight and result
    space: frozenset[int]  #: dims over which a convolution slides
    is_convolution: bool


@dataclasses.dataclass(frozen=True)
class DataProduct:
    """A product of data with data; dims are given as colours."""

    op: int
    summed: frozenset[int]
    left: frozenset[int]  #: of the first operand, kept in the result
    right: frozenset[int]  #: of the second operand, kept in the result
    shared: frozenset[int]  #: on both operands and the result


@dataclasses.dataclass(frozen=True)
class RowLookup:
    """A gather of rows, by whole numbers that depend on data."""

    op: int
    table: int  #: origin of the looked-up operand
    argument: int  #: the table's argument, -1 if it is computed
    rows: frozenset[int]  #: colours that the indices point into
    kept: frozenset[int]  #: colours of a row
    index_dims: frozenset[int]  #: colours of the indices


@dataclasses.dataclass(frozen=True)
class Uses:
    """All facts about the use of colours."""

    weight_products: tuple[WeightProduct, ...]
    data_products: tuple[DataProduct, ...]
    lookups: tuple[RowLookup, ...]
    gradient_count: int  #: products that sum over the batch: gradients of weights
    on_weights: frozenset[int]  #: colours of the dims of weight arguments
    softmax: frozenset[int]  #: colours over which the largest of data is taken
    #: colours along which data is sorted, its largest are selected, or one of many is marked
    chosen: frozenset[int]


def uses_of_colours(analysis: Colouring, arguments: ArgumentKinds) -> Uses:
    """Collect the facts; one walk over the ops, after ``arguments`` were sorted."""
    collector = _Collector(analysis, arguments)
    for op in analysis.program.ops():
        collector.add(op)
    return Uses(
        weight_products=tuple(collector.weight_products),
        data_products=tuple(collector.data_products),
        lookups=tuple(collector.lookups),
        gradient_count=collector.gradient_count,
        on_weights=collector.colours(
            name for argument in arguments.weights for name in analysis.program.def_names(argument)
        ),
        softmax=frozenset(collector.softmax),
        chosen=frozenset(collector.chosen),
    )


class _Collector:
    """Reads the facts off ops, one after the other."""

    def __init__(self, analysis: Colouring, arguments: ArgumentKinds) -> None:
        self.analysis, self.program = analysis, analysis.program
        self.origin = _origins(analysis, arguments)
        self.weight_of = _weight_of(self.program, self.origin)
        self.batch_colours = frozenset(
            colour for group in arguments.batches for colour in analysis.groups[group].colours
        )
        self.weight_products: list[WeightProduct] = []
        self.data_products: list[DataProduct] = []
        self.lookups: list[RowLookup] = []
        self.gradient_count = 0
        self.softmax: set[int] = set()
        self.chosen: set[int] = set()
        self._first_summed: dict[int, frozenset[int]] = {}
        self._seen: set[tuple[object, ...]] = set()

    def colours(self, names: Iterable[int]) -> frozenset[int]:
        """The colours of names; dims of one element are left out."""
        colour, size = self.analysis.colour, self.analysis.names.size
        return frozenset(int(colour[name]) for name in names if size[name] > 1)

    def add(self, op: int) -> None:
        """Add the facts about one op."""
        program, operands = self.program, self.program.operands(op)
        if not operands:
            return
        kind = op_kind(program.kind[op])
        if program.op_class[op] in (DOT, CONVOLUTION) and len(operands) >= 2:
            self._add_product(op)
        elif kind.looks_up and kind.update_operand < 0 and len(operands) >= 2:
            if self.origin[operands[1]] == DATA_ORIGIN and is_whole_number(program, operands[1]):
                self.lookups.append(self._lookup(op))
        elif program.kind[op] == "compare" and is_whole_number(program, operands[0]):
            # One-hot codes are comparisons of numbers with the positions along a dim.
            origins = sorted(int(self.origin[value]) for value in operands)
            if origins == [CONSTANT_ORIGIN, DATA_ORIGIN]:
                self.chosen |= self.colours(program.def_names(program.results(op)[0]))
        elif self.origin[operands[0]] == DATA_ORIGIN:
            names = set(program.use_names(program.uses(op)[0]))
            monoid = MONOIDS[program.monoid[op]] if program.op_class[op] == REDUCE else ""
            if monoid == "max":
                summed = {name for name in names if program.factor_class[name] == REDUCTION}
                self.softmax |= self.colours(summed)
            elif kind.orders or monoid == "none":
                self.chosen |= self.colours(
                    name for name in names if program.factor_class[name] != PASS
                )

    def _add_product(self, op: int) -> None:
        origins = sorted(int(self.origin[value]) for value in self.program.operands(op)[:2])
        if origins == [WEIGHT_ORIGIN, DATA_ORIGIN]:
            product = self._weight_product(op)
            summed = self._first_summed.setdefault(product.weight, product.summed)
            # What is computed again for the backward pass comes after the whole forward pass.
            use = (product.weight, product.summed, product.produced, product.shared)
            if product.weight >= 0 and product.summed & summed and use not in self._seen:
                self._seen.add(use)
                self.weight_products.append(product)
        elif origins[0] == DATA_ORIGIN:
            of_data = self._data_product(op)
            kept = of_data.left | of_data.right | of_data.shared
            if self.batch_colours & of_data.summed and not self.batch_colours & kept:
                self.gradient_count += 1
            else:
                self.data_products.append(of_data)

    def _result_names(self, op: int) -> set[int]:
        results = self.program.results(op)
        return {name for value in results for name in self.program.def_names(value)}

    def _weight_product(self, op: int) -> WeightProduct:
        program, operands, uses = self.program, self.program.operands(op), self.program.uses(op)
        weight_at = 0 if self.origin[operands[0]] == WEIGHT_ORIGIN else 1
        weight, data = (set(program.use_names(uses[at])) for at in (weight_at, 1 - weight_at))
        result = self._result_names(op)
        is_convolution = bool(program.op_class[op] == CONVOLUTION)
        # Rows of the data meet one group of the weight of a ragged product each.
        groups = weight - data - result if len(uses) > 2 and not is_convolution else set[int]()
        slid_over = {
            name
            for name in (data & result) - weight
            if is_convolution and program.factor_class[name] not in (PASS, REDUCTION)
        }
        return WeightProduct(
            op=op,
            weight=int(self.weight_of[operands[weight_at]]),
            summed=self.colours((weight & data) - result),
            produced=self.colours((weight & result) - data),
            shared=self.colours((weight & data & result) | groups),
            space=self.colours(slid_over),
            is_convolution=is_convolution,
        )

    def _data_product(self, op: int) -> DataProduct:
        left, right = (set(self.program.use_names(use)) for use in self.program.uses(op)[:2])
        result = self._result_names(op)
        return DataProduct(
            op=op,
            summed=self.colours((left & right) - result),
            left=self.colours((left - right) & result),
            right=self.colours((right - left) & result),
            shared=self.colours(left & right & result),
        )

    def _lookup(self, op: int) -> RowLookup:
        program, uses = self.program, self.program.uses(op)
        table_value, result = program.operands(op)[0], self._result_names(op)
        return RowLookup(
            op=op,
            table=int(self.origin[table_value]),
            argument=int(self.weight_of[table_value]),
            rows=self.colours(indexed_names(program, op)),
            kept=self.colours(set(program.use_names(uses[0])) & result),
            index_dims=self.colours(set(program.use_names(uses[1])) & result),
        )


def _origins(analysis: Colouring, arguments: ArgumentKinds) -> np.ndarray:
    """[V] origin of each value.

    What a loop passes on counts as data if it is data after some round, unless a weight enters the
    loop there: several training steps in a loop still have weights.
    """
    program = analysis.program
    origin = np.zeros(program.n_values, np.int8)
    for argument in arguments.weights:
        origin[argument] = WEIGHT_ORIGIN
    for argument in arguments.data:
        origin[argument] = DATA_ORIGIN
    # What is drawn from keys or made of constants for each example is data. Where weights carry
    # the colour too, as those of experts can, the colour says nothing.
    on_weights = {group for weight in arguments.weights for group in groups_of(analysis, weight)}
    batches = [group for group in arguments.batches if group not in on_weights]
    in_group = np.isin(analysis.group[analysis.colour[program.def_dim_factor]], batches)
    carries_batch = np.zeros(program.n_values, bool)
    carries_batch[program.dim_value[in_group & (program.shape > 1)]] = True
    origin[carries_batch & ~program.value_is_constant] = DATA_ORIGIN
    for argument in arguments.keys | arguments.scalars:
        origin[argument] = CONSTANT_ORIGIN
    passed_on = np.zeros(program.n_ops, np.int8)  # by owner, of loops and conditionals
    for _ in range(MOST_PASSES):
        before = passed_on.copy()
        for op in program.ops():
            incoming = max((int(origin[value]) for value in program.operands(op)), default=0)
            if is_control(program.kind[op]):
                owner = int(program.owner[op])
                passed_on[owner] = max(incoming, int(passed_on[owner]))
                if incoming == CONSTANT_ORIGIN:
                    incoming = int(passed_on[owner])
            for value in program.results(op):
                origin[value] = max(incoming, int(origin[value]))
        if (before == passed_on).all():
            break
    return origin


def _weight_of(program: Program, origin: np.ndarray) -> np.ndarray:
    """[V] for values computed from weights: the largest weight among their sources; else -1."""
    weight_of = np.full(program.n_values, -1, np.int64)
    for argument in range(program.n_arguments):
        if origin[argument] == WEIGHT_ORIGIN:
            weight_of[argument] = argument
    for op in program.ops():
        sources = [int(weight_of[value]) for value in program.operands(op) if weight_of[value] >= 0]
        if sources:
            largest = max(sources, key=program.nbytes)
            for value in program.results(op):
                if origin[value] == WEIGHT_ORIGIN:
                    weight_of[value] = largest
    return weight_of


def products_by_colour(
    products: Iterable[WeightProduct],
) -> tuple[dict[int, list[WeightProduct]], dict[int, list[WeightProduct]]]:
    """(products that sum over each colour, products that produce it), in program order."""
    summing: dict[int, list[WeightProduct]] = defaultdict(list)
    producing: dict[int, list[WeightProduct]] = defaultdict(list)
    for product in products:
        for colour in product.summed:
            summing[colour].append(product)
        for colour in product.produced:
            producing[colour].append(product)
    return summing, producing
