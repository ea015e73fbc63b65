"""Values that a GPU's loop copies before it hands them on, or when they enter.

``docs/machines.md`` says which ("Stencils"); read off XLA's programs for GPUs (``CopyInsertion``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from toast_lab.cost.fusion import Fusion
from toast_lab.ir import program as p


def loop_copies(
    program: p.Program, fusion: Fusion, *, root: np.ndarray, update_operand: np.ndarray
) -> list[int]:
    """Ops that enter a loop or hand a value on to its next round, and copy the value.

    Args:
        program: the program.
        fusion: its kernels.
        root: [V] the value in whose memory each value is.
        update_operand: [O] as in ``program_facts.OpFacts``.
    """
    hands_on = defaultdict[int, list[int]](list)
    for op in program.ops():
        if program.kind[op] == "while.next" and program.dims(program.operands(op)[0]):
            body = int(program.region[op])
            if program.regions[body].times > 1:  # one round is no loop
                hands_on[body].append(op)
    copies = list[int]()
    for body, ops in hands_on.items():
        loop = _Loop(program, fusion, root=root, update_operand=update_operand, body=body)
        changed = [op for op in ops if loop.changes(op)]
        copies += [op for op in changed if loop.copies(op)]
        enters = [int(program.owner[op]) for op in changed]
        copies += [enter for enter in enters if _is_argument(program, root, enter)]
    return copies


def _is_argument(program: p.Program, root: np.ndarray, enter: int) -> bool:
    """Is the value that enters a loop an argument whose memory the program must not overwrite?"""
    maker = int(program.value_op[root[program.operands(enter)[0]]])
    return maker < program.n_arguments and not program.donated[maker]


class _Loop:
    """The kernels of a loop's body, in the order that they need."""

    def __init__(
        self,
        program: p.Program,
        fusion: Fusion,
        *,
        root: np.ndarray,
        update_operand: np.ndarray,
        body: int,
    ) -> None:
        self.program, self.fusion, self.root, self.body = program, fusion, root, body
        self.update_operand = update_operand
        self.kernels: dict[int, frozenset[int]] = {}  # of ops, see ``_kernels``
        self.ops_of = defaultdict[int, list[int]](list)  # by kernel: ops that write a result
        for op in range(program.regions[body].begin, program.regions[body].end):
            if any(fusion.written[value] for value in program.results(op)):
                self.ops_of[int(fusion.head[op])].append(op)
        #: by kernel: kernels that have to run later, so that they do not overwrite what it reads
        self.later = defaultdict[int, set[int]](set)
        self.handed_on = set[int]()  # values that have a place in the next round already

    def changes(self, hand_on: int) -> bool:
        """Does a round hand another value on than it got?"""
        return bool(self.root[self.program.operands(hand_on)[0]] != self._old(hand_on))

    def copies(self, hand_on: int) -> bool:
        """Is the value copied that an op hands on? If not, sets the order that this needs."""
        program = self.program
        value = int(self.root[program.operands(hand_on)[0]])
        maker = int(program.value_op[value])
        old = self._old(hand_on)
        is_passed = program.region[maker] != self.body or program.kind[maker] == "while.enter"
        if is_passed or value in self.handed_on:
            # It already has a place, and the copy is made when nothing needs the old value any more
            writer = hand_on
        else:
            writer = int(self.fusion.head[maker])
            if program.op_class[maker] == p.INDEXING and self.update_operand[maker] < 0:
                return False  # an update of a value that is needed later is a copy already
        self.handed_on.add(value)
        readers = set[int]()
        for op in self._readers(old):
            kernels = self._kernels(op)
            if writer in kernels and not self._reads_in_place(op, old, writer):
                return True
            readers |= kernels
        readers.discard(writer)
        if not readers.isdisjoint(self._after(writer)):
            return True
        for reader in readers:
            self.later[reader].add(writer)
        return writer == hand_on

    def _old(self, hand_on: int) -> int:
        """The value that a round got in the place of the one that it hands on."""
        return int(self.root[self.program.results(int(self.program.owner[hand_on]))[0]])

    def _readers(self, value: int) -> Iterator[int]:
        """Ops of the body that read a value."""
        for op in self.fusion.consumers[value]:
            if op < self.program.n_ops and self.program.region[op] == self.body:
                yield op

    def _kernels(self, op: int) -> frozenset[int]:
        """Kernels that compute an op: each is called by the op that heads it."""
        if op not in self.kernels:
            results = self.program.results(op)
            if not results or self.fusion.written[results].any():
                self.kernels[op] = frozenset((int(self.fusion.head[op]),))
            else:
                self.kernels[op] = frozenset(
                    kernel
                    for value in results
                    for reader in self._readers(value)
                    for kernel in self._kernels(reader)
                )
        return self.kernels[op]

    def _reads_in_place(self, reader: int, old: int, kernel: int) -> bool:
        """Does a kernel need of a value, for each element, no other than that element?"""
        program, waiting, seen = self.program, [reader], set[int]()
        if self.update_operand[reader] >= 0:
            others: Sequence[int] = program.operands(reader)[1:]
            return all(self.root[other] != old for other in others)
        while waiting:
            op = waiting.pop()
            if op in seen or kernel not in self._kernels(op):
                continue
            seen.add(op)
            if program.op_class[op] != p.ELEMENTWISE:
                return False
            for value in program.results(op):
                waiting += self._readers(value)
        return True

    def _after(self, kernel: int) -> set[int]:
        """Kernels that cannot run before a kernel has run."""
        waiting, after = [kernel], set[int]()
        while waiting:
            earlier = waiting.pop()
            following = set(self.later[earlier])
            for op in self.ops_of[earlier]:
                for value in self.program.results(op):
                    for reader in self._readers(value):
                        following |= self._kernels(reader)
            waiting += following - after
            after |= following
        return after
