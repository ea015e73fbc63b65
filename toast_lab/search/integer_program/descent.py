"""Improve choices one cluster at a time: a start for the integer program, in milliseconds."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from toast_lab.search.integer_program.strategies import ClusteredProgram, Term


class Descent:
    """The objective of the integer program as a function of each cluster's choice."""

    def __init__(self, choices: ClusteredProgram, tie: list[np.ndarray]) -> None:
        self.choices, self.tie = choices, tie
        self.of_op: list[list[Term]] = [[] for _ in choices.compute_s]
        self.of_value: list[list[Term]] = [[] for _ in choices.layout]
        for term in choices.terms:
            group = choices.groups[term.group]
            for op in {group.op, *(choices.groups[other].op for other in term.earlier)}:
                self.of_op[op].append(term)
            self.of_value[group.value].append(term)

    @functools.cached_property
    def links(self) -> list[list[int]]:
        """For each cluster those with which it shares a price; ops come first, then values."""
        n_ops = len(self.of_op)
        neighbours: list[set[int]] = [set() for _ in (*self.of_op, *self.of_value)]
        for op, terms in enumerate(self.of_op):
            neighbours[op] = {n_ops + self.choices.groups[term.group].value for term in terms}
            for value in neighbours[op]:
                neighbours[value].add(op)
        return [sorted(linked) for linked in neighbours]

    def objective_s(self, ops: np.ndarray, values: np.ndarray) -> float:
        """Time and ties of a choice: the objective of the integer program, without memory."""
        return self.choices.time_s(ops, values) + sum(
            float(times[value]) for times, value in zip(self.tie, values.tolist(), strict=True)
        )

    def improve(
        self, ops: np.ndarray, values: np.ndarray, check: Callable[[], None], sweeps: int = 20
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give each cluster its best choice in turn, until no single change is an improvement."""
        ops, values = ops.copy(), values.copy()
        for _ in range(sweeps):
            before = ops.copy(), values.copy()
            for value in range(len(values)):
                check()
                times_s = self._value(value, ops)
                if times_s.min() < times_s[values[value]]:
                    values[value] = int(times_s.argmin())
            for op in range(len(ops)):
                check()
                times_s = self._op(op, ops, values)
                if times_s.min() < times_s[ops[op]]:
                    ops[op] = int(times_s.argmin())
            if (ops == before[0]).all() and (values == before[1]).all():
                break
        return ops, values

    def _value(self, value: int, ops: np.ndarray) -> np.ndarray:
        groups = self.choices.groups
        times_s = self.tie[value].copy()
        for term in self.of_value[value]:
            if not self.choices.is_shared(term.group, term.earlier, ops):
                group = groups[term.group]
                times_s += term.time_s[group.place[ops[group.op]]]
        return times_s

    def _op(self, op: int, ops: np.ndarray, values: np.ndarray) -> np.ndarray:
        groups = self.choices.groups
        times_s = self.choices.compute_s[op].copy()
        for term in self.of_op[op]:
            group = groups[term.group]
            choice = slice(None) if group.op == op else ops[group.op]
            time_s = term.time_s[group.place[choice], values[group.value]]
            is_shared: bool | np.ndarray = False
            for earlier_group in term.earlier:
                earlier = groups[earlier_group]
                other_choice = slice(None) if earlier.op == op else ops[earlier.op]
                is_shared = is_shared | (earlier.label[other_choice] == group.label[choice])
            times_s += np.where(is_shared, 0.0, time_s)
        return times_s
