"""A plan as JSON keyed by paths and names, so that it also applies to relatives of its program.

Plans are worth keeping longer than the program that they were searched for: the batch doubles,
layers are added, the sequence grows. So the file refers to no op or value by number. An op is
identified by its kind, its name stack, the ranks of its operands and results and, in rounds, the
same of its neighbours. Ops that are alike in all rounds share one entry, which has their shardings
in program order, one run for each stretch of equal ones. Argument paths are matched exactly at
first, then with their numbers ignored (``layers[3]`` is like ``layers[2]``).

Applied to the program that it came from, a plan comes back bit for bit. In another program, an op
takes the sharding of the entry with which it agrees in the most rounds. An axis that does not
divide a size there is left out, and the plan's ``notes`` list it, along with the ops that resemble
no entry.

Start reading at ``to_json`` and ``apply``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.errors import InvalidPlan, join_offenders
from toast_lab.hashing import mix, rows
from toast_lab.ir import random_keys
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import line_text

ROUNDS = 8  #: of labels: round ``i`` takes an op's surroundings up to ``i`` ops away into account
# The user's own function, whose name may change
_JIT = re.compile(r"^jit\([^)]*\)/?")
CHECKSUM = "checksum"
#: share of a program's arguments, or of its ops, that a plan must match by more than their kind
LEAST_KNOWN = 0.5

Split = tuple[tuple[tuple[str, str], ...], tuple[tuple[tuple[str, int], ...], ...]]
"""An op's (axis, place) pairs and, for each result, its (axis, dim) pairs."""


class Applied(NamedTuple):
    """A saved plan applied to a program."""

    sharding: Sharding
    notes: tuple[str, ...]  #: the parts of the plan that were left out, and why


# -- names -----------------------------------------------------------------------------------------
def labels(program: Program) -> np.ndarray:
    """[ROUNDS, O] uint64: labels by which each op is matched, the same in every process."""
    n_ops = program.n_ops
    texts = [
        _numberless(program.value_name[program.results(op)[0]])
        if op < program.n_arguments
        else f"{program.kind[op]} {_numberless(_JIT.sub('', program.name_stack[op]))} "
        f"{_ranks(program, op)}"
        for op in range(n_ops)
    ]
    hash_of_text = {
        text: int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        for text in set(texts)
    }
    label = np.array([hash_of_text[text] for text in texts], np.uint64)
    reader = program.use_op
    position = np.arange(program.n_uses) - program.use_ptr[reader]
    maker = program.value_op[program.use_value]
    rounds = [label]
    with np.errstate(over="ignore"):  # hashes wrap around
        for _ in range(ROUNDS - 1):
            operand_label = rows(program.use_ptr, label[maker])
            # Each kind of use counts once, so that a value that every layer reads has the same
            # label for any number of layers.
            kind_of_use = mix(label[reader] ^ mix(position.astype(np.uint64)))
            _, first_uses = np.unique(
                mix(kind_of_use ^ mix(maker.astype(np.uint64))), return_index=True
            )
            use_label = np.zeros(n_ops, np.uint64)
            np.add.at(use_label, maker[first_uses], kind_of_use[first_uses])
            label = mix(label ^ mix(operand_label ^ mix(use_label)))
            rounds.append(label)
    return np.stack(rounds)


