"""The user's program with the user's own shardings, and edits of them.

``lowering.annotate`` writes a plan and forgets what the user wrote. This module keeps every
annotation as it is and applies *edits*: another sharding of an argument or result, a constraint
more, a constraint less or another one in its place. The text is compiled as the user's own program
would be, and propagated to see what follows from an edit. Start reading at ``numbered``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir import canonical, op_kinds, walk
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import MESH_NAME, OP_NUMBER, Writer, free_other_buffers
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, Spec, unsharded_plan

_RULE = "sdy.sharding_rule"


class Edits(NamedTuple):
    """Changes to what the user wrote; hashable. A spec of None leaves the choice to propagation."""

    arguments: tuple[tuple[int, Spec | None], ...] = ()  #: (argument, its sharding)
    results: tuple[tuple[int, Spec | None], ...] = ()  #: (number of the result, its sharding)
    constraints: tuple[tuple[int, Spec], ...] = ()  #: (value, a constraint behind its op)
    #: (op of a constraint, its sharding; None: the constraint is removed)
    replaced: tuple[tuple[int, Spec | None], ...] = ()

    def __bool__(self) -> bool:
        return any(map(len, self))


NO_EDITS = Edits()


def numbered(text: str, analysis: Analysis, mesh: Mesh) -> str:
    """The canonical module ``text`` with its own annotations, and the index of every op on it.

    The index is in an attribute and in the location, which a compiled program keeps.

    Args:
        text: the module that the analysed program was read from.
        analysis: of the program.
        mesh: the mesh that the annotations are on; declared if the text does not have it.
    """
    return numbered_by(unsharded_plan(analysis, mesh), text)


def numbered_by(unsharded: ShardingPlan, text: str) -> str:
    """``numbered``, given the plan that shards nothing, which a child process can be sent."""
    return _AsWritten(unsharded).write(text)


def edit(module: Any, program: Program, mesh: Mesh, edits: Edits) -> None:
    """Apply edits to a module from ``numbered``, in place."""
    with module.context, ir.Location.unknown(module.context):
        _Editor(module, program, mesh).apply(edits)


def edited(numbered_text: str, program: Program, mesh: Mesh, edits: Edits) -> str:
    """A text from ``numbered`` with edits, to be compiled: located, and without the attributes."""
    module = _jaxlib.parse_module(_jaxlib.make_context(), numbered_text)
    edit(module, program, mesh, edits)
    for _, operation in _jaxlib.numbered_ops(canonical.main_function(module), OP_NUMBER):
        del operation.attributes[OP_NUMBER]
        if _RULE in operation.attributes:
            del operation.attributes[_RULE]
    return str(module.operation.get_asm(enable_debug_info=True))


class _AsWritten(Writer):
    """Numbers the ops of a text and keeps its annotations."""

    def __init__(self, plan: ShardingPlan) -> None:
        super().__init__(plan, reuse=False, scattered=True, numbered=True, located=True)

    def declare_mesh(self, module: Any) -> None:
        """Declare the mesh unless the text has it."""
        self.module = module
        if _mesh_name(self.meshes, self.plan.mesh) is None:
            name = MESH_NAME
            while name in self.meshes:
                name += "_"
            with ir.InsertionPoint.at_block_begin(module.body):
                _jaxlib.sdy.MeshOp(
                    name,
                    _jaxlib.mesh_attribute(self.plan.mesh.axes, self.plan.mesh.sizes),
                )

    def interface(self, main: Any) -> None:
        """Arguments and results keep what they have; arguments also what their arrays carry."""
        program = self.plan.program
        dicts = canonical.attribute_dicts(main, "arg_attrs", len(main.arguments))
        name = _mesh_name(_jaxlib.meshes(self.module), self.plan.mesh)
        assert name is not None
        for row in program.annotations:
            if (
                row.kind == "argument"
                and not row.trouble
                and "sdy.sharding" not in dicts[row.value]
            ):
                spec = tuple(tuple(axis for axis in dim if axis != "*") for dim in row.spec)
                dicts[row.value].pop("mhlo.sharding", None)
                dicts[row.value]["sdy.sharding"] = _jaxlib.sharding_attribute(name, spec)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, dicts)))

    def operands(self, number: int, item: walk.Item, copies: Any, region_end: Any) -> None:
        """Nothing is written on operands."""

    def results(self, number: int, item: walk.Item) -> None:
        """Nothing is written on results, but CHLO ops get the rule of what they stand for.

        XLA expands them before it propagates; Shardy itself knows them not.
        """
        shapes = [value.type.shape for value in (*item.operation.operands, *item.results)]
        is_chlo = item.kind.startswith("chlo.") and op_kinds.is_elementwise(item.kind)
        if is_chlo and all(shape == shapes[0] for shape in shapes):
            item.operation.attributes[_RULE] = _jaxlib.elementwise_rule(shapes[0], len(shapes) - 1)


def _mesh_name(meshes: dict[str, _jaxlib.MeshAxes], mesh: Mesh) -> str | None:
    wanted = tuple(zip(mesh.axes, mesh.sizes, strict=True))
    return next((name for name, axes in meshes.items() if axes == wanted), None)


class _Editor:
    """Applies edits to one module."""

    def __init__(self, module: Any, program: Program, mesh: Mesh) -> None:
        self.main, self.program = canonical.main_function(module), program
        name = _mesh_name(_jaxlib.meshes(module), mesh)
        assert name is not None, "the module is not from ``numbered``"
        self.mesh_name = name

    def attribute(self, spec: Spec, *, closed: bool = True) -> Any:
        return _jaxlib.sharding_attribute(self.mesh_name, spec, closed=closed)

    def apply(self, edits: Edits) -> None:
        self.signature("arg_attrs", len(self.main.arguments), edits.arguments)
        self.signature("res_attrs", len(self.program.outputs), edits.results)
        self.free_other_buffers()
        if not (edits.constraints or edits.replaced):
            return
        ops = dict(_jaxlib.numbered_ops(self.main, OP_NUMBER))
        for op, spec in edits.replaced:
            rank = len(self.program.dims(int(self.program.results(op)[0])))
            ops[op].attributes["sharding"] = (
                self.attribute(spec)
                if spec is not None
                else self.attribute(((),) * rank, closed=False)
            )
        for value, spec in edits.constraints:
            self.constrain(self.tensor(value, ops), spec)

    def signature(self, key: str, count: int, edited_specs: Any) -> None:
        """Write shardings of arguments or results; those that are not edited stay."""
        if not edited_specs:
            return
        dicts = canonical.attribute_dicts(self.main, key, count)
        for number, spec in edited_specs:
            dicts[number].pop("sdy.sharding", None)
            if spec is not None:
                dicts[number]["sdy.sharding"] = self.attribute(spec)
        self.main.attributes[key] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, dicts)))

    def free_other_buffers(self) -> None:
        """Let donated arguments become only results of their own sharding."""
        arguments = canonical.attribute_dicts(self.main, "arg_attrs", len(self.main.arguments))
        results = canonical.attribute_dicts(self.main, "res_attrs", len(self.program.outputs))
        free_other_buffers(arguments, results)
        self.main.attributes["arg_attrs"] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, arguments)))

    def tensor(self, value: int, ops: dict[int, Any]) -> Any:
        """The MLIR value of a value of the program."""
        if value < self.program.n_arguments:
            return self.main.arguments[value]
        op = int(self.program.value_op[value])
        if op in ops:
            return ops[op].results[value - int(self.program.results(op)[0])]
        # One op of the module stands for several, and has the index of the first
        first = max(number for number in ops if number < op)
        return ops[first].results[op - first]

    def constrain(self, tensor: Any, spec: Spec) -> None:
        """Make all uses of a tensor read it through a constraint."""
        if isinstance(tensor, ir.BlockArgument):
            place = ir.InsertionPoint.at_block_begin(tensor.owner)
            location = tensor.owner.owner.location
        else:
            place, location = ir.InsertionPoint.after(tensor.owner), tensor.owner.location
        with place, location:
            pinned = _jaxlib.sdy.sharding_constraint(tensor, self.attribute(spec))
        tensor.replace_all_uses_except(pinned, pinned.owner.operation)


def interface_constraints(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    """Constraints that only repeat a sharding of the interface, as a jitted function leaves them.

    Gives the op of the constraint by argument, and by number of the result.
    """
    given = {a.value: a.spec for a in program.annotations if a.kind == "argument"}
    returned = {a.value: a.spec for a in program.annotations if a.kind == "result"}
    constrained = {a.value: a.spec for a in program.annotations if a.kind == "constraint"}
    of_argument: dict[int, int] = {}
    of_result: dict[int, int] = {}
    for value, spec in constrained.items():
        op = int(program.value_op[value])
        operand = int(program.operands(op)[0])
        if given.get(operand) == spec:
            of_argument[operand] = op
    for number, value in enumerate(program.outputs.tolist()):
        if value in constrained and constrained[value] == returned.get(value):
            of_result[number] = int(program.value_op[value])
    return of_argument, of_result
