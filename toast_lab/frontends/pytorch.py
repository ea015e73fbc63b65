"""``from_torch``: a torch module becomes a ``Model``, by way of ``torch.export`` and torchax.

``torch.export`` makes a graph of ATen ops, torchax has a JAX function for each of them, and these
are traced like any other JAX function. Parameters and buffers become arguments with torch's names
(``layers.0.weight``); ops keep their module as the name stack, and the lines of the user's
``forward``.

torchax and torch have to fit together. Tested pairs:

* torch 2.13.0 with torchax 0.0.13, on Python 3.11 with JAX 0.10.2: torchax refers to overloads of
  ATen ops that take dimension names, which this torch no longer has; ``_import_torchax`` supplies
  stand-ins, which no graph can contain.

torch's 64-bit integers and floats become 32-bit ones unless ``jax_enable_x64`` is set, as
everything in JAX does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from toast_lab.errors import FrontendError, join_offenders
from toast_lab.frontends import user_code
from toast_lab.frontends.traced import Traced, build
from toast_lab.frontends.tracing import trace
from toast_lab.ir.model import DimNames, Model

_INSTALL = (
    'install toast-lab with the extra "torch" (torch 2.13.0 and torchax 0.0.13 were tested '
    "together)"
)


def from_torch(
    module: Any,
    *example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    dim_names: DimNames | None = None,
) -> Model:
    """Export a torch module and read it.

    Nothing is computed and no weight is copied, so modules made under ``torch.device("meta")`` work
    too. The arguments are parameters, buffers and inputs, in this order; buffers that ``forward``
    changes are also results.

    Args:
        module: a ``torch.nn.Module``, or an ``ExportedProgram``.
        example_inputs: tensors for ``forward``; only shapes and types count. Leave them out for an
            exported program.
        example_kwargs: keyword arguments of ``forward``.
        name: name for listings, the module's class by default.
        dim_names: names for argument dims by path (``"layers.0.weight"``) or last key
            (``"weight"``).

    Raises:
        FrontendError: torch or torchax is missing, they do not fit together, the module cannot be
            exported (with the user's line), has dynamic shapes, or uses ops that torchax does not
            know (all are listed).

    Examples:
        >>> import torch
        >>> import toast_lab as tl
        >>> module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU())
        >>> model = tl.from_torch(module, torch.zeros(8, 32))
        >>> model.program.value_name[:2]
        ('0.weight', '0.bias')
    """
    traced = trace_torch(module, example_inputs, example_kwargs)
    class_name = module_name(module)
    return build(traced, name or class_name, dim_names or {}, f"torch module {class_name}")


def module_name(module: Any) -> str:
    """Name of a module's class, which an exported program has not kept."""
    class_name = type(module).__name__
    return "exported_program" if class_name == "ExportedProgram" else class_name


