"""A plan written onto the program itself: StableHLO that carries Shardy's annotations.

The text stays the canonical one, op by op; what is added is the mesh, a closed ``sdy.sharding`` on
every argument, op result and function result, and an ``sdy.sharding_constraint``

* behind every op, or behind those that need one (``needed_constraints``): XLA's import forgets
  ``sdy.sharding`` on ordinary ops and keeps only constraints (seen in its dumps with jaxlib 0.10.2
  and 0.12.0.1); Shardy then puts the constraint's sharding onto the op itself;
* behind that, where a value is kept otherwise than its op leaves it;
* before every use that wants another sharding than the one in which the value is kept.

Loops and conditionals are pinned inside: the values that a body starts with, before what it
returns, and behind the loop.  With a constraint behind every op Shardy's propagation has nothing to
decide; with those that are needed it decides as the plan does, and XLA simplifies the program as it
would without a plan.

Example, with ``w`` kept split over ``d`` (FSDP) and used whole:

    %arg1: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}
    %0 = sdy.sharding_constraint %arg1 <@mesh, [{}, {}]>               // the all_gather
    %1 = stablehlo.dot_general %arg0, %0 ... {sdy.sharding = ... [{"d"}, {}]}
    %2 = sdy.sharding_constraint %1 <@mesh, [{"d"}, {}]>               // pins %1 itself

Three choices that are not obvious:

* An op's result carries the sharding in which the op *leaves* it (with partial sums already brought
  to where the value is kept, which is how the partitioner is told to scatter them).  Putting the
  kept sharding on the op itself would make the partitioner compute the op in that sharding, hence
  gather its operands instead of its result.
* Values made of constants carry nothing.  A use that wants them split has a constraint, which
  Shardy moves onto a copy of the constant: every device then makes its own piece and nothing is
  sent.  Where ``constrained`` leaves something to propagation, elementwise ops have none on
  constants, which XLA would not simplify then.
* A Fourier transform stands in an ``sdy.manual_computation``, in which each device transforms its
  own part, as the plan says and as it is priced: left to itself, XLA's partitioner gathers it
  (``ir.fourier`` has the versions).

Reference: TOAST section 3.2; Shardy's sharding representation.  Start reading at ``annotate``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import InvalidPlan
from toast_lab.ir import canonical, fourier, op_kinds, walk
from toast_lab.ir.program import ELEMENTWISE, Program
from toast_lab.sharding.plan import ShardingPlan, Spec

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

MESH_NAME = "mesh"
# Annotations that the input came with
_FOREIGN = ("sdy.sharding", "mhlo.sharding", "mhlo.memory_kind")


OP_NUMBER = "toast.op"  # attribute that ``annotate(..., numbered=True)`` leaves on every op
_LOCATED = "toast.{}/{}"  # name of the location that ``annotate(..., located=True)`` gives to an op
_LOCATED_NAME = re.compile(r"toast\.(\d+)/(.*)", re.DOTALL)


def annotate(
    model: Model | str,
    plan: ShardingPlan,
    *,
    reuse: bool = True,
    scattered: bool = True,
    numbered: bool = False,
    located: bool = False,
    constrained: Container[int] | None = None,
) -> str:
    """The canonical module with ``plan`` on it, as StableHLO text.

    Args:
        model: a Model, or the StableHLO text that its program was read from.
        plan: a plan of the same program.
        reuse: bring a value to the same sharding once for all its uses, as the cost model prices
            it; False writes one constraint for each use and leaves the merging to the compiler.
        scattered: put the axes over which partial sums are scattered onto the op that makes them,
            as XLA's partitioner wants it; False: the op carries what its operands imply, and the
            scattered sharding comes behind it, as Shardy's own passes want it.
        numbered: leave its number on every op, for whoever has to find ops again after passes have
            run.
        located: put its number into the location of every op and of the constraints around it, for
            whoever has to find ops again in a compiled program: XLA keeps locations as ``op_name``
            where it drops every attribute.  ``split_name`` takes such a name apart.
        constrained: values that get a constraint behind their op, as ``needed_constraints`` finds
            them, None for all.  What loops and branches hand on has one in any case, and every op
            carries its sharding.

    Raises:
        InvalidPlan: the plan shards another program than this text holds.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> text = tl.annotate(model, plan)
        >>> "sdy.mesh" in text, text.count("sdy.sharding_constraint")
        (True, 4)
    """
    if isinstance(model, str):
        text = model
    else:
        plan.check_is_of(model.program)
        text = model.stablehlo
    writer = Writer(
        plan,
        reuse=reuse,
        scattered=scattered,
        numbered=numbered,
        located=located,
        constrained=constrained,
    )
    return writer.write(text, as_it_came=isinstance(model, str))


class Writer:
    """Puts one plan onto one module.

    ``on_op`` is the sharding on a value's op, ``kept`` the plan's.
    """

    def __init__(
        self,
        plan: ShardingPlan,
        *,
        reuse: bool,
        scattered: bool,
        numbered: bool,
        located: bool,
        constrained: Container[int] | None = None,
    ) -> None:
        self.plan = plan
        self.constrained = constrained
        self.reuse = reuse
        self.numbered = numbered
        self.located = located
        # Whoever numbers ops looks at what Shardy's passes make of each; they stay ordinary ops
        # there.
        self.local_transforms = scattered and not numbered
        self.scattered = scattered
        self.kept, self.used = plan.lowered.kept, plan.lowered.used
        self.meshes: dict[str, _jaxlib.MeshAxes] = {}  #: those that the module came with
        self._attributes: dict[Spec, Any] = {}

    @functools.cached_property
    def on_op(self) -> Sequence[Spec]:
        """What each value's op carries."""
        return specs_on_ops(self.plan) if self.scattered else self.plan.lowered.natural

    def write(self, text: str, *, as_it_came: bool = False, locations: bool = True) -> str:
        """The module ``text`` with everything on it; ``as_it_came``: it is not canonical yet."""
        context = _jaxlib.make_context()
        module = _jaxlib.parse_module(context, text)
        self.meshes = _jaxlib.meshes(module)
        if as_it_came:
            canonical.canonicalise(module)
        with context, ir.Location.unknown(context):
            main = canonical.main_function(module)
            self.interface(main)
            self.body(main)
            _replace_meshes(module, self.plan)
            module.operation.attributes["mhlo.num_replicas"] = _int32(1)
            module.operation.attributes["mhlo.num_partitions"] = _int32(self.plan.mesh.n_devices)
            module.operation.verify()
            return str(module.operation.get_asm(enable_debug_info=locations))

    def attribute(self, spec: Spec) -> Any:
        """The closed sharding attribute of ``spec``."""
        if spec not in self._attributes:
            self._attributes[spec] = _jaxlib.sharding_attribute(MESH_NAME, spec)
        return self._attributes[spec]

    def interface(self, main: Any) -> None:
        """Shardings of arguments and function results; donation where it still fits."""
        program = self.plan.program
        outputs = program.outputs.tolist()
        argument_count = len(main.arguments)
        if argument_count != program.n_arguments:
            raise InvalidPlan(
                f"this plan shards {program.n_arguments} arguments, @main of this module has "
                f"{argument_count}"
            )
        arguments = canonical.attribute_dicts(main, "arg_attrs", argument_count)
        for i, attributes in enumerate(arguments):
            forget_annotations(attributes)
            attributes["sdy.sharding"] = self.attribute(self.kept[i])
            alias = attributes.get("tf.aliasing_output")
            result = None if alias is None else outputs[ir.IntegerAttr(alias).value]
            if result is not None and self.kept[result] != self.kept[i]:
                # A buffer of another local shape cannot be that result; the compiler may still
                # reuse it.
                del attributes["tf.aliasing_output"]
                attributes["jax.buffer_donor"] = ir.BoolAttr.get(True)
        results = canonical.attribute_dicts(main, "res_attrs", len(outputs))
        for value, attributes in zip(outputs, results, strict=True):
            forget_annotations(attributes)
            attributes["sdy.sharding"] = self.attribute(self.kept[value])
        for key, dicts in (("arg_attrs", arguments), ("res_attrs", results)):
            main.attributes[key] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, dicts)))

    def body(self, main: Any) -> None:
        """Shardings of every op and constraints on every use that differs."""
        program = self.plan.program
        items = walk.flatten(main).items
        op_count = program.n_ops - program.n_arguments
        if len(items) != op_count:
            raise InvalidPlan(
                f"this plan shards {op_count} ops, @main of this module has {len(items)}"
            )
        numbered = list(zip(program.ops(), items, strict=True))
        copies: dict[tuple[int, Spec], tuple[Any, int]] = {}
        region_end = program.region_end()
        for number, item in numbered:
            _check_same(program, number, item)
            if self.numbered and item.results and item.kind != "while.enter":
                self._number(number, item)
            if self.located:
                self._locate(number, item)
            self.operands(number, item, copies, region_end)
        # Last, so that the results' users are rewritten once and the operands above are the
        # original values.
        for number, item in numbered:
            self.results(number, item)
        for number, item in numbered:
            if self.local_transforms and item.kind == "fft":
                self._transform(number, item.operation)

    def _number(self, number: int, item: walk.Item) -> None:
        """Give an op of the module the number of the op of ours that it stands for.

        Several of ours may be one of the module's, a result each in this order; it gets the first
        one's number.
        """
        if OP_NUMBER not in item.operation.attributes:
            item.operation.attributes[OP_NUMBER] = _int32(number)

    def _locate(self, number: int, item: walk.Item) -> None:
        """Like ``_number``, in the location.

        A constraint written for the op takes over its location.
        """
        before = item.operation.location
        if split_name(getattr(before, "name_str", ""))[0] < 0:
            name = _LOCATED.format(number, self.plan.program.name_stack[number])
            item.operation.location = ir.Location.name(name, before)

    def _transform(self, number: int, operation: Any) -> None:
        """Have every device transform its own part."""
        program, mesh = self.plan.program, self.plan.mesh
        value = program.results(number)[0]
        spec = self.on_op[value]
        if program.value_is_constant[value] or spec != self.used[int(program.use_ptr[number])]:
            return
        ways = [mesh.ways(axes) for axes in spec]
        fourier.run_locally(operation, self.attribute(spec), ways, mesh.axes)

    def operands(
        self,
        number: int,
        item: walk.Item,
        copies: dict[tuple[int, Spec], tuple[Any, int]],
        region_end: Any,
    ) -> None:
        """Constraints before the op's uses."""
        program, operation = self.plan.program, item.operation
        # Here a constant comes out as the other operands are
        follows = self.constrained is not None and program.op_class[number] == ELEMENTWISE
        # Uses beyond the operands are values that a region captures; propagation takes care of
        # those.
        for use, position in zip(program.uses(number), item.operands, strict=False):
            operand = operation.operands[position]
            value, spec = int(program.use_value[use]), self.used[use]
            if not isinstance(operand.type, ir.RankedTensorType):
                continue
            is_free = program.value_is_constant[value] and (follows or not any(spec))
            if spec == self.kept[value] or is_free:
                continue
            copy, maker = copies.get((value, spec), (None, 0)) if self.reuse else (None, 0)
            # A copy that another body or branch made is out of reach
            if copy is None or number >= region_end[maker]:
                with ir.InsertionPoint(operation), operation.location:
                    copy = _jaxlib.sdy.sharding_constraint(operand, self.attribute(spec))
                copies[value, spec] = copy, number
            operation.operands[position] = copy

    def results(self, number: int, item: walk.Item) -> None:
        """Constraints behind the op's results."""
        program, operation = self.plan.program, item.operation
        control = op_kinds.is_control(item.kind)
        if not control:
            forget_annotations(operation.attributes)
        values = program.results(number)
        if all(program.value_is_constant[value] for value in values):
            return
        # The user's own: the plan says what it is to be
        if operation.name == "sdy.sharding_constraint":
            operation.attributes["sharding"] = self.attribute(self.kept[values[0]])
            return
        is_constrained = (
            control
            or self.constrained is None
            or any(value in self.constrained for value in values)
        )
        # Whoever numbers ops looks at what propagation makes of them
        if not is_constrained and self.numbered:
            return
        # Loops and branches carry nothing themselves: XLA's exporter adds the values that a body
        # captures to the loop's own and then finds too few shardings on it.
        every_result = len(values) == len(operation.results)
        if every_result and not control and not _refuses_sharding(operation):
            operation.attributes["sdy.sharding"] = _jaxlib.sharding_per_value(
                [self.attribute(self.on_op[value]) for value in values]
            )
        if not is_constrained:
            return
        for i, result in enumerate((*item.results, *item.twins)):
            value = values[min(i, len(values) - 1)]
            specs = [self.on_op[value]] if program.dims(value) else []
            if self.kept[value] != self.on_op[value]:
                specs.append(self.kept[value])
            self.pin(result, specs)

    def pin(self, result: Any, specs: list[Spec]) -> None:
        """Lead every use of ``result`` through constraints to ``specs``, in this order."""
        if not specs or not isinstance(result.type, ir.RankedTensorType):
            return
        if isinstance(result, ir.BlockArgument):
            place = ir.InsertionPoint.at_block_begin(result.owner)
            location = result.owner.owner.location
        else:
            place, location = ir.InsertionPoint.after(result.owner), result.owner.location
        pinned, pins = result, []
        with place, location:
            for spec in specs:
                pinned = _jaxlib.sdy.sharding_constraint(pinned, self.attribute(spec))
                pins.append(pinned.owner.operation)
        result.replace_all_uses_except(pinned, pins[0])


