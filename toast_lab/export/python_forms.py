"""The functions of an exported file, as the library of the user's function needs them.

``jax.jit`` takes shardings of pytrees. Modules of flax's nnx are split into their graph and state,
and updated afterwards; functions of equinox keep ``filter_jit``, and their arguments and results
are constrained inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from toast_lab.ir.call_form import EQUINOX, NNX, CallForm

_WIDTH = 100


class Results(NamedTuple):
    """Which sharding each element of a result gets; others are JAX's choice."""

    elements: tuple[int, ...]  #: of the tuple that is returned; -1: the whole result
    like: dict[int, int]  #: element -> argument that it looks like, and is sharded like
    by_rule: frozenset[int]  #: elements that rules decide


class FileParts(NamedTuple):
    """What the functions of a file are written from."""

    form: CallForm
    names: tuple[str, ...]  #: of parameters
    results: Results
    on_host: str  #: pattern of paths of what is in host memory, empty if nothing is
    needs_mesh: bool  #: whether constraints in the source need a mesh around them

    @property
    def array_positions(self) -> list[int]:
        """Positions of arguments that are not static."""
        return [i for i in range(len(self.names)) if i not in self.form.static]

    @property
    def parameters(self) -> str:
        """The arguments in the text of a function's head or call."""
        return ", ".join(self.names)

    @property
    def call(self) -> str:
        """The arguments in the text of a call of the user's function."""
        first = len(self.names) - self.form.keyword_count
        by_keyword = zip(self.form.names[first:], self.names[first:], strict=True)
        return ", ".join(
            [*self.names[:first], *(f"{keyword}={name}" for keyword, name in by_keyword)]
        )


def imports(parts: FileParts) -> str:
    """The import statements of a file."""
    library = parts.form.library
    return "\n".join(
        [
            "import re",
            "",
            *(["import equinox as eqx"] if library == EQUINOX else []),
            "import jax",
            *(["from flax import nnx"] if library == NNX else []),
            "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P",
        ]
    )


def usage(parts: FileParts) -> list[str]:
    """How a file is used, for its docstring."""
    given = "" if parts.form.library == EQUINOX else f", {parts.parameters}"
    return [
        f"run = shard(step{given})",
        f"{_targets(parts.names)} = place({parts.parameters})",
        f"result = run({parts.parameters})",
    ]


def functions(parts: FileParts) -> list[str]:
    """The functions of a file."""
    if parts.form.library == EQUINOX:
        place = _place(parts, [*_sharded_arguments(parts), f"return {parts.parameters}"])
        return [_sharded(parts), _equinox_shard(parts), place]
    if parts.form.library == NNX:
        return [_shardings(parts), _nnx_shard(parts), _nnx_place(parts)]
    return [_shardings(parts), _jax_shard(parts), _jax_place(parts)]


# -- rules -----------------------------------------------------------------------------------------


def _shardings(parts: FileParts) -> str:
    lines = [
        '"""NamedShardings of a pytree; JAX chooses the unmatched if that is None."""',
        "",
        "def sharding_of(path, array):",
        *_spec_of_path(parts),
        f"    return None if spec is None else {_named_sharding(parts)}",
        "",
        "return jax.tree_util.tree_map_with_path(sharding_of, tree)",
    ]
    return _function("shardings(name, tree, unmatched=P())", lines)


def _sharded(parts: FileParts) -> str:
    """For equinox, whose pytrees have leaves other than arrays: the arrays themselves, sharded."""
    put = "jax.device_put" if parts.on_host else "jax.lax.with_sharding_constraint"
    lines = [
        '"""``tree``, its arrays sharded; JAX chooses the unmatched if that is None."""',
        "",
        "def put(path, array):",
        *_spec_of_path(parts),
        "    if spec is None:",
        "        return array",
        f"    return {put}(array, {_named_sharding(parts)})",
        "",
        "arrays, others = eqx.partition(tree, eqx.is_array)",
        "return eqx.combine(jax.tree_util.tree_map_with_path(put, arrays), others)",
    ]
    return _function("sharded(name, tree, unmatched=P())", lines)


def _spec_of_path(parts: FileParts) -> list[str]:
    ending = '.removesuffix(".value")' if parts.form.has_value_keys else ""
    lines = [f"text = name + jax.tree_util.keystr(path){ending}"]
    if parts.form.library == NNX:
        lines += [
            "if not name:  # the state of modules, in which paths read model.layers[0].kernel",
            """    text = re.sub(r"\\['([A-Za-z_]\\w*)'\\]", r".\\1", text)[1:]""",
        ]
    lines += [
        "specs = (spec for pattern, spec in RULES if re.search(pattern, text))",
        'spec = next((s for s in specs if len(s) <= getattr(array, "ndim", 0)), unmatched)',
    ]
    if parts.on_host:
        lines += [
            'memory = "pinned_host" if re.search(ON_HOST, text) else None',
            "spec = P() if spec is None and memory else spec",
        ]
    return [f"    {line}" for line in lines]