def trace_torch(
    module: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Traced:
    """StableHLO of a module or exported program, with paths; raises what ``from_torch`` raises."""
    torch, torchax = _import_torchax()
    name = module_name(module)
    notes: list[str] = []
    if isinstance(module, torch.export.ExportedProgram):
        exported = module
        if inputs or kwargs:
            raise FrontendError("an exported program contains its example inputs: pass it alone")
    elif isinstance(module, torch.nn.Module):
        exported = _export(torch, module, inputs, dict(kwargs or {}))
        if module.training and any(
            isinstance(submodule, _types_with_training_mode(torch))
            for submodule in module.modules()
        ):
            notes.append(f"{name} was exported in training mode; call .eval() first for inference")
    else:
        raise FrontendError(
            f"from_torch takes a torch.nn.Module or an ExportedProgram, got {type(module).__name__}"
        )
    _refuse_dynamic(torch, exported)
    try:
        exported = exported.run_decompositions().run_decompositions(
            torchax.decompositions.DECOMPOSITIONS
        )
    except Exception as error:
        raise FrontendError(
            f"{name}: decomposing its ops failed: {user_code.short(error)}"
        ) from error
    graph = _ExportedGraph(torch, torchax, exported)
    shapes, paths = graph.arguments()
    traced = trace(graph.call, (shapes,), ())
    narrowed = [
        path
        for path, (dtype, shape) in zip(paths, graph.dtypes(shapes), strict=True)
        if dtype.itemsize > shape.itemsize
    ]
    if narrowed:
        notes.append(
            "64-bit arguments become 32-bit, since jax_enable_x64 is off: "
            f"{', '.join(narrowed[:8])}"
        )
    return traced._replace(
        paths=paths,
        outputs=graph.result_paths(),
        trees=None,
        donated=[False] * len(paths),
        notes=tuple(notes),
    )


def _types_with_training_mode(torch: Any) -> tuple[Any, ...]:
    nn = torch.nn.modules
    return (nn.dropout._DropoutNd, nn.batchnorm._BatchNorm)


# -- torchax ---------------------------------------------------------------------------------------


def _import_torchax() -> tuple[Any, Any]:
    """Torch and torchax, with every op of torchax registered."""
    try:
        import torch
        import torch.export
    except ImportError as error:
        raise FrontendError(f"PyTorch is not installed ({error}): {_INSTALL}") from None
    try:
        with _stand_ins_for_removed_overloads():
            import torchax
            import torchax.decompositions
            import torchax.ops.jaten
            import torchax.ops.mappings
            import torchax.ops.ops_registry
    except ImportError as error:
        raise FrontendError(f"torchax cannot be imported ({error}): {_INSTALL}") from None
    except Exception as error:
        raise FrontendError(
            f"this torchax does not work with torch {torch.__version__} "
            f"({user_code.short(error)}): {_INSTALL}"
        ) from error
    return torch, torchax


@contextlib.contextmanager
def _stand_ins_for_removed_overloads() -> Iterator[None]:
    """Within the block, looking up an overload that torch no longer has gives a fresh object.

    This lets torchax be imported although it refers to such overloads.
    """
    from torch._ops import OpOverloadPacket

    find = OpOverloadPacket.__getattr__

    def find_or_make(packet: Any, overload: str) -> Any:
        try:
            return find(packet, overload)
        except AttributeError:
            if "imname" in overload or "names" in overload:
                return object()
            raise

    OpOverloadPacket.__getattr__ = find_or_make
    try:
        yield
    finally:
        OpOverloadPacket.__getattr__ = find


def _export(torch: Any, module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return torch.export.export(module, inputs, kwargs, strict=False)
    except Exception as error:
        raise FrontendError(
            f"torch.export of {module_name(module)} failed: "
            f"{user_code.short(error)}{user_code.line(error)}"
        ) from error


def _refuse_dynamic(torch: Any, exported: Any) -> None:
    dynamic_inputs = []
    for node in exported.graph.nodes:
        value: Any = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, torch.SymInt) or any(
            isinstance(size, torch.SymInt) for size in getattr(value, "shape", ())
        ):
            dynamic_inputs.append(
                f"{node.name}: {list(value.shape) if hasattr(value, 'shape') else value}"
            )
    if dynamic_inputs:
        raise FrontendError(
            f"dynamic shapes:\n{join_offenders(dynamic_inputs)}\n  Export without dynamic_shapes."
        )


# -- the graph as a JAX function -------------------------------------------------------------------


@dataclasses.dataclass
class _ExportedGraph:
    """A decomposed exported program, callable with JAX arrays in place of its placeholders."""

    torch: Any
    torchax: Any
    exported: Any

    def __post_init__(self) -> None:
        self.nodes = list(self.exported.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.specs = list(self.exported.graph_signature.input_specs)
        registry = self.torchax.ops.ops_registry.all_aten_ops
        self.function: dict[Any, Callable[..., Any]] = {}
        unknown: dict[str, None] = {}
        for node in self.nodes:
            if node.op != "call_function":
                continue
            target = node.target
            op = registry.get(target) or registry.get(getattr(target, "overloadpacket", None))
            if op is not None and op.is_jax_function:
                self.function[node] = self._with_env(op) if op.needs_env else op.func
            elif isinstance(
                target, self.torch._ops.OpOverload | self.torch._ops.HigherOrderOperator
            ):
                unknown[f"{target}{_location_text(node)}"] = None
            else:
                self.function[node] = target  # such as operator.getitem
        if unknown:
            raise FrontendError(
                f"torchax {self.torchax.__version__} cannot translate these ops to JAX:\n"
                f"{join_offenders(unknown)}"
            )

    def _with_env(self, op: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: op.func(*args, env=self.torchax.default_env(), **kwargs)

    def _constant(self, spec: Any) -> Any:
        """A tensor that ``forward`` makes from Python values, as a JAX constant."""
        import jax.numpy as jnp

        value = self.exported.constants[spec.target]
        if value.is_meta or not hasattr(value, "numpy"):
            raise FrontendError(
                f"the constant {spec.target} has no values: create the module on the CPU"
            )
        return jnp.asarray(value.detach().to("cpu").numpy())

    def arguments(self) -> tuple[list[Any], list[str]]:
        """Shapes and names of parameters, buffers and inputs."""
        import jax

        kinds = self.torch.export.graph_signature.InputKind
        shapes, paths = [], []
        self.fixed: dict[Any, Any] = {}  # placeholders other than arguments
        self.given: list[Any] = []
        for node, spec in zip(self.placeholders, self.specs, strict=True):
            value = node.meta.get("val")
            if spec.kind == kinds.CONSTANT_TENSOR:
                self.fixed[node] = self._constant(spec)
            elif isinstance(value, self.torch.Tensor):
                dtype = self.torchax.ops.mappings.t2j_dtype(value.dtype)
                shapes.append(
                    jax.ShapeDtypeStruct(tuple(value.shape), jax.dtypes.canonicalize_dtype(dtype))
                )
                paths.append(spec.target if spec.target else node.name)
                self.given.append(node)
            else:
                self.fixed[node] = value  # numbers, strings and None are part of the program
        return shapes, paths

    def dtypes(self, shapes: list[Any]) -> list[tuple[Any, Any]]:
        """The torch dtype and the JAX dtype of each argument."""
        return [
            (node.meta["val"].dtype, shape.dtype)
            for node, shape in zip(self.given, shapes, strict=True)
        ]

    def call(self, arrays: list[Any]) -> list[Any]:
        """Run the graph; returns new values of changed buffers, then the results."""
        import jax

        value_of: dict[Any, Any] = {**self.fixed, **dict(zip(self.given, arrays, strict=True))}

        def value(argument: Any) -> Any:
            return self.torch.fx.node.map_arg(argument, lambda node: value_of[node])

        for node in self.nodes:
            if node.op == "get_attr":
                raise FrontendError(
                    f"{node.target}{_location_text(node)}: nested graphs (torch.cond, "
                    "while_loop) are not supported"
                )
            if node.op == "call_function":
                stack = list((node.meta.get("nn_module_stack") or {}).values())
                scope = stack[-1][0] if stack and isinstance(stack[-1][0], str) else ""
                with jax.named_scope(scope) if scope else contextlib.nullcontext():
                    value_of[node] = _at_lines_of(
                        node, self.function[node], value(node.args), value(node.kwargs)
                    )
            elif node.op == "output":
                results = value(node.args[0])
        self.kept = [i for i, result in enumerate(results) if hasattr(result, "shape")]
        return [results[i] for i in self.kept]

    def result_paths(self) -> list[str]:
        """Names of the results: the changed buffer, or else the path in ``forward``'s result."""
        pytree = self.torch.utils._pytree
        specs = list(self.exported.graph_signature.output_specs)
        count = sum(spec.kind.name == "USER_OUTPUT" for spec in specs)
        tree = self.exported.call_spec.out_spec.unflatten(list(range(count)))
        user_outputs = iter(
            [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(tree)[0]]
        )
        names = [
            "result" + next(user_outputs) if spec.kind.name == "USER_OUTPUT" else str(spec.target)
            for spec in specs
        ]
        return [names[i] for i in self.kept]


_LINE = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n]+)')


def _lines(node: Any) -> list[tuple[str, int, str]]:
    """The user's lines that made a node: (file, line, function), outermost first."""
    return [
        (file, int(line), function)
        for file, line, function in _LINE.findall(node.meta.get("stack_trace") or "")
    ]


def _location_text(node: Any) -> str:
    lines = [frame for frame in _lines(node) if "site-packages/" not in frame[0]] or _lines(node)
    return f" ({PurePath(lines[-1][0]).name}:{lines[-1][1]})" if lines else ""


def _at_lines_of(
    node: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call ``function`` below frames at the lines of ``node``, which JAX takes as locations."""

    def call() -> Any:
        return function(*args, **kwargs)

    for file, line, _ in reversed(_lines(node)[-3:]):
        call = _under_frame(file, line, call)
    return call()


def _under_frame(file: str, line: int, inner: Callable[[], Any]) -> Callable[[], Any]:
    namespace = {"inner": inner}
    exec(compile("\n" * (line - 1) + "outer = lambda: inner()", file, "exec"), namespace)
    return namespace["outer"]  # type: ignore[return-value]
