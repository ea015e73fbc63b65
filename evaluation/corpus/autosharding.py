"""XLA's AutoSharding as a rival on TPUs: its decisions, op by op, as a ``ShardingPlan``.

The pass left JAX after 0.6, so it runs in an environment of its own, named by the variable
``TOAST_LAB_AUTOSHARDING``: the path of an interpreter with ``jax==0.6.2 jaxlib==0.6.2
libtpu==0.0.17.1``. StableHLO goes there as text, and the module after the pass comes back as HLO
text, in which every instruction has a sharding and the number of the op that it was made from.

Those shardings tell how each op is split and how its values are kept; ops that the compiler had
merged or dropped before the pass follow their operands and users. The plan is then priced and
compiled like every other one, by today's compiler: the decision is judged, not the old compiler.
"""

from __future__ import annotations

import collections
import itertools
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import RunFailed
from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.ir.model import Model
from toast_lab.ir.program import PASS, REDUCTION
from toast_lab.lowering.annotate import annotate, forget_annotations, split_name
from toast_lab.sharding import validity
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, make_plan, unsharded_plan
from toast_lab.sharding.sharding import Sharding

VARIABLE = "TOAST_LAB_AUTOSHARDING"
CHILD = Path(__file__).with_name("autosharding_child.py")
AFTER_PASS = "*after_tpu_auto_sharding*.txt"

#: Numbers of the mesh axes that cut each dim
Dims = tuple[tuple[int, ...], ...]


class Instruction(NamedTuple):
    """An instruction of an HLO text."""

    name: str
    shape: tuple[int, ...]
    opcode: str
    operands: tuple[str, ...]
    op: int  # number of the program's op that it was made from, -1: none
    parameter: int  # number of the argument that it is, -1: no argument
    sharding: str


def is_available() -> bool:
    """Is there an environment in which AutoSharding can run?"""
    return bool(os.environ.get(VARIABLE))


def autosharded(
    model: Model, problem: Problem, topology: str, time_limit_s: float = 400.0
) -> ShardingPlan:
    """AutoSharding's plan of a model.

    Args:
        model: the model of the problem.
        problem: the axes of its mesh fill the topology in order.
        topology: for example ``tpu:v5e:4x4``.
        time_limit_s: time limit of the pass, which solves an integer program.

    Raises:
        RunFailed: the pass failed, or did not end in time.
    """
    analysis, mesh = problem.analysis, problem.mesh
    bare = without_shardings(annotate(model, unsharded_plan(analysis, mesh), located=True))
    budget_gb = int(problem.machine.memory_bytes / 2**30)
    words = (topology.partition(":")[2], ",".join(map(str, mesh.sizes)), str(budget_gb))
    hlo = _behind_the_pass(bare, words, time_limit_s)
    return plan_of_hlo(analysis, mesh, hlo)


def without_shardings(text: str) -> str:
    """An annotated module with its locations, but without Shardy's annotations."""
    with _jaxlib.make_context() as context:
        module = _jaxlib.parse_module(context, text)
        for operation in list(_every_operation(module.operation)):
            forget_annotations(operation.attributes)
            if operation.name == CONSTRAINT:
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
        for function in list(module.body.operations):
            if function.operation.name == "sdy.mesh":
                function.operation.erase()
            else:
                _forget_interface(function)
        return str(module.operation.get_asm(enable_debug_info=True))


def _every_operation(operation: ir.Operation) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _every_operation(inner.operation)
                yield inner.operation


def _forget_interface(function: ir.OpView) -> None:
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            del function.attributes[name]


def _behind_the_pass(text: str, words: Sequence[str], time_limit_s: float) -> str:
    with tempfile.TemporaryDirectory(prefix="toast-lab-autosharding-") as name:
        folder = Path(name)
        program, log = folder / "program.mlir", folder / "log.txt"
        program.write_text(text)
        with log.open("wb") as output:
            child = subprocess.Popen(
                [os.environ[VARIABLE], str(CHILD), str(program), str(folder), *words],
                stdout=output,
                stderr=output,
                env=_environment(),
            )
            try:
                ends_at_s = time.monotonic() + time_limit_s
                while child.poll() is None and not _module_behind(folder):
                    if time.monotonic() > ends_at_s:
                        raise RunFailed(f"AutoSharding gave no result within {time_limit_s:g} s")
                    time.sleep(0.2)
            finally:
                child.kill()
                child.wait()
        module = _module_behind(folder)
        if not module:
            tail = log.read_text(errors="replace")[-2000:]
            raise RunFailed(f"AutoSharding failed:\n{tail}")
        return module