def _named_sharding(parts: FileParts) -> str:
    return f"NamedSharding(MESH, spec{', memory_kind=memory' if parts.on_host else ''})"


def _shardings_of(parts: FileParts, positions: Iterable[int]) -> list[str]:
    return [f'shardings("{parts.form.names[i]}", {parts.names[i]})' for i in positions]


def _in_mesh(parts: FileParts, lines: Sequence[str]) -> list[str]:
    """Statements, within a mesh if constraints need one."""
    if not parts.needs_mesh:
        return list(lines)
    return ["with IN_MESH(MESH.abstract_mesh):", *(f"    {line}" for line in lines)]


def mesh_context(parts: FileParts) -> list[str]:
    """The statement that defines the context of constraints, if there are any."""
    if not parts.needs_mesh:
        return []
    return [
        "# Where P(...) in the source finds its mesh; before JAX 0.7.2 a mesh is its own context",
        'IN_MESH = getattr(jax.sharding, "use_abstract_mesh", lambda _: MESH)',
    ]


# -- jax.jit ---------------------------------------------------------------------------------------


def _jax_shard(parts: FileParts) -> str:
    form, results, function = parts.form, parts.results, "step"
    lines = ['"""``step``, jitted and sharded; only shapes of the arguments count here."""']
    if form.is_sharded:
        lines.append("step = step.__wrapped__  # its own jit has other shardings")
    if parts.needs_mesh or form.keyword_count:
        function = "planned"
        lines += [
            "",
            f"def planned({parts.parameters}):",
            *(f"    {line}" for line in _in_mesh(parts, [f"return step({parts.call})"])),
            "",
        ]
    static = [f"static_argnums={form.static!r}"] if form.static else []
    lines.append(f"ins = tuple(map(shardings, ARGUMENTS, {_arrays(parts)}))")
    if results.by_rule:
        jitted = f"jax.jit({', '.join([function, *static])})"
        lines.append(f"shapes = {jitted}.eval_shape({parts.parameters})")
    if results.like or results.by_rule:
        outs = [f"out_shardings={_outs(parts)}"]
    else:
        outs = []
    donated = [f"donate_argnums={form.donated!r}"] if form.donated else []
    options = [function, "in_shardings=ins", *outs, *static, *donated]
    lines += _call_of("return jax.jit", options)
    return _function(f"shard(step, {parts.parameters})", lines)


def _jax_place(parts: FileParts) -> str:
    lines = [f"args = {_arrays(parts)}"]
    put = "jax.device_put(args, tuple(map(shardings, ARGUMENTS, args)))"
    if parts.form.static:
        targets = _targets([parts.names[i] for i in parts.array_positions])
        lines += [f"{targets} = {put}", f"return {parts.parameters}"]
    else:
        lines.append(f"return {put}")
    return _place(parts, lines)


def _place(parts: FileParts, lines: Sequence[str], remark: str = "") -> str:
    lines = [f'"""The arguments on their devices{remark}; do it once."""', *lines]
    return _function(f"place({parts.parameters})", lines)


def _arrays(parts: FileParts) -> str:
    """The tuple of arguments that are not static."""
    return _tuple([parts.names[i] for i in parts.array_positions])


def _outs(parts: FileParts) -> str:
    results = parts.results

    def text(element: int) -> str:
        if element in results.like:
            return f"ins[{parts.array_positions.index(results.like[element])}]"
        return _by_rule(element) if element in results.by_rule else "None"

    return _of_elements(results, text)


def _by_rule(element: int) -> str:
    part = "" if element < 0 else f"[{element}]"
    return f'shardings("result{part}", shapes{part}, None)'


# -- nnx -------------------------------------------------------------------------------------------