def split_name(op_name: str) -> tuple[int, str]:
    """(op number, original name) of a name that ``annotate(..., located=True)`` gave.

    (-1, name) of any other.

    >>> split_name("toast.12/jit(f)/dot_general")
    (12, 'jit(f)/dot_general')
    """
    match = _LOCATED_NAME.fullmatch(op_name)
    return (int(match.group(1)), match.group(2)) if match else (-1, op_name)


def specs_on_ops(plan: ShardingPlan) -> list[Spec]:
    """Mesh axes per dim of every value as ``annotate`` writes it onto its op.

    As the op leaves it, plus the axes over which partial sums are scattered.
    """
    program = plan.program
    kept, natural, partial = plan.lowered.kept, plan.lowered.natural, plan.lowered.partial
    carried = list(kept)
    for value in range(program.n_values):
        is_argument = program.value_op[value] < program.n_arguments
        if is_argument or natural[value] == kept[value] or program.value_is_constant[value]:
            continue
        summed = {axis for bit, axis in enumerate(plan.mesh.axes) if int(partial[value]) >> bit & 1}
        spec = tuple(
            tuple(axis for axis in plan.mesh.axes if axis in {*left, *summed.intersection(held)})
            for left, held in zip(natural[value], kept[value], strict=True)
        )
        # Where the scattered axes do not fit beside those that are there, sums are made whole
        # first.  Claiming the kept sharding instead has made XLA compute wrong numbers, and hides
        # that the op is computed otherwise.
        fits = all(
            plan.mesh.divides(size, axes)
            for size, axes in zip(program.dims(value), spec, strict=True)
        )
        computed = fits and not _computed_wrong(
            program=program, value=value, natural=natural[value], scattered=spec, summed=summed
        )
        carried[value] = spec if computed else natural[value]
    return carried