def _module_behind(folder: Path) -> str:
    """The module after the pass, as text; empty as long as it is not completely written."""
    texts = [dump.read_text() for dump in sorted(folder.glob(AFTER_PASS))]
    return texts[-1] if texts and texts[-1].rstrip().endswith("\n}") else ""


def _environment() -> dict[str, str]:
    """Environment of the child: no packages of this process, and a libtpu that needs no TPU."""
    ours = ("PYTHONPATH", "TPU_LIBRARY_PATH", "XLA_FLAGS")
    return {key: value for key, value in os.environ.items() if key not in ours} | {
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any will do: the child names the topology itself
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }


# -- HLO text --------------------------------------------------------------------------------------
_LINE = re.compile(r"^ +(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<shape>\S+) (?P<opcode>[\w\-]+)\(")
_SHAPE = re.compile(r"^\w+\[(?P<dims>[\d,]*)\]")
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="(?P<name>(?:[^"\\]|\\.)*)"')
_SHARDING = re.compile(r", sharding=(\{\{.*?\}\}|\{[^{}]*\})")


def instructions(hlo: str) -> Iterator[Instruction]:
    """Instructions whose result is one array, in the order of the text."""
    is_entry = False
    for line in hlo.splitlines():
        if not line.startswith(" "):
            is_entry = line.startswith("ENTRY")
        match = _LINE.match(line)
        shape = _SHAPE.match(match["shape"]) if match is not None else None
        if match is None or shape is None:
            continue
        inside = line[match.end() :].partition(")")[0]
        op_name, sharding = _OP_NAME.search(line), _SHARDING.search(line)
        yield Instruction(
            name=match["name"],
            shape=tuple(int(size) for size in shape["dims"].split(",") if size),
            opcode=match["opcode"],
            operands=tuple(re.findall(r"%([\w.\-]+)", inside)),
            op=split_name(op_name["name"])[0] if op_name is not None else -1,
            parameter=int(inside) if is_entry and match["opcode"] == "parameter" else -1,
            sharding=sharding[1] if sharding is not None else "",
        )


_TILES = re.compile(
    r"devices=\[(?P<tiles>[\d,]+)\]<=\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
    r"(?P<last> last_tile_dim_replicate)?"
)


def dims_of_sharding(text: str, rank: int, mesh: Mesh) -> Dims | None:
    """Mesh axes per dim of an HLO sharding; None if whole axes cannot express it."""
    match = _TILES.search(text)
    if match is None:
        return ((),) * rank  # replicated, or on one device
    tiles = _numbers(match["tiles"])
    devices = np.arange(mesh.n_devices).reshape(_numbers(match["shape"]))
    if match["order"]:
        devices = devices.transpose(_numbers(match["order"]))
    wanted = devices.reshape(tiles)
    data = tiles[:-1] if match["last"] else tiles
    if len(data) != rank:
        return None
    return _axes_of_tiles(wanted, tuple(data), mesh)


def _axes_of_tiles(wanted: np.ndarray, data: tuple[int, ...], mesh: Mesh) -> Dims | None:
    """The axes per dim, major first, whose tiling puts the same devices into every tile."""
    by_axis = np.arange(mesh.n_devices).reshape(mesh.sizes)
    n_axes = len(mesh.sizes)
    tiles = np.sort(wanted.reshape(*data, -1), axis=-1)
    for order in itertools.permutations(range(n_axes)):
        for homes in itertools.product(range(-1, len(data)), repeat=n_axes):
            dims = tuple(
                tuple(axis for axis in order if homes[axis] == dim) for dim in range(len(data))
            )
            parts = tuple(int(np.prod([mesh.sizes[axis] for axis in dim])) for dim in dims)
            if parts != data:
                continue
            used = [axis for dim in dims for axis in dim]
            rest = [axis for axis in range(n_axes) if axis not in used]
            ours = by_axis.transpose([*used, *rest]).reshape(*data, -1)
            if np.array_equal(np.sort(ours, axis=-1), tiles):
                return dims
    return None


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


