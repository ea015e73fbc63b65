"""``plan.to_python()``: a Python file that shards the user's function by the plan, using only JAX.

    from my_sharding import shard
    step = shard(train_step)            # jitted; arguments, results and constraints are in the file
    params, loss = step(*step.place(params, batch))

The file holds the PartitionSpecs of arguments and results by path (one line where all layers have
the same), the constraints by their places in the source, and the code that applies them: the
sources of ``constrained`` and ``sharded`` and of the modules that they import.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

from toast_lab import syntax
from toast_lab._version import __version__
from toast_lab.errors import InvalidPlan
from toast_lab.export import constrained, sharded
from toast_lab.export.minimal import MinimalConstraints, family
from toast_lab.export.sharded import Shardings
from toast_lab.frontends import calls, nnx_modules
from toast_lab.ir.program import Program
from toast_lab.lowering.specs import spec_entries
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import counted

# Modules whose sources exported code contains, in this order
CARRIED_MODULES = (calls, nnx_modules, constrained, sharded)


def shardings_of(plan: ShardingPlan, constraints: MinimalConstraints) -> Shardings:
    """Everything that ``sharded.shard`` needs to execute ``plan``.

    Raises:
        InvalidPlan: the program came without its function.
    """
    if constraints.source is None:
        raise InvalidPlan(
            f"{plan.program.name} came without its function; use tl.from_jax, or take the "
            "annotated StableHLO (tl.annotate)"
        )
    program, specs = plan.program, plan.value_specs()
    arguments: list[dict[str, Any]] = []
    where: dict[str, tuple[int, str]] = {}  # the program's path -> argument and path within it
    donated = []
    first_leaf = 0
    for argument, keys in enumerate(constraints.source.argument_keys):
        end = first_leaf + len(keys)
        arguments.append(dict(zip(keys, map(spec_entries, specs[first_leaf:end]), strict=True)))
        where |= {program.value_name[first_leaf + i]: (argument, key) for i, key in enumerate(keys)}
        if keys and program.donated[first_leaf:end].all():
            donated.append(argument)
        first_leaf = end
    result: dict[str, Any] = {}
    changed: list[dict[str, Any]] = [{} for _ in arguments]
    for name, value in zip(program.output_paths, map(int, program.outputs), strict=True):
        entries = spec_entries(specs[value])
        if name in where:  # in a module that the function changes
            argument, path = where[name]
            if arguments[argument][path] != entries:
                changed[argument][path] = entries
        # Other names are new variables of a module
        elif name == "result" or name[6:7] in (".", "["):
            result[name.removeprefix("result")] = entries
    return Shardings(
        mesh=dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True)),
        arguments=tuple(map(_folded, arguments)),
        result=_folded(result),
        changed=tuple(changed),
        rules=constraints.rules,
        donated=tuple(donated),
        on_host=_on_host(program, constraints.source.argument_keys) if program.host else (),
    )


def _on_host(program: Program, argument_keys: Sequence[Sequence[str]]) -> tuple[list[str], ...]:
    """Paths of leaves in host memory: for each argument, and then for the result."""
    leaf = itertools.count()
    arguments = [
        [key for key in keys if next(leaf) in program.host.arguments] for keys in argument_keys
    ]
    results = [program.output_paths[i].removeprefix("result") for i in program.host.results]
    return (*arguments, results)


def to_python(plan: ShardingPlan, constraints: MinimalConstraints) -> str:
    """A Python file that shards the function of ``plan``.

    Raises:
        InvalidPlan: the program came without its function.
    """
    shardings = shardings_of(plan, constraints)
    name = plan.program.name
    lines = [
        f'"""Sharding of {name} on a mesh of {plan.mesh}, written by TOAST Lab {__version__}.',
        "",
        "    step = shard(fn)                  # fn, jitted and sharded",
        "    result = step(*step.place(*args))  # place puts arguments where they belong; do it "
        "once",
        "",
        *_about(constraints),
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *_imports(*CARRIED_MODULES),
        "",
        f"MESH = {_literal(shardings.mesh)}",
        "",
        "# Mesh axes per dim, by path within each argument; * stands for any number.",
        f"ARGUMENTS = {_literal(list(shardings.arguments))}",
        f"RESULT = {_literal(shardings.result)}",
        f"CHANGED = {_literal(list(shardings.changed))}  # leaves of arguments that a call "
        "changes to another sharding",
        f"DONATED = {shardings.donated!r}",
        f"ON_HOST = {shardings.on_host!r}  # leaves in host memory, of arguments and the result",
        "",
        *(line for module in CARRIED_MODULES for line in _body(module)),
        "RULES = [",
        *(f"    {_rule(rule)}," for rule in shardings.rules),
        "]",
        "SHARDINGS = Shardings(MESH, ARGUMENTS, RESULT, CHANGED, RULES, DONATED, ON_HOST)",
        "_shard = shard",
        "",
        "",
        "def shard(fn, mesh=None, **options):",
        f'    """``{name}`` as it was planned; ``options`` go to jax.jit."""',
        "    return _shard(fn, SHARDINGS, mesh, **options)",
    ]
    text = "\n".join(lines) + "\n"
    syntax.parse(text)
    return text