def _computed_wrong(
    program: Program, value: int, natural: Spec, scattered: Spec, summed: set[str]
) -> bool:
    """Does XLA compute wrong numbers where this value's op is told to scatter its sum?

    Seen with jaxlib 0.10.2 and 0.12.0.1: a product that sums over several axes, of which some but
    not all go to a batch dim that is split already.
    """
    op = int(program.value_op[value])
    if program.kind[op] != "dot_general":
        return False
    left, right = (set(program.use_names(use)) for use in program.uses(op))
    for name, before, after in zip(program.def_names(value), natural, scattered, strict=True):
        added = set(after) - set(before)
        if name in left & right and before and added and added != summed:
            return True
    return False


def _check_same(program: Program, number: int, item: walk.Item) -> None:
    if item.kind != program.kind[number] or len(item.results) != len(program.results(number)):
        raise InvalidPlan(
            f"this plan was made for {program.kind[number]} where this module has {item.kind}"
        )


def forget_annotations(attributes: Any) -> None:
    """Drop the shardings that the input came with."""
    for key in _FOREIGN:
        if key in attributes:
            del attributes[key]


def _replace_meshes(module: Any, plan: ShardingPlan) -> None:
    """Declare the plan's mesh in place of the input's own."""
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh":
            op.operation.erase()
    with ir.InsertionPoint.at_block_begin(module.body):
        _jaxlib.sdy.MeshOp(MESH_NAME, _jaxlib.mesh_attribute(plan.mesh.axes, plan.mesh.sizes))


def _refuses_sharding(operation: Any) -> bool:
    """XLA's import of an approximate top-k fails on any attribute it does not know.

    A constraint behind it is fine.
    """
    return operation.name == "stablehlo.custom_call" and "ApproxTopK" in str(
        operation.attributes["call_target_name"]
    )


def _int32(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)
