"""Write a plan onto its program: StableHLO with Shardy's annotations.

The text is the canonical module, op by op, with three additions: the mesh, a closed
``sdy.sharding`` on every argument and function result, and an ``sdy.sharding_constraint``

* after every op, or after those that need one (``needed_constraints``): Shardy moves the
  constraint's sharding onto the op itself;
* after that one, where a value is kept in another sharding than its op leaves it in;
* before every use that reads a value in another sharding than the one it is kept in.

Loops and conditionals have constraints inside: on the values that a body starts with, before those
that it returns, and after the loop. With a constraint after every op, Shardy's propagation has
nothing to decide; with only those that are needed, it decides as the plan does, and XLA simplifies
the program as it would without a plan.

Example, with ``w`` kept split over ``d`` (FSDP) and used whole:

    %arg1: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}
    %0 = sdy.sharding_constraint %arg1 <@mesh, [{}, {}]>               // the all_gather
    %1 = stablehlo.dot_general %arg0, %0 ...
    %2 = sdy.sharding_constraint %1 <@mesh, [{"d"}, {}]>               // pins %1 itself

Four choices are not obvious:

* No op has an ``sdy.sharding`` of its own. XLA's import drops it from ordinary ops and keeps only
  constraints (seen in its dumps with jaxlib 0.10.2 and 0.12.0.1), but before that it does harm: an
  op that XLA replaces by its operand (``x - 0``, ``x * 1``, a reshape to the same shape) leaves its
  attribute on the op that made the operand. If that op has several results, as the barriers of
  ``jax.checkpoint`` and loops have, it then has one sharding for all of them, and XLA refuses the
  program.
* An op's result has the sharding in which the op *leaves* it (with partial sums already scattered
  to the axes on which the value is kept, which is how the partitioner is told to scatter them). The
  kept sharding on the op itself would make the partitioner compute the op in that sharding, and so
  gather its operands instead of its result.
* Values made of constants have no annotation. A use that needs them split has a constraint, which
  Shardy moves onto a copy of the constant: every device then makes its own piece and nothing is
  sent. If ``constrained`` leaves some values to propagation, elementwise ops have no constraints on
  their constant operands, because XLA would not simplify those.
* A ``shard_map`` stays as its user wrote it, on the plan's mesh; what it takes and leaves in other
  shardings than its specs say is constrained around it.
* Fourier transforms, top-k, triangular solves and convolutions with groups are wrapped in an
  ``sdy.manual_computation``, in which each device computes its own part, as planned and priced:
  otherwise compilers would gather their operands (see ``ir.local_ops``).

Reference: TOAST section 3.2; Shardy's sharding representation. Start reading at ``annotate``.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import InvalidPlan
from toast_lab.ir import canonical, kernel_rules, local_ops, op_kinds, own_rules, walk
from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.ir.dead import operations
from toast_lab.ir.host_memory import MEMORY_KIND, PINNED_HOST
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.ir.program import ELEMENTWISE, Program
from toast_lab.lowering import local_kernels
from toast_lab.sharding.plan import ShardingPlan, Spec

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

MESH_NAME = "mesh"
# Annotations that the input may have
_FOREIGN = ("sdy.sharding", "mhlo.sharding", MEMORY_KIND)


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
    platform: str | None = None,
) -> str:
    """The canonical module annotated with ``plan``, as StableHLO text.

    Args:
        model: a Model, or the StableHLO text that its program was read from.
        plan: a plan of the same program.
        reuse: reshard a value once for all its uses in the same sharding, as the cost model prices
            it; False writes one constraint for each use and leaves merging to the compiler.
        scattered: put the axes over which partial sums are scattered onto the op that makes them,
            as XLA's partitioner needs it; False gives the op the sharding that its operands imply,
            followed by a constraint with the scattered one, as Shardy's own passes need it.
        numbered: write the index of every op into an attribute, so that ops can be found again
            after passes have run.
        located: write the index of every op into its location and those of the constraints around
            it, so that ops can be found again in a compiled program: XLA drops every attribute but
            keeps locations as ``op_name``. ``split_name`` parses such a name.
        constrained: values that get a constraint after their op, as ``needed_constraints`` finds
            them; None for all. The values of loops and branches always have one.
        platform: "cpu", "tpu" or "gpu", for which the code of wrapped kernels is made; by default
            the first for which the program is.

    Raises:
        InvalidPlan: the plan shards another program than that of this text.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> text = tl.annotate(model, plan)
        >>> "sdy.mesh" in text, text.count("sdy.sharding_constraint")
        (True, 4)
    """
    bodies = None
    if isinstance(model, str):
        text = model
    else:
        own = plan.own_model(model)
        text = own.stablehlo
        if kernel_rules.WRAPPED in text:
            chosen = platform or next(name for name in PLATFORMS if name in own.platforms)
            bodies = functools.partial(own.lowerings.body, platform=chosen)
    writer = Writer(
        plan,
        reuse=reuse,
        scattered=scattered,
        numbered=numbered,
        located=located,
        constrained=constrained,
        bodies=bodies,
    )
    return writer.write(text, as_it_came=isinstance(model, str))


def free_other_buffers(
    arguments: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]
) -> None:
    """Let donated arguments become only results of their own sharding, given their attributes.

    A buffer of another local shape cannot become that result, but the compiler may still reuse it.
    """
    for attributes in arguments:
        alias = attributes.get("tf.aliasing_output")
        if alias is not None:
            result = results[ir.IntegerAttr(alias).value]
            given, returned = attributes.get("sdy.sharding"), result.get("sdy.sharding")
            # MLIR's attributes do not compare with None
            if (given is None) != (returned is None) or (given is not None and given != returned):
                del attributes["tf.aliasing_output"]
                attributes["jax.buffer_donor"] = ir.BoolAttr.get(True)


class Writer:
    """Writes one plan onto one module.

    ``on_op`` has the sharding on each value's op, ``kept`` the one in which the plan keeps it.
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
        bodies: local_kernels.Bodies | None = None,
    ) -> None:
        self.plan, self.bodies = plan, bodies
        self.constrained = constrained
        self.reuse = reuse
        self.numbered = numbered
        self.located = located
        # Numbered ops are for looking at the results of Shardy's passes, which see ordinary ops.
        self.local_ops = scattered and not numbered
        self.scattered = scattered
        self.kept, self.used = plan.lowered.kept, plan.lowered.used
        self.meshes: dict[str, _jaxlib.MeshAxes] = {}  #: meshes that the module came with
        self._attributes: dict[Spec, Any] = {}

    @functools.cached_property
    def on_op(self) -> Sequence[Spec]:
        """The sharding on each value's op."""
        return specs_on_ops(self.plan) if self.scattered else self.plan.lowered.natural

    def write(self, text: str, *, as_it_came: bool = False, locations: bool = True) -> str:
        """The module ``text``, annotated; ``as_it_came`` means that it is not canonical yet."""
        context = _jaxlib.make_context()
        module = _jaxlib.parse_module(context, text)
        self.meshes = _jaxlib.meshes(module)
        if as_it_came:
            canonical.canonicalise(module)
        with context, ir.Location.unknown(context):
            main = canonical.main_function(module)
            self.declare_mesh(module)
            self.interface(main)
            self.body(main)
            module.operation.attributes["mhlo.num_replicas"] = _int32(1)
            module.operation.attributes["mhlo.num_partitions"] = _int32(self.plan.mesh.n_devices)
            module.operation.verify()
            return str(module.operation.get_asm(enable_debug_info=locations))

    def declare_mesh(self, module: Any) -> None:
        """Declare the plan's mesh in place of the input's meshes."""
        for op in list(module.body.operations):
            if op.operation.name == "sdy.mesh":
                op.operation.erase()
        mesh = self.plan.mesh
        with ir.InsertionPoint.at_block_begin(module.body):
            _jaxlib.sdy.MeshOp(MESH_NAME, _jaxlib.mesh_attribute(mesh.axes, mesh.sizes))

    def attribute(self, spec: Spec) -> Any:
        """The closed sharding attribute of ``spec``."""
        if spec not in self._attributes:
            self._attributes[spec] = _jaxlib.sharding_attribute(MESH_NAME, spec)
        return self._attributes[spec]

    def interface(self, main: Any) -> None:
        """Write shardings of arguments and function results; keep donations that still fit."""
        program = self.plan.program
        outputs = program.outputs.tolist()
        argument_count = len(main.arguments)
        if argument_count != program.n_arguments:
            raise InvalidPlan(
                f"this plan shards {program.n_arguments} arguments, but @main of this module has "
                f"{argument_count}"
            )
        arguments = canonical.attribute_dicts(main, "arg_attrs", argument_count)
        results = canonical.attribute_dicts(main, "res_attrs", len(outputs))
        for dicts, values, on_host in (
            (arguments, range(argument_count), program.host.arguments),
            (results, outputs, program.host.results),
        ):
            for i, (value, attributes) in enumerate(zip(values, dicts, strict=True)):
                forget_annotations(attributes)
                if i in on_host:
                    attributes[MEMORY_KIND] = ir.StringAttr.get(PINNED_HOST)
                attributes["sdy.sharding"] = self.attribute(self.kept[value])
        free_other_buffers(arguments, results)
        for key, dicts in (("arg_attrs", arguments), ("res_attrs", results)):
            main.attributes[key] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, dicts)))

    def body(self, main: Any) -> None:
        """Write shardings of all ops, and constraints on uses whose sharding differs."""
        program = self.plan.program
        items = walk.flatten(main.operation.regions[0].blocks[0]).items
        op_count = program.n_ops - program.n_arguments
        if len(items) != op_count:
            raise InvalidPlan(
                f"this plan shards {op_count} ops, but @main of this module has {len(items)}"
            )
        numbered_items = list(zip(program.ops(), items, strict=True))
        copies: dict[tuple[int, Spec], tuple[Any, int]] = {}
        region_end = program.region_end()
        for op_index, item in numbered_items:
            _check_same(program, op_index, item)
            if self.numbered and item.results and item.kind != "while.enter":
                self._number(op_index, item)
            if self.located:
                self._locate(op_index, item)
            self.operands(op_index, item, copies, region_end)
        # Last, so that users of results are rewritten only once and the operands above are still
        # the original values.
        for op_index, item in numbered_items:
            self.results(op_index, item)
        for op_index, item in numbered_items:
            gathered = op_kinds.op_kind(item.kind).gathered
            if self.local_ops and gathered is not None and gathered(item.operation):
                self._run_locally(op_index, item.operation)
            elif self.local_ops and local_kernels.is_kernel(item.operation):
                self._kernel(op_index, item.operation)
            elif item.kind == "shard_map":
                self.shard_map(op_index, item.operation)
                self._kernels_inside(op_index, item.operation)

    def _number(self, op_index: int, item: walk.Item) -> None:
        """Put on an op of the module the index of the program's op that it stands for.

        One op of the module may stand for several of the program, one for each result in order; it
        gets the index of the first.
        """
        if OP_NUMBER not in item.operation.attributes:
            item.operation.attributes[OP_NUMBER] = _int32(op_index)

    def _locate(self, op_index: int, item: walk.Item) -> None:
        """Like ``_number``, but in the location, which the op's constraints inherit."""
        old_location = item.operation.location
        if split_name(getattr(old_location, "name_str", ""))[0] < 0:
            name = _LOCATED.format(op_index, self.plan.program.name_stack[op_index])
            item.operation.location = ir.Location.name(name, old_location)

    def shard_map(self, op_index: int, operation: Any) -> None:
        """Put a ``shard_map`` on the plan's mesh, as it was written; it is whole on free axes.

        With ``located``, collectives inside it can be found again as its own.
        """
        per_value = {"in_shardings": operation.operands, "out_shardings": operation.results}
        for key, values in per_value.items():
            attributes = _jaxlib.shardings_in(operation, key)
            ranks = [len(value.type.shape) for value in values]
            operation.attributes[key] = _jaxlib.sharding_per_value(
                [
                    self._closed(attribute, rank)
                    for attribute, rank in zip(attributes, ranks, strict=True)
                ]
            )
        for inside in itertools.islice(operations(operation), 1, None):
            if inside.name == CONSTRAINT:
                inside.attributes["sharding"] = _jaxlib.on_mesh(
                    inside.attributes["sharding"], MESH_NAME
                )
            if "sdy.sharding" in inside.attributes:
                inside.attributes["sdy.sharding"] = _jaxlib.sharding_per_value(
                    [
                        _jaxlib.on_mesh(attribute, MESH_NAME)
                        for attribute in _jaxlib.result_shardings(inside)
                    ]
                )
            if self.located:
                stack = getattr(inside.location, "name_str", "")
                name = _LOCATED.format(op_index, stack)
                inside.location = ir.Location.name(name, inside.location)

    def _closed(self, attribute: Any, rank: int) -> Any:
        """The sharding on the plan's mesh, with closed dims."""
        _, spec, *_ = _jaxlib.sharding_parts(attribute, self.meshes, rank)
        return self.attribute(tuple(tuple(axis for axis in dim if axis != "*") for dim in spec))

    def _kernels_inside(self, op_index: int, shard_map: Any) -> None:
        """Put the code of wrapped kernels into a ``shard_map``, where shapes are those of parts."""
        for operation in list(itertools.islice(operations(shard_map), 1, None)):
            is_call = operation.name == "stablehlo.custom_call"
            if self.local_ops and is_call and own_rules.is_wrapped(operation):
                local_kernels.write_kernel(
                    operation,
                    [],
                    [],
                    mesh=self.plan.mesh,
                    attribute=self.attribute,
                    bodies=self.bodies,
                    where=self.plan.program.where(op_index),
                )

    def _kernel(self, op_index: int, operation: Any) -> None:
        """Make every device run a hand-written kernel on its own part, if the plan cuts it."""
        program, lowered = self.plan.program, self.plan.lowered
        values = program.results(op_index)
        # A kernel leaves sums whole; the constraint after it scatters them.
        results = [
            (lowered.natural if lowered.partial[value] else self.on_op)[value] for value in values
        ]
        local_kernels.write_kernel(
            operation,
            [self.used[use] for use in program.uses(op_index)],
            results,
            partial=[self.plan.mesh.axes_in(int(lowered.partial[value])) for value in values],
            mesh=self.plan.mesh,
            attribute=self.attribute,
            bodies=self.bodies,
            where=program.where(op_index),
        )

    def _run_locally(self, op_index: int, operation: Any) -> None:
        """Make every device run an op on its own parts, if the plan leaves no partial sums."""
        program, lowered = self.plan.program, self.plan.lowered
        uses, values = program.uses(op_index), program.results(op_index)
        if any(
            program.value_is_constant[value]
            or lowered.partial[value]
            or self.on_op[value] != lowered.natural[value]
            for value in values
        ):
            return
        local_ops.run_locally(
            operation,
            [self._part(self.used[use]) for use in uses],
            [self._part(self.on_op[value]) for value in values],
            self.plan.mesh.axes,
        )

    def _part(self, spec: Spec) -> local_ops.Part:
        return local_ops.Part(self.attribute(spec), [self.plan.mesh.ways(axes) for axes in spec])

    def operands(
        self,
        number: int,
        item: walk.Item,
        copies: dict[tuple[int, Spec], tuple[Any, int]],
        region_end: Any,
    ) -> None:
        """Write constraints on the op's operands."""
        program, operation = self.plan.program, item.operation
        # Here propagation gives a constant the sharding of the other operands
        is_propagated = self.constrained is not None and program.op_class[number] == ELEMENTWISE
        # Uses beyond the operands are values that a region captures; propagation handles them.
        for use, position in zip(program.uses(number), item.operands, strict=False):
            operand = operation.operands[position]
            value, spec = int(program.use_value[use]), self.used[use]
            if not isinstance(operand.type, ir.RankedTensorType):
                continue
            is_free = program.value_is_constant[value] and (is_propagated or not any(spec))
            if spec == self.kept[value] or is_free:
                continue
            copy, maker_op = copies.get((value, spec), (None, 0)) if self.reuse else (None, 0)
            # A copy made in another body or branch is out of scope
            if copy is None or number >= region_end[maker_op]:
                with ir.InsertionPoint(operation), operation.location:
                    copy = _jaxlib.sdy.sharding_constraint(operand, self.attribute(spec))
                copies[value, spec] = copy, number
            operation.operands[position] = copy

    def results(self, number: int, item: walk.Item) -> None:
        """Write constraints on the op's results."""
        program, operation = self.plan.program, item.operation
        control = op_kinds.is_control(item.kind)
        if not control:
            forget_annotations(operation.attributes)
        values = program.results(number)
        if all(program.value_is_constant[value] for value in values):
            if operation.name == CONSTRAINT:  # on the user's own mesh
                open_dims = [()] * len(program.dims(values[0]))
                operation.attributes["sharding"] = _jaxlib.sharding_attribute(
                    MESH_NAME, open_dims, closed=False
                )
            return
        # The user's own constraint: the plan decides its sharding
        if operation.name == CONSTRAINT:
            operation.attributes["sharding"] = self.attribute(self.kept[values[0]])
            return
        constrained = None if control else self.constrained
        if constrained is not None and not any(value in constrained for value in values):
            return
        for i, result in enumerate((*item.results, *item.aliases)):
            value = values[min(i, len(values) - 1)]
            specs = [self.on_op[value]] if program.dims(value) else []
            if self.kept[value] != self.on_op[value]:
                specs.append(self.kept[value])
            self.pin(result, specs)

    def pin(self, result: Any, specs: list[Spec]) -> None:
        """Make all uses of ``result`` read it through constraints to ``specs``, in this order."""
        if not specs or not isinstance(result.type, ir.RankedTensorType):
            return
        if isinstance(result, ir.BlockArgument):
            insertion_point = ir.InsertionPoint.at_block_begin(result.owner)
            location = result.owner.owner.location
        else:
            insertion_point, location = ir.InsertionPoint.after(result.owner), result.owner.location
        pinned, pins = result, []
        with insertion_point, location:
            for spec in specs:
                pinned = _jaxlib.sdy.sharding_constraint(pinned, self.attribute(spec))
                pins.append(pinned.owner.operation)
        result.replace_all_uses_except(pinned, pins[0])