def _nnx_shard(parts: FileParts) -> str:
    form, names = parts.form, parts.names
    inputs = [i for i in range(len(names)) if i not in form.modules]
    arrays = [i for i in inputs if i not in form.static]
    static = tuple(1 + inputs.index(i) for i in form.static)
    fixed = [f"static_argnums={static!r}"] if static else []
    state = ", ".join(["state", *(names[i] for i in inputs)])
    keys = [f'modules["{form.names[i]}"]' for i in form.modules]
    outs = _nnx_outs(parts)
    options = [
        "pure",
        f"in_shardings={_tuple(['states', *_shardings_of(parts, arrays)])}",
        f"out_shardings=(states, {outs})",
        *fixed,
        *(["donate_argnums=0"] if {*form.modules} <= {*form.donated} else []),
    ]
    lines = [
        '"""``step`` jitted and sharded; like under nnx.jit, it changes its modules in place."""',
        f"graph, state = nnx.split({_modules(parts)})",
        'states = shardings("", state)',
        "",
        f"def pure({state}):",
        "    modules = nnx.merge(graph, state)",
        f"    {_targets([names[i] for i in form.modules])} = {', '.join(keys)}"
        + ("," if len(keys) == 1 else ""),
        *(f"    {line}" for line in _in_mesh(parts, [f"result = step({parts.call})"])),
        "    return nnx.state(modules), result",
        "",
        *(
            [f"_, shapes = jax.jit({', '.join(['pure', *fixed])}).eval_shape({state})"]
            if "shapes" in outs
            else []
        ),
        *_call_of("jitted = jax.jit", options),
        "",
        f"def run({parts.parameters}):",
        f"    modules = {_modules(parts)}",
        f"    new_state, result = jitted({state.replace('state', 'nnx.state(modules)', 1)})",
        "    nnx.update(modules, new_state)",
        "    return result",
        "",
        "return run",
    ]
    return _function(f"shard(step, {parts.parameters})", lines)


def _nnx_outs(parts: FileParts) -> str:
    """The text of the shardings of a result without its modules."""
    results, form = parts.results, parts.form

    def text(element: int) -> str:
        if results.like.get(element, form.modules[0]) not in form.modules:
            return _shardings_of(parts, [results.like[element]])[0]
        return _by_rule(element) if element in results.by_rule else "None"

    return _of_elements(results, text) if results.like or results.by_rule else "None"


def _nnx_place(parts: FileParts) -> str:
    arrays = [i for i in parts.array_positions if i not in parts.form.modules]
    lines = [
        f"modules = {_modules(parts)}",
        "state = nnx.state(modules)",
        'nnx.update(modules, jax.device_put(state, shardings("", state)))',
        *(
            f"{parts.names[i]} = jax.device_put({parts.names[i]}, {sharding})"
            for i, sharding in zip(arrays, _shardings_of(parts, arrays), strict=True)
        ),
        f"return {parts.parameters}",
    ]
    return _place(parts, lines, ", modules in place")


def _modules(parts: FileParts) -> str:
    pairs = (f'"{parts.form.names[i]}": {parts.names[i]}' for i in parts.form.modules)
    return "{" + ", ".join(pairs) + "}"


# -- equinox ---------------------------------------------------------------------------------------


def _equinox_shard(parts: FileParts) -> str:
    results, names = parts.results, parts.form.names

    def text(element: int) -> str:
        part = "" if element < 0 else f"[{element}]"
        if element in results.like:
            return f'sharded("{names[results.like[element]]}", result{part})'
        if element in results.by_rule:
            return f'sharded("result{part}", result{part}, None)'
        return f"result{part}"

    has_shardings = results.like or results.by_rule
    lines = [
        '"""``step`` jitted by equinox and sharded."""',
        "",
        f'@eqx.filter_jit(donate="{_equinox_donation(parts.form)}")',
        f"def run({parts.parameters}):",
        *(f"    {line}" for line in _sharded_arguments(parts)),
        *(f"    {line}" for line in _in_mesh(parts, [f"result = step({parts.call})"])),
        f"    return {_of_elements(results, text) if has_shardings else 'result'}",
        "",
        "return run",
    ]
    return _function("shard(step)", lines)


def _sharded_arguments(parts: FileParts) -> list[str]:
    return [
        f'{parts.names[i]} = sharded("{parts.form.names[i]}", {parts.names[i]})'
        for i in parts.array_positions
    ]


def _equinox_donation(form: CallForm) -> str:
    donated, count = set(form.donated), len(form.names)
    if donated == set(range(count)):
        return "all"
    return "all-except-first" if count > 1 and donated == set(range(1, count)) else "none"


# -- text ------------------------------------------------------------------------------------------


def _function(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"def {head}:", *(f"    {line}".rstrip() for line in lines)])


def _call_of(function: str, arguments: Sequence[str]) -> list[str]:
    """A call on one line if it is short enough, else with each argument on its own."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) + 4 <= _WIDTH:
        return [line]
    return [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]


def _of_elements(results: Results, text: Callable[[int], str]) -> str:
    texts = [text(element) for element in results.elements]
    return texts[0] if results.elements == (-1,) else _tuple(texts)


def _tuple(texts: Sequence[str]) -> str:
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _targets(names: Sequence[str]) -> str:
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)