def _numberless(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def _ranks(program: Program, op: int) -> str:
    operand_ranks = [len(program.dims(value)) for value in program.operands(op)]
    return f"{operand_ranks} -> {[len(program.dims(value)) for value in program.results(op)]}"


def _places(program: Program, op: int) -> dict[int, str]:
    """The first dim that carries each name of an op, as text.

    ``r0.1`` is dim 1 of the first result, ``o1.0`` dim 0 of the second operand.
    """
    place_of: dict[int, str] = {}
    for position, value in enumerate(program.results(op)):
        for dim, name in enumerate(program.def_names(value)):
            place_of.setdefault(name, f"r{position}.{dim}")
    for position, use in enumerate(program.uses(op)):
        for dim, name in enumerate(program.use_names(use)):
            place_of.setdefault(name, f"o{position}.{dim}")
    return place_of


# -- writing ---------------------------------------------------------------------------------------
def to_json(program: Program, mesh: Mesh, sharding: Sharding) -> dict[str, Any]:
    """``ops`` and ``arguments`` of a plan as plain data."""
    label = labels(program)
    splits = [split(program, mesh, sharding, op) for op in range(program.n_ops)]
    arguments = {
        program.value_name[program.results(op)[0]]: _plain(splits[op])[1][0]
        for op in range(program.n_arguments)
    }
    entries = []
    for members in _members(label[-1]).values():
        runs = [
            [len(list(equal_splits)), *_plain(split)]
            for split, equal_splits in itertools.groupby(splits[op] for op in members)
        ]
        if all(not split[0] and not any(split[1]) for split in (splits[op] for op in members)):
            runs = [[len(members)]]  # nothing is sharded
        op = members[0]
        entries.append(
            {
                "op": program.kind[op],
                # For people who read the file, perhaps on another machine: without the folder
                "at": line_text(program.where(op)),
                "labels": [f"{int(number):016x}" for number in label[:, op]],
                "runs": runs,
            }
        )
    return {"arguments": arguments, "ops": entries}


def split(program: Program, mesh: Mesh, sharding: Sharding, op: int) -> Split:
    """How a plan splits one op."""
    op_factor, value_dim = sharding
    axes = [axis for axis in range(len(mesh.axes)) if op_factor[op, axis] >= 0]
    places = _places(program, op) if axes else {}
    result_dims = tuple(
        tuple(
            (mesh.axes[axis], int(value_dim[value, axis]))
            for axis in range(len(mesh.axes))
            if value_dim[value, axis] >= 0
        )
        for value in program.results(op)
    )
    return tuple((mesh.axes[axis], places[int(op_factor[op, axis])]) for axis in axes), result_dims


def _plain(split: Split) -> list[Any]:
    return [dict(split[0]), [dict(axis_dims) for axis_dims in split[1]]]


def _members(label: np.ndarray) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for op, op_label in enumerate(label.tolist()):
        members[op_label].append(op)
    return members


# -- reading ---------------------------------------------------------------------------------------
def apply(data: Mapping[str, Any], program: Program, mesh: Mesh, where: str) -> Applied:
    """Apply what ``to_json`` gave to a program.

    Args:
        data: validated by ``plan_check``.
        program: to apply the plan to.
        mesh: to shard the program over.
        where: the file, for messages.

    Raises:
        InvalidPlan: the data name axes that the mesh lacks, or are of a program that is not a
            relative of this one.
    """
    file_entries = _FileEntries(data)
    missing = sorted(file_entries.axes - set(mesh.axes))
    if missing:
        raise InvalidPlan(
            f"{where}: shards over {', '.join(map(repr, missing))}, the mesh has "
            f"{', '.join(mesh.axes)}"
        )
    label = labels(program)
    splits: list[Split | None] = [None] * program.n_ops
    deepest = np.full(program.n_ops, -1)
    for members in _members(label[-1]).values():
        known_splits, depth = file_entries.find(label[:, members[0]].tolist(), len(members))
        for op, split in zip(members, known_splits, strict=True):
            splits[op], deepest[op] = split, depth
    for op in range(program.n_arguments):
        by_path = file_entries.arguments.get(program.value_name[program.results(op)[0]])
        if by_path is not None and len(by_path) <= len(program.dims(program.results(op)[0])):
            # The path decides how an argument is kept. If its entry agrees, the entry is used: it
            # says more, since refined plans may pass an argument on split otherwise than kept.
            by_entry = splits[op]
            if by_entry is None or by_entry[1] != by_path[1]:
                splits[op] = by_path
            deepest[op] = ROUNDS
    n_arguments = program.n_arguments
    ops, arguments = (
        float((depths >= 1).mean()) if len(depths) else 1.0
        for depths in (deepest[n_arguments:], deepest[:n_arguments])
    )
    if max(ops, arguments) < LEAST_KNOWN:
        raise InvalidPlan(
            f"{where}: this plan is not for {program.name}: beyond their kind it recognises only "
            f"{arguments:.0%} of its {n_arguments} arguments and {ops:.0%} of its "
            f"{program.n_ops - n_arguments} ops"
        )
    return written(program, mesh, splits, deepest)


def written(
    program: Program, mesh: Mesh, splits: Sequence[Split | None], deepest: np.ndarray
) -> Applied:
    """Shardings of each op, None: unknown, as far as they fit a program.

    ``deepest`` is the last round in which each op was recognised.
    """
    return _Writer(program, mesh).write(splits, deepest)


class _FileEntries:
    """The shardings in a file by the labels of each round, and those of arguments by path."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.by_round: list[dict[int, list[Split]]] = [defaultdict(list) for _ in range(ROUNDS)]
        self.axes: set[str] = set()
        for entry in data["ops"]:
            runs = [
                split
                for run in entry["runs"]
                for split in itertools.repeat(self._read(run[1:]), int(run[0]))
            ]
            for splits_of_label, label_text in zip(self.by_round, entry["labels"], strict=True):
                splits_of_label[int(label_text, 16)].extend(runs)
        self.arguments: dict[str, Split] = {}
        for path, dim_of_axis in data["arguments"].items():
            dims = tuple((str(axis), int(dim)) for axis, dim in dim_of_axis.items())
            self.arguments[path] = (tuple((axis, f"r0.{dim}") for axis, dim in dims), (dims,))
            self.axes |= {axis for axis, _ in dims}

    def _read(self, run: Sequence[Any]) -> Split:
        if not run:
            return (), ()
        split = tuple((str(axis), str(place)) for axis, place in run[0].items())
        result_dims = tuple(
            tuple((str(axis), int(dim)) for axis, dim in dim_of_axis.items())
            for dim_of_axis in run[1]
        )
        self.axes |= {axis for axis, _ in split} | {
            axis for dim_of_axis in result_dims for axis, _ in dim_of_axis
        }
        return split, result_dims

    def find(self, label: Sequence[int], count: int) -> tuple[list[Split | None], int]:
        """Shardings of ``count`` alike ops in program order, and the last round that matched.

        The round is -1 if no entry agrees with the ops at all.
        """
        for depth in reversed(range(ROUNDS)):
            splits = self.by_round[depth].get(label[depth])
            if splits:
                return list(
                    _stretched(splits, count) if depth == ROUNDS - 1 else [_most(splits)] * count
                ), depth
        return [None] * count, -1


def _stretched(splits: Sequence[Split], count: int) -> list[Split]:
    """The shardings of an entry, stretched or thinned out to ``count`` ops.

    Periodic shardings, as layers have, are repeated; otherwise each stands for its share of the
    program.
    """
    if len(splits) == count:
        return list(splits)
    for period in range(1, len(splits) // 2 + 1):
        if (
            len(splits) % period == 0
            and count % period == 0
            and all(
                split == repeated_split
                for split, repeated_split in zip(splits, splits[period:], strict=False)
            )
        ):
            return [splits[position % period] for position in range(count)]
    return [splits[position * len(splits) // count] for position in range(count)]


def _most(splits: Iterable[Split]) -> Split:
    return Counter(splits).most_common(1)[0][0]


class _Writer:
    """Applies shardings to a program as far as they fit."""

    def __init__(self, program: Program, mesh: Mesh) -> None:
        self.program, self.mesh = program, mesh
        self.sharding = Sharding.whole(program, len(mesh.axes))
        self.left_out: Counter[str] = Counter()

    def write(self, splits: Sequence[Split | None], deepest: np.ndarray) -> Applied:
        program = self.program
        for op, split in enumerate(splits):
            if split is not None:
                self._op(op, split)
        # A value that a loop or a conditional passes on stands at several places, which share an
        # owner. A place that matched in all rounds, as its owner did, stays as the plan had it;
        # every other place follows its owner.
        for op in np.flatnonzero(program.owner != np.arange(program.n_ops)).tolist():
            owner = int(program.owner[op])
            if min(deepest[op], deepest[owner]) >= ROUNDS - 1:
                continue
            self.sharding.op_factor[op] = -1  # its names are the owner's
            for value, owner_value in zip(
                program.results(op), program.results(owner), strict=False
            ):
                if program.dims(value) == program.dims(owner_value):
                    self.sharding.value_dim[value] = self.sharding.value_dim[owner_value]
        unknown = Counter(
            f"{program.kind[op]} ({program.where(op)})"
            for op in np.flatnonzero(deepest < 0).tolist()
        )
        notes = [
            f"{text}, {count} times" if count > 1 else text for text, count in self.left_out.items()
        ]
        if unknown:
            unknown_ops = [f"{count} {text}" for text, count in unknown.most_common()]
            listed = join_offenders(unknown_ops, 10)
            notes.append(f"left unsharded, since nothing in the plan resembles them: {listed}")
        return Applied(self.sharding, tuple(notes))

    def _op(self, op: int, split: Split) -> None:
        program = self.program
        names = {place: name for name, place in _places(program, op).items()}
        for axis, place in split[0]:
            name = names.get(place)
            if name is None or program.factor_class[name] > 1:
                self._leave_out(axis, f"{program.kind[op]} ({program.where(op)}) has no such dim")
                continue
            size = int(program.factor_size[name])
            self._give(self.sharding.op_factor[op], axis, cut=name, size=size, op=op)
        for value, axis_dims in zip(program.results(op), split[1], strict=False):
            shape = program.dims(value)
            for axis, dim in axis_dims:
                if dim >= len(shape):
                    self._leave_out(axis, f"{self._called(op)} has no dim {dim}")
                    continue
                if why := random_keys.offence(program, value, dim):
                    self._leave_out(axis, f"{self._called(op)}: {why}")
                    continue
                self._give(self.sharding.value_dim[value], axis, cut=dim, size=shape[dim], op=op)

    def _give(self, row: np.ndarray, axis: str, *, cut: int, size: int, op: int) -> None:
        """Put an axis on the factor or dim ``cut`` of an op or a value if it divides the size."""
        position = self.mesh.axes.index(axis)
        ways = self.mesh.ways_on(cut, row, position)
        if size % ways:
            self._leave_out(axis, f"{self._called(op)}: size {size} is not divisible by {ways}")
            return
        row[position] = cut

    def _called(self, op: int) -> str:
        program = self.program
        if op < program.n_arguments:
            return program.value_name[program.results(op)[0]]
        return f"{program.kind[op]} ({program.where(op)})"

    def _leave_out(self, axis: str, why: str) -> None:
        self.left_out[f'axis "{axis}" left out: {why}'] += 1


def file_text(data: Mapping[str, Any]) -> str:
    """``text`` with a checksum as its second line.

    People who edit the file can remove that line.
    """
    format_, *others = data.items()
    return text(dict([format_, (CHECKSUM, checksum(data)), *others]))


def checksum(data: Mapping[str, Any]) -> str:
    """SHA-256 of all data but the checksum itself, whatever the whitespace of the JSON."""
    content = {key: value for key, value in data.items() if key != CHECKSUM}
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_undamaged(data: Any, where: str) -> None:
    """Raise InvalidPlan if the content of a plan file does not match its checksum.

    Data without a checksum pass.
    """
    if isinstance(data, dict) and CHECKSUM in data and data[CHECKSUM] != (actual := checksum(data)):
        raise InvalidPlan(
            f"{where}: damaged plan, or edited by hand: its checksum is "
            f"{str(data[CHECKSUM])[:23]}..., but its content has {actual[:23]}.... Save the plan "
            "or copy the file again; if it was edited on purpose, remove the line with "
            f'"{CHECKSUM}"'
        )


def text(data: Mapping[str, Any]) -> str:
    """JSON with one entry a line, so that a plan can be read and compared line by line."""
    lines = []
    for key, value in data.items():
        if key in ("ops", "arguments"):
            if isinstance(value, list):
                opening, closing, entries = "[", "]", map(json.dumps, value)
            else:
                pairs = (map(json.dumps, pair) for pair in value.items())
                opening, closing, entries = "{", "}", map(": ".join, pairs)
            body = ",\n  ".join(entries)
            lines.append(f" {json.dumps(key)}: {opening}\n  {body}\n {closing}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