def split_name(op_name: str) -> tuple[int, str]:
    """(op index, original name) of a name written by ``annotate(..., located=True)``.

    Any other name gives (-1, name).

    >>> split_name("toast.12/jit(f)/dot_general")
    (12, 'jit(f)/dot_general')
    """
    match = _LOCATED_NAME.fullmatch(op_name)
    return (int(match.group(1)), match.group(2)) if match else (-1, op_name)


def specs_on_ops(plan: ShardingPlan) -> list[Spec]:
    """Mesh axes per dim of every value, as ``annotate`` writes them onto its op.

    That is how the op leaves the value, plus the axes over which partial sums are scattered.
    """
    program = plan.program
    kept, natural, partial = plan.lowered.kept, plan.lowered.natural, plan.lowered.partial
    op_specs = list(kept)
    for value in range(program.n_values):
        is_argument = program.value_op[value] < program.n_arguments
        if is_argument or natural[value] == kept[value] or program.value_is_constant[value]:
            continue
        summed = set(plan.mesh.axes_in(int(partial[value])))
        spec = tuple(
            tuple(
                axis
                for axis in plan.mesh.axes
                if axis in {*left_axes, *summed.intersection(kept_axes)}
            )
            for left_axes, kept_axes in zip(natural[value], kept[value], strict=True)
        )
        # Where the scattered axes do not fit with the natural ones, sums are made whole first.
        # Writing the kept sharding instead made XLA compute wrong numbers, and would hide that the
        # op is computed in another sharding.
        fits = all(
            plan.mesh.divides(size, axes)
            for size, axes in zip(program.dims(value), spec, strict=True)
        )
        is_scattered = fits and not _computed_wrong(
            program=program, value=value, natural=natural[value], scattered=spec, summed=summed
        )
        op_specs[value] = spec if is_scattered else natural[value]
    return op_specs


def _computed_wrong(
    program: Program, value: int, natural: Spec, scattered: Spec, summed: set[str]
) -> bool:
    """Does XLA compute wrong numbers if this value's op is told to scatter its sum?

    Seen with jaxlib 0.10.2 and 0.12.0.1 for a product that sums over several axes, of which some,
    but not all, are scattered to a batch dim that is already split.
    """
    op = int(program.value_op[value])
    if program.kind[op] != "dot_general":
        return False
    left_names, right_names = (set(program.use_names(use)) for use in program.uses(op))
    for name, natural_axes, scattered_axes in zip(
        program.def_names(value), natural, scattered, strict=True
    ):
        added = set(scattered_axes) - set(natural_axes)
        if name in left_names & right_names and natural_axes and added and added != summed:
            return True
    return False


def _check_same(program: Program, op_index: int, item: walk.Item) -> None:
    if item.kind != program.kind[op_index] or len(item.results) != len(program.results(op_index)):
        raise InvalidPlan(
            f"this plan was made for {program.kind[op_index]} where this module has {item.kind}"
        )


def forget_annotations(attributes: Any) -> None:
    """Remove the annotations that the input came with."""
    for key in _FOREIGN:
        if key in attributes:
            del attributes[key]


def _int32(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)
