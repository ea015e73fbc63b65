"""Which values a compiler never writes to memory, as far as that is known without a plan.

Elementwise ops, slices and the like are *soft*: any kernel that needs their result can compute it
again from their operands. A soft value with one consumer that takes it in is computed there. One
with several consumers is computed in each of them if keeping its sources costs no more memory than
keeping the value; else it is written. On a TPU the ops behind a matrix product are computed in its
kernel (``epilogues``), and elementwise ops that read the same values share a kernel.

What each kernel then reads is found by following its operands back through values that are not
written to values that are: each source once a kernel, however many of the ops inside read it.

XLA's compilers differ in what they fuse (``compiler_styles``), as read off what they make of the
built-in models. Reference: TOAST section 4.5 leaves fusion to the compiler; its cost model counts
dot and convolution only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.cost.bfloat16 import Narrowed, narrowed, none_narrowed
from toast_lab.cost.compiler_styles import CompilerStyle
from toast_lab.cost.epilogues import (
    Epilogues,
    FusionGraph,
    epilogues,
    no_epilogues,
)
from toast_lab.cost.matrix_tiles import BATCH, Products, dim_roles, have_one_row
from toast_lab.cost.shifts import MOST_REPEATED, OVERLAPPING, readings, shifts
from toast_lab.cost.value_roots import Roots
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where
from toast_lab.sharding.steps import Tables

_MOST_SOURCES = 8  # a value made of more is written, so that fusions stay small
_MOST_BETWEEN = 64  # ops that are followed to see whether a value's consumers meet again
_MOST_BEFORE = 64  # ops that are followed back to see whether a value can precede a kernel

#: A value made of less than this share of its bytes is spread on the way into its readers.
_SPREAD = 1 / 32


class Fusion(NamedTuple):
    """Which values are in memory, and what kernels read from it."""

    written: np.ndarray  #: [V] bool
    #: [O] the last op whose kernel computes this op (itself, if it has a kernel)
    ends_at: np.ndarray
    #: [O] the op at which it runs: as ``ends_at``, but a product runs in its own place, however
    #: late the values computed on its way out are needed. All that these take exists before.
    runs_at: np.ndarray
    reads: np.ndarray  #: [U] float64 how often the use reads memory; 0: fused, a view, a constant
    #: [O] the op that heads the kernel in which a result is written: a product for ops computed on
    #: its way out, the first of those that share a kernel, or the op itself
    head: np.ndarray
    #: Uses that read memory on the way out of a product, each with the product; not in ``reads``.
    epilogue_reads: list[tuple[int, int]]
    starts_kernel: np.ndarray  #: [O] bool: has a kernel of its own
    computable_in_parts: (
        np.ndarray
    )  #: [O] bool: a part of the result can be computed alone where it is needed
    #: [O] bool: joins slices that are in memory, and reads what it needs for the part that is kept
    joins: np.ndarray
    #: [O] bool: one of several slices of a value that overlap, computed on the way into a kernel
    shifted: np.ndarray
    product: np.ndarray  #: [O] bool: a matrix product or convolution
    elements: np.ndarray  #: [V] float64 how many numbers a value has
    style: CompilerStyle  #: of the compiler
    #: ops that read each value, views looked through; O: a result of the program
    consumers: list[set[int]]
    narrowed: Narrowed  #: what a TPU keeps in bfloat16
    #: [O] bool: no product depends on it. Products among these run after all others if they are
    #: summed over devices
    runs_late: np.ndarray
    #: [V] bool: a comparison of indices, or computed from one alone, and not written. It is
    #: computed on the way into kernels that read it whole; for one that reads a part, all of it is
    #: written.
    compared: np.ndarray


def fuse(
    program: p.Program,
    tables: Tables,
    shapes: Products,
    *,
    roots: Roots,
    style: CompilerStyle,
) -> Fusion:
    """Decide which values are written, and what kernels read.

    Args:
        program: the program.
        tables: its tables.
        shapes: sizes of its products.
        roots: its views, and ops that cost nothing.
        style: what the compiler fuses.
    """
    return _Fuser(program, tables, shapes, roots=roots, style=style).run()


class _Fuser:
    def __init__(
        self,
        program: p.Program,
        tables: Tables,
        shapes: Products,
        *,
        roots: Roots,
        style: CompilerStyle,
    ) -> None:
        self.program, self.style = program, style
        self.n_ops = program.n_ops
        self.root: list[int] = roots.root.tolist()
        self.free: list[bool] = roots.free.tolist()
        self.view: list[bool] = roots.view.tolist()
        self.output: list[bool] = tables.value_output.tolist()
        self.bytes: list[float] = tables.value_bytes.tolist()
        self._read(program)
        self._sort_ops(shapes)
        self.consumers = self._consumers()
        self.readings = readings(
            program, root=self.root, consumers=self.consumers, elements=self.elements
        )
        #: [V] elementwise ops for an element of a value that is not written, and whether they read
        #: a value at several offsets
        self.inner_ops = [0.0] * program.n_values
        self.is_stencil = [False] * program.n_values
        self.narrowed = (
            narrowed(program, self.consumers, tables.value_output)
            if style.narrows
            else none_narrowed(program)
        )
        self.written = [
            not is_constant and self.root[value] == value
            for value, is_constant in enumerate(self.constant)
        ]
        self.sources: dict[int, frozenset[int]] = {}  # of soft values that are not written
        self.epilogues = self._epilogues()

    def _read(self, program: p.Program) -> None:
        """Copy columns of the program into lists, whose items are quicker to read."""
        ops = range(program.n_ops)
        self.region: list[int] = program.region.tolist()
        self.constant: list[bool] = np.asarray(program.value_is_constant).tolist()
        self.maker: list[int] = program.value_op.tolist()
        self.operands: list[list[int]] = [program.operands(op) for op in ops]
        self.results: list[list[int]] = [list(program.results(op)) for op in ops]
        self.elements = [float(math.prod(program.dims(value))) for value in range(program.n_values)]

    def _sort_ops(self, shapes: Products) -> None:
        """Classify ops by whether they are fused, and into what."""
        program, style, classes = self.program, self.style, self.program.op_class
        product = np.isin(classes, (p.DOT, p.CONVOLUTION))
        sums = classes == p.REDUCE
        if style.sums_vectors:
            vectors = (classes == p.DOT) & have_one_row(shapes)
            product, sums = product & ~vectors, sums | vectors
        moves = ops_where(program.kind, "moves_elements")
        picks = ops_where(program.kind, "picks_slice") & ops_where(program.kind, "reads_part")
        moves |= picks if style.picks_slices else False
        gathers = np.asarray(program.kind) == "gather"
        moves |= gathers if style.fuses_gathers else False
        marks = _marks(program) if style.compares_places else np.zeros(program.n_ops, bool)
        moves |= marks
        soft = ((classes == p.ELEMENTWISE) | moves) & (np.diff(program.result_ptr) == 1)
        takes = (soft & ~gathers) | sums | (product if style.into_products else False)
        works = product | np.isin(classes, (p.INDEXING, p.CONTROL, p.OTHER, p.OPAQUE))
        self.marks = marks
        self.gathers: list[bool] = gathers.tolist()
        self.picks: list[bool] = picks.tolist()
        self.product: list[bool] = product.tolist()
        self.reduces: list[bool] = sums.tolist()
        #: [O] counts as much as a product: what leads to it is not left for the end
        self.works: list[bool] = works.tolist()
        self.soft: list[bool] = soft.tolist()
        self.takes: list[bool] = takes.tolist()
        self.elementwise: list[bool] = (classes == p.ELEMENTWISE).tolist()

    def _epilogues(self) -> Epilogues:
        """The ops computed on the way out of products."""
        if self.style.out_of_products:
            return epilogues(self._graph())
        return no_epilogues(self.n_ops)

    def _kept_bytes(self) -> list[float]:
        narrow = self.narrowed.values
        return [
            0.5 * size if is_narrow else size
            for size, is_narrow in zip(self.bytes, narrow, strict=True)
        ]

    def _graph(self) -> FusionGraph:
        return FusionGraph(
            n_arguments=self.program.n_arguments,
            n_ops=self.n_ops,
            operands=[[self.root[value] for value in row] for row in self.operands],
            results=self.results,
            maker=self.maker,
            region=self.region,
            consumers=self.consumers,
            elements=self.elements,
            bytes=self._kept_bytes(),
            is_root=[root == value for value, root in enumerate(self.root)],
            is_constant=self.constant,
            is_output=self.output,
            free=self.free,
            product=self.product,
            computable_in_parts=[
                soft and not pick for soft, pick in zip(self.soft, self.picks, strict=True)
            ],
            elementwise=self.elementwise,
            takes=self.takes,
            reduces=self.reduces,
        )

    def _consumers(self) -> list[set[int]]:
        """Ops that read each value, views looked through.

        ``n_ops`` stands for being a result of the program.
        """
        consumers: list[set[int]] = [set() for _ in self.root]
        for op in range(self.n_ops - 1, self.program.n_arguments - 1, -1):
            results, operands = self.results[op], self.operands[op]
            if self.view[op] and len(results) == len(operands):
                for value, operand in zip(results, operands, strict=True):
                    # Of two equal casts the second is a view of the first
                    is_same = self.root[value] == self.root[operand]
                    consumers[operand if is_same else self.root[value]] |= (
                        consumers[value]
                        if not self.output[value]
                        else {*consumers[value], self.n_ops}
                    )
            else:
                for operand in operands:
                    consumers[operand].add(op)
        return consumers

    def run(self) -> Fusion:
        for op in range(self.program.n_arguments, self.n_ops):
            for value in self.results[op]:
                if self.product[op] and value in self.epilogues.inner:
                    self.written[value] = False
            if (self.soft[op] or self._is_held(op)) and not self.free[op]:
                self._decide(op, self.results[op][0])
        heads = self._heads()
        reads, beside = self._reads(heads)
        return Fusion(
            written=np.asarray(self.written, bool),
            ends_at=self._inside_until(self.epilogues.end.tolist()),
            runs_at=self._inside_until(
                [
                    head if self.style.runs_with_first and not self.product[head] else op
                    for op, head in enumerate(heads)
                ]
            ),
            reads=reads,
            head=np.asarray(heads, np.int64),
            epilogue_reads=beside,
            starts_kernel=np.asarray(
                [
                    not self.free[op] and not self._inside(op) and heads[op] == op
                    for op in range(self.n_ops)
                ],
                bool,
            ),
            computable_in_parts=np.asarray(self.soft, bool),
            joins=np.asarray([self._joins(op) for op in range(self.n_ops)], bool),
            shifted=np.asarray(
                [self._inside(op) and self._overlaps(op) for op in range(self.n_ops)], bool
            ),
            product=np.asarray(self.product, bool),
            elements=np.asarray(self.elements, np.float64),
            style=self.style,
            consumers=self.consumers,
            narrowed=self.narrowed,
            runs_late=self._waits(),
            compared=_compared(self.program, self.marks, self.written),
        )

    def _waits(self) -> np.ndarray:
        """[O] bool: ops outside of loops that no product depends on, such as weight gradients.

        XLA schedules a program from its end, where the sums of such products over devices take
        turns, each behind the product that hides it: these products come last.
        """
        is_last = np.full(self.n_ops, self.style.waits_with_sums)
        for op in range(self.n_ops - 1, self.program.n_arguments - 1, -1):
            is_last[op] &= self.region[op] < 0 and not any(
                self.works[consumer] or not is_last[consumer]
                for value in self.results[op]
                for consumer in self.consumers[value]
                if consumer < self.n_ops
            )
        return is_last

    def _is_held(self, op: int) -> bool:
        """Does one kernel sum up rows and spread the sums over the same rows?

        A softmax or a normalisation does: the op that takes the sum also reads what was summed, and
        a row of that fits into a processor.
        """
        program = self.program
        if not self.style.held_row or program.kind[op] != "reduce" or len(self.results[op]) != 1:
            return False
        summed, (value,) = self.operands[op][0], self.results[op]
        kept = len(program.dims(value))
        row = float(np.prod(program.dims(summed)[kept:]))
        if not 1 < row <= self.style.held_row or (
            list(program.use_names(program.uses(op)[0]))[:kept] != list(program.def_names(value))
        ):
            return False
        sources = self._sources_of(self.root[summed])
        while True:
            (consumer, *others) = self.consumers[value] or {self.n_ops}
            if others or consumer == self.n_ops or not self.elementwise[consumer]:
                return False
            value = self.results[consumer][0]
            if self.elements[value] >= self.elements[summed]:
                return program.dims(value) == program.dims(summed) and any(
                    self._sources_of(self.root[operand]) & sources
                    for operand in self.operands[consumer]
                )

    def _inside_until(self, until: list[int]) -> np.ndarray:
        """[O] ``until``; an op that runs inside others gets the value of its latest consumer."""
        for op in range(self.n_ops - 1, self.program.n_arguments - 1, -1):
            if self._inside(op):
                until[op] = max(until[consumer] for consumer in self.consumers[self.results[op][0]])
        return np.asarray(until, np.int64)

    def _inside(self, op: int) -> bool:
        """Is this soft op computed inside others?"""
        return any(value in self.sources for value in self.results[op])

    def _decide(self, op: int, value: int) -> None:
        consumers = self.consumers[value]
        self._count_inside(op, value)
        if value in self.epilogues.inner:
            self.written[value] = False
            self.sources[value] = frozenset(
                source for source in self._sources(op) if self.written[source]
            )
            return
        if value in self.epilogues.ends:
            return
        if self.constant[value] or self.root[value] != value or self.output[value] or not consumers:
            return
        if not all(
            consumer < self.n_ops
            and self.takes[consumer]
            and self.region[consumer] == self.region[op]
            for consumer in consumers
        ):
            return
        if self._is_padded_for_several(op, consumers) or self._is_shifted(op, value):
            return
        if self.gathers[op] and (
            len(consumers) > 1 or any(self.reduces[consumer] for consumer in consumers)
        ):
            return
        if self.picks[op] and not all(
            self._reads_as_matrix(consumer, value) for consumer in consumers
        ):
            return
        sources = {source for source in self._sources(op) if self.written[source]}
        if len(consumers) > 1:
            last = max(consumers)
            # Sources that are needed as long anyway cost nothing.
            kept_bytes = sum(self.bytes[source] for source in sources if self._alive(source) < last)
            if (
                not self.style.recomputes
                or (self.elementwise[op] and self.is_stencil[value] and not self._meets(value))
                or len(sources) > _MOST_SOURCES
                or kept_bytes > self.bytes[value]
            ):
                return
            # Nor may it move more: what all consumers would read, against a kernel that reads the
            # sources and writes the value, and consumers that read it.
            read_bytes = sum(
                self.bytes[source]
                for consumer in consumers
                for source in sources - self._sources(consumer)
            )
            if (
                read_bytes
                > sum(self.bytes[source] for source in sources)
                + (1 + len(consumers)) * self.bytes[value]
            ):
                return
        self.written[value] = False
        self.sources[value] = frozenset(sources)

    def _count_inside(self, op: int, value: int) -> None:
        """Note what a kernel computes for an element of a value, see ``inner_ops``."""
        if not self.style.ends_at_shifts:
            return
        roots = [self.root[operand] for operand in self.operands[op]]
        inner = [root for root in roots if root in self.sources]
        self.inner_ops[value] = self.elementwise[op] + sum(self.inner_ops[root] for root in inner)
        self.is_stencil[value] = any(self.is_stencil[root] for root in inner) or (
            shifts(self.program, op) and any(self.readings[root] > OVERLAPPING for root in roots)
        )

    def _is_stencil(self, op: int) -> bool:
        """Does an op read a value at several offsets, on the way in?"""
        return any(self.is_stencil[self.root[operand]] for operand in self.operands[op])

    def _meets(self, value: int) -> bool:
        """Does all that is made of a value meet again in one op?

        Then one kernel computes it once, as it does minima and maxima that sort a few values.
        """
        waiting = set(self.consumers[value])
        for _ in range(_MOST_BETWEEN):
            op = min(waiting)
            if op == self.n_ops or not self.elementwise[op] or len(self.results[op]) > 1:
                return False
            if self.region[op] != self.region[self.maker[value]]:
                return False
            waiting.remove(op)
            if not waiting:
                return True
            waiting |= self.consumers[self.results[op][0]] or {self.n_ops}
        return False

    def _is_shifted(self, op: int, value: int) -> bool:
        """Is a value written because it is read at several offsets?"""
        if not self.style.ends_at_shifts:
            return False
        if self.elementwise[op]:
            repeated = (self.readings[value] - 1.0) * self.inner_ops[value]
            return self.readings[value] > OVERLAPPING and repeated > MOST_REPEATED
        return self._is_joined(op)

    def _overlaps(self, op: int) -> bool:
        """Is this one of several slices of a value that overlap?"""
        return (
            self.program.kind[op] == "slice"
            and self.readings[self.root[self.operands[op][0]]] > OVERLAPPING
        )

    def _joins(self, op: int) -> bool:
        """Does an op join slices that were written for that?"""
        return self._inside(op) and any(
            self._is_joined(self.maker[self.root[operand]]) for operand in self.operands[op]
        )

    def _is_joined(self, op: int) -> bool:
        """Is this one of several slices of a value that overlap and are joined to others?"""
        return (
            self.style.joins_written
            and self._overlaps(op)
            and any(
                consumer < self.n_ops and self.program.kind[consumer] == "concatenate"
                for consumer in self.consumers[self.results[op][0]]
            )
        )

    def _is_padded_for_several(self, op: int, consumers: set[int]) -> bool:
        """Is the result written for several products, each of which pads it on the way in?"""
        if len(consumers) > 1 or not self.elementwise[op]:
            return False
        (consumer,) = consumers
        if self.program.kind[consumer] != "pad":
            return False
        readers = self.consumers[self.results[consumer][0]]
        return len(readers) > 1 and all(
            reader < self.n_ops and self.product[reader] and self.takes[reader]
            for reader in readers
        )

    def _reads_as_matrix(self, op: int, value: int) -> bool:
        """Can a product read a picked slice in place?

        Its batch dims have to come first, and its last dim has to be all of its columns: memory is
        tiled by the last two dims, and merging them moves everything. True for all other ops.
        """
        if not self.product[op]:
            return True
        for operand, roles in zip(self.operands[op], dim_roles(self.program, op), strict=True):
            if self.root[operand] == value:
                n_batch = roles.count(BATCH)
                if roles[-2:-1] == roles[-1:] or roles[:n_batch] != [BATCH] * n_batch:
                    return False
        return True

    def _sources(self, op: int) -> set[int]:
        """Sources of an op, given what has been decided to be written so far."""
        roots = {self.root[operand] for operand in self.operands[op]}
        return {source for root in roots for source in self._sources_of(root)}

    def _sources_of(self, root: int) -> frozenset[int]:
        """The values read to get a value: itself, if it is in memory."""
        return self.sources.get(root, frozenset((root,)))

    def _alive(self, source: int) -> int:
        """Last op that reads the source itself; ``n_ops`` for arguments and results."""
        if self.maker[source] < self.program.n_arguments or self.output[source]:
            return self.n_ops
        return max(self.consumers[source], default=-1)

    def _heads(self) -> list[int]:
        """[O] the product for ops computed on its way out, each other op itself so far."""
        heads = list(range(self.n_ops))
        for op, product in enumerate(self.epilogues.product.tolist()):
            if product >= 0 and not self._inside(op):
                heads[op] = product
        return heads

    def _reads(self, heads: list[int]) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """``Fusion.reads`` and ``epilogue_reads``; sets the head of ops that share a kernel."""
        reads, beside = np.zeros(self.program.n_uses), list[tuple[int, int]]()
        shared: dict[tuple[int, float], list[_Kernel]] = {}
        seen_by: dict[int, set[int]] = {}  # by head, what its kernel reads
        ops_of: dict[int, set[int]] = {}  # by product, itself and the ops on its way out
        for op in range(self.program.n_arguments, self.n_ops):
            if self.free[op] or self._inside(op):
                continue
            product = heads[op]
            if product != op:
                kernel_ops = ops_of.setdefault(product, {product})
                taken = self._read_by(op, seen_by[product])
                beside += [
                    (use, product) for use, source in taken if self.maker[source] not in kernel_ops
                ]
                kernel_ops.add(op)
                continue
            seen = seen_by.setdefault(op, set())
            taken = self._read_by(op, seen)
            if self.style.several_results and (
                self.elementwise[op] or self.reduces[op] or self._is_joined(op)
            ):
                taken = self._share(op, taken, heads, shared)
            for use, source in taken:
                reads[use] += self._width(source)
        return reads, beside

    def _could_precede(self, value: int, kernel: _Kernel) -> bool:
        """Is a value made before a kernel, or could it be, as it does not depend on that?"""
        head = kernel.head
        if not self.style.runs_with_first:
            return self.maker[value] < head
        waiting, seen = [self.maker[value]], set[int]()
        while waiting:
            op = waiting.pop()
            if op < head or op in seen or self.constant[self.results[op][0]]:
                continue
            seen.add(op)
            if op in kernel.ops or len(seen) > _MOST_BEFORE or self.region[op] != self.region[head]:
                return False
            waiting += [self.maker[operand] for operand in self.operands[op]]
        return True

    def _width(self, source: int) -> float:
        """Bytes that are read for a value over its own: a cast is read as what it is cast from.

        Only sources with as many numbers count: those that are picked from or joined are about as
        large as the value. A value spread from little, such as a one-hot matrix from indices, is
        read as that. If the same cast is written to memory for another op, it is read from there.
        """
        if self.written[source]:
            return 1.0
        casts = {
            self.bytes[self.results[op][0]]
            for origin in self.sources[source]
            for op in self.consumers[origin]
            if op < self.n_ops
            and self.program.kind[op] == "convert"
            and self.written[self.results[op][0]]
        }
        if self.bytes[source] in casts:
            return 1.0
        read = [
            self.bytes[origin]
            for origin in self.sources[source]
            if self.elements[origin] == self.elements[source]
        ]
        if not read:
            source_bytes = sum(self.bytes[origin] for origin in self.sources[source])
            if source_bytes >= _SPREAD * self.bytes[source]:
                return 1.0
            return source_bytes / self.bytes[source]
        return max(read) / self.bytes[source]

    def _read_by(self, op: int, seen: set[int]) -> list[tuple[int, int]]:
        """Uses through which a kernel reads memory, and what they read.

        A kernel reads each source once, except that an op which is not elementwise reads its own
        operands each by itself; ``seen`` is what the kernel has read so far.
        """
        taken = list[tuple[int, int]]()
        waiting, ops = [op], {op}
        while waiting:
            reader = waiting.pop()
            for use, operand in zip(self.program.uses(reader), self.operands[reader], strict=True):
                source = self.root[operand]
                if self.written[source]:
                    if source not in seen or (reader == op and not self.elementwise[op]):
                        taken.append((use, source))
                    seen.add(source)
                elif source in self.sources:
                    if self.product[op]:
                        # about as much as what it is made from
                        taken.append((use, source))
                    elif self.maker[source] not in ops:
                        ops.add(self.maker[source])
                        waiting.append(self.maker[source])
        return taken

    def _share(
        self,
        op: int,
        taken: list[tuple[int, int]],
        heads: list[int],
        shared: dict[tuple[int, float], list[_Kernel]],
    ) -> list[tuple[int, int]]:
        """Add an op to a kernel that reads or makes what it reads, if its operands can precede it.

        Without such a kernel the op heads a new one. Gives what it reads beyond what the kernel has
        read.
        """
        measured_value = self.operands[op][0] if self.reduces[op] else self.results[op][0]
        elements = self.elements[measured_value]
        sources = {source for _, source in taken}
        kernels = shared.setdefault((self.region[op], elements), [])
        is_stencil = self._is_stencil(op)
        for kernel in reversed(kernels):
            known = kernel.sources | kernel.results
            if (
                any(
                    elements <= self.elements[source] < 2.0 * elements for source in sources & known
                )
                and all(
                    self._could_precede(source, kernel)
                    if source not in kernel.results
                    # Other offsets of a value are nowhere until all of it is made.
                    else not is_stencil or self.readings[source] <= OVERLAPPING
                    for source in sources
                )
                and len(kernel.sources | sources) <= 2 * _MOST_SOURCES
            ):
                heads[op] = kernel.head
                break
        else:
            kernel = _Kernel(op, set(), set(), set())
            kernels.append(kernel)
            known = set()
        kernel.ops.add(op)
        kernel.sources.update(sources - kernel.results)
        if self.elementwise[op]:
            kernel.results.update(self.results[op])
        return [(use, source) for use, source in taken if source not in known]


def _marks(program: p.Program) -> np.ndarray:
    """[O] bool: scatters of one number a row into a constant, as in ``take_along_axis`` gradients.

    Comparing indices shows whether a row's number goes to an element, so that such a value can be
    computed on the way into any kernel that needs it.
    """
    marks = np.zeros(program.n_ops, bool)
    for op in program.ops():
        if program.kind[op] != "scatter" or len(program.operands(op)) != 3:
            continue
        target, indices, numbers = program.operands(op)
        of_result = program.def_names(program.results(op)[0])
        of_numbers = program.use_names(program.uses(op)[2])
        rows = {
            name for name, size in zip(of_numbers, program.dims(numbers), strict=True) if size > 1
        }
        marks[op] = (
            program.value_is_constant[target]
            and np.prod(program.dims(indices)) == np.prod(program.dims(numbers))
            and rows < set(of_result)
            and sum(name not in rows for name in of_result) == 1
        )
    return marks


def _compared(program: p.Program, marks: np.ndarray, written: Sequence[bool]) -> np.ndarray:
    """``Fusion.compared``, given the ops that are marks and the values that are written."""
    compared = np.zeros(program.n_values, bool)
    for op in program.ops():
        operands = [value for value in program.operands(op) if not program.value_is_constant[value]]
        is_of_one = (
            program.op_class[op] == p.ELEMENTWISE and len(operands) == 1 and compared[operands[0]]
        )
        if marks[op] or is_of_one:
            for value in program.results(op):
                compared[value] = not written[value]
    return compared


class _Kernel(NamedTuple):
    """Ops that share a kernel."""

    head: int  # the first
    ops: set[int]
    sources: set[int]
    results: set[int]  # elementwise ones, which other ops in the kernel may take directly