def _folded(specs: dict[str, Any]) -> dict[str, Any]:
    """Specs by path; equal specs of paths that differ only in numbers share one entry."""
    groups: dict[str, set[Any]] = {}
    for path, spec in specs.items():
        groups.setdefault(family(path), set()).add(spec)
    return {
        family(path) if len(groups[family(path)]) == 1 else path: spec
        for path, spec in specs.items()
    }


def _about(constraints: MinimalConstraints) -> list[str]:
    count = counted(len(constraints), "constraint") if len(constraints) else "No constraint inside"
    if not constraints.exact:
        return [f"{count}. Remaining differences from the plan:", *constraints.remaining[:20]]
    judge = "by propagation the shardings are"
    if constraints.proof == "compiled":
        judge = "compiled for virtual CPU devices, the collectives are"
    return [f"{count}; {judge} those of the plan."]


def _literal(value: Any, indent: int = 0) -> str:
    """A Python literal with one entry on each line."""
    indentation = " " * (indent + 4)
    if isinstance(value, dict) and value:
        inner = "".join(
            f"{indentation}{key!r}: {_literal(entry, indent + 4)},\n"
            for key, entry in value.items()
        )
        return "{\n" + inner + " " * indent + "}"
    if isinstance(value, list) and value:
        inner = "".join(f"{indentation}{_literal(entry, indent + 4)},\n" for entry in value)
        return "[\n" + inner + " " * indent + "]"
    return repr(value)


def _rule(rule: constrained.PinRule) -> str:
    # The classes have the names that the contained sources define
    place = f"{type(rule.place).__name__}({', '.join(map(repr, rule.place))})"
    which = rule.which
    selection = ""
    if which is not None:
        selection = f", {type(which).__name__}(frozenset({sorted(which.numbers)}), {which.in_pass})"
    return (
        f"{type(rule).__name__}({place}, {dict(rule.operands)!r}, {dict(rule.results)!r}"
        f"{selection})"
    )


def _imports(*modules: Any) -> list[str]:
    """The imports of modules, except of each other: one line for each module imported from."""
    plain: set[str] = set()
    names_from: dict[str, set[str]] = {}
    for module in modules:
        for node in syntax.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Import):
                plain |= {ast.unparse(alias) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names_from.setdefault(node.module or "", set()).update(map(ast.unparse, node.names))
    return [f"import {name}" for name in sorted(plain)] + [
        f"from {origin} import {', '.join(sorted(names))}"
        for origin, names in sorted(names_from.items())
        if not origin.startswith(("toast_lab", "__future__"))
    ]


def _body(module: Any) -> list[str]:
    """The lines of a module after its docstring and imports."""
    source = inspect.getsource(module)
    nodes = syntax.parse(source).body
    last_import = max(
        i for i, node in enumerate(nodes) if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return [*source.splitlines()[nodes[last_import].end_lineno :], "", ""]