# -- the plan --------------------------------------------------------------------------------------
def plan_of_hlo(analysis: Analysis, mesh: Mesh, hlo: str) -> ShardingPlan:
    """The plan that the shardings of an HLO text describe."""
    reader = _Reader(analysis, mesh, list(instructions(hlo)))
    sharding = reader.sharding()
    return make_plan(analysis, mesh, sharding, ("AutoSharding",), key=sharding.key())


class _Reader:
    """Reads factors of ops and dims of values off the shardings of instructions."""

    def __init__(self, analysis: Analysis, mesh: Mesh, instructions: Sequence[Instruction]) -> None:
        self.program, self.mesh = analysis.program, mesh
        self.by_name = {instruction.name: instruction for instruction in instructions}
        self.by_op: dict[int, Instruction] = {}
        self.arguments: dict[int, Instruction] = {}
        self._dims: dict[tuple[str, int], Dims | None] = {}
        for instruction in instructions:
            if instruction.parameter >= 0:
                self.arguments.setdefault(instruction.parameter, instruction)
            elif instruction.op >= 0 and self._makes(instruction):
                self.by_op[instruction.op] = instruction  # an op ends with its last instruction
        self.read_by_users = self._read_by_users()

    def _makes(self, instruction: Instruction) -> bool:
        results = self.program.results(instruction.op)
        return len(results) == 1 and self.program.dims(results[0]) == instruction.shape

    def _read_by_users(self) -> dict[int, Dims]:
        """Dims of each broadcast that the compiler merged, as its first user reads it."""
        program, found = self.program, dict[int, Dims]()
        for op, instruction in self.by_op.items():
            uses = program.uses(op)
            if len(uses) != len(instruction.operands):
                continue
            for use, name in zip(uses, instruction.operands, strict=True):
                value, operand = int(program.use_value[use]), self.by_name.get(name)
                made_by = int(program.value_op[value])
                # Compilers swap operands, so the operand must be a broadcast in HLO as well
                if operand is None or made_by in self.by_op or operand.opcode != "broadcast":
                    continue
                if program.kind[made_by] != "broadcast_in_dim":
                    continue
                dims = self.dims(operand)
                if dims is not None and operand.shape == program.dims(value):
                    found.setdefault(value, dims)
        return found

    def dims(self, instruction: Instruction) -> Dims | None:
        """Mesh axes per dim of an instruction's result."""
        key = instruction.sharding, len(instruction.shape)
        if key not in self._dims:
            self._dims[key] = dims_of_sharding(
                instruction.sharding, len(instruction.shape), self.mesh
            )
        return self._dims[key]

    def sharding(self) -> Sharding:
        """The sharding of the whole program, without factors and dims that cannot be split."""
        sharding = Sharding.whole(self.program, len(self.mesh.axes)).copy()
        for op in range(self.program.n_ops):
            instruction = (
                self.arguments.get(op) if op < self.program.n_arguments else self.by_op.get(op)
            )
            if instruction is not None:
                self._read(sharding, op, instruction)
            elif op >= self.program.n_arguments:
                self._follow(sharding, op)
        self._follow_users(sharding)
        return self._valid(sharding)

    def _read(self, sharding: Sharding, op: int, instruction: Instruction) -> None:
        made, value = self.dims(instruction), self.program.results(op)[0]
        for dim, axes in enumerate(made or ()):
            for axis in axes:
                sharding.value_dim[value, axis] = dim
                sharding.op_factor[op, axis] = self.program.def_names(value)[dim]
        for axis, factor in self._sums(op, instruction).items():
            sharding.op_factor[op, axis] = factor

    def _sums(self, op: int, instruction: Instruction) -> Mapping[int, int]:
        """Factors, by axis, along which each device sums its own part.

        Every operand that has such a factor is cut along it.
        """
        program, brought = self.program, dict[tuple[int, int], bool]()
        uses = program.uses(op)
        if len(uses) != len(instruction.operands):
            return {}
        for use, name in zip(uses, instruction.operands, strict=True):
            operand = self.by_name.get(name)
            dims = self.dims(operand) if operand is not None else None
            for dim, factor in enumerate(program.use_names(use)):
                if program.factor_class[factor] != REDUCTION:
                    continue
                axes = dims[dim] if dims is not None and dim < len(dims) else ()
                for axis in range(len(self.mesh.axes)):
                    cut = brought.get((axis, factor), True) and axis in axes
                    brought[axis, factor] = cut
        return {axis: factor for (axis, factor), cut in brought.items() if cut}

    def _follow(self, sharding: Sharding, op: int) -> None:
        """Split an op that the pass did not see as most bytes of its operands are split."""
        program = self.program
        for axis in range(len(self.mesh.axes)):
            brought: collections.Counter[int] = collections.Counter()
            for use in program.uses(op):
                value = int(program.use_value[use])
                dim = int(sharding.value_dim[value, axis])
                factor = program.use_names(use)[dim] if dim >= 0 else -1
                if factor >= 0 and program.factor_class[factor] in (PASS, REDUCTION):
                    brought[factor] += program.nbytes(value)
            if not brought:
                continue
            (factor, _), *_ = brought.most_common(1)
            is_sum = program.factor_class[factor] == REDUCTION
            for value in program.results(op):
                names = program.def_names(value)
                if value in self.read_by_users and not is_sum:
                    factor = self._wanted(value, axis)
                if factor in names:
                    sharding.value_dim[value, axis] = names.index(factor)
            sharding.op_factor[op, axis] = factor

    def _wanted(self, value: int, axis: int) -> int:
        """The name along which users read a value split, -1 if they read it whole."""
        for dim, axes in enumerate(self.read_by_users[value]):
            if axis in axes:
                return self.program.def_names(value)[dim]
        return -1

    def _follow_users(self, sharding: Sharding) -> None:
        """Keep the sums of ops that the pass did not see as all their users read them."""
        program = self.program
        read: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        for op in reversed(range(program.n_arguments, program.n_ops)):
            for value in program.results(op) if op not in self.by_op else ():
                for axis in range(len(self.mesh.axes)):
                    dims = read[value, axis]
                    if len(dims) == 1 and sharding.value_dim[value, axis] < 0:
                        sharding.value_dim[value, axis] = dims.pop()
            for use in program.uses(op):
                names = program.use_names(use)
                for axis, factor in enumerate(sharding.op_factor[op].tolist()):
                    dim = names.index(factor) if factor in names else -1
                    read[int(program.use_value[use]), axis].add(dim)

    def _valid(self, sharding: Sharding) -> Sharding:
        """Drop, axis by axis from the last one, the splits that cannot be carried out."""
        for axis in reversed(range(len(self.mesh.axes))):
            if not validity.offenders(self.program, self.mesh, sharding):
                break
            for rows, offends in (
                (sharding.op_factor, self._op_offends),
                (sharding.value_dim, self._value_offends),
            ):
                for row in np.flatnonzero(rows[:, axis] >= 0).tolist():
                    if offends(sharding, row):
                        rows[row, axis] = -1
        return sharding

    def _op_offends(self, sharding: Sharding, op: int) -> bool:
        program, row = self.program, sharding.op_factor[op]
        for factor in {int(factor) for factor in row if factor >= 0}:
            ways = int(np.prod(self.mesh.array()[row == factor]))
            if (
                factor not in program.factors(op)
                or program.factor_class[factor] not in (PASS, REDUCTION)
                or program.factor_size[factor] % ways
            ):
                return True
        return False

    def _value_offends(self, sharding: Sharding, value: int) -> bool:
        program, row = self.program, sharding.value_dim[value]
        first, sizes = int(program.shape_ptr[value]), program.dims(value)
        for dim in {int(dim) for dim in row if dim >= 0}:
            ways = int(np.prod(self.mesh.array()[row == dim]))
            if sizes[dim] % ways or program.hidden[first + dim]:
                return True
        return False
