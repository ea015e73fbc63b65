"""``written.to_python()``: a plain JAX file with the rules of a written plan, which jits a step.

    from step_sharding import place, shard

    step = shard(train_step, params, opt_state, tokens, targets)
    params, opt_state, tokens, targets = place(params, opt_state, tokens, targets)
    params, opt_state, loss = step(params, opt_state, tokens, targets)

The file is what a person would write: the mesh, a table of rules, a function that makes
``NamedSharding``s of them for any pytree, and the step jitted with these. Constraints belong in the
source of the function, where ``written_patch`` puts them; the file lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toast_lab import syntax
from toast_lab._version import __version__
from toast_lab.errors import InvalidPlan, join_offenders
from toast_lab.export import python_forms
from toast_lab.export.host_patterns import pattern_of
from toast_lab.export.modes import AUTO, CONSTRAIN, EXPLICIT, check_mode
from toast_lab.export.python_forms import FileParts, Results
from toast_lab.export.spec_text import constraint_text, spec_text
from toast_lab.ir.call_form import JAX, CallForm
from toast_lab.ir.model import Padding, Recomputed
from toast_lab.ir.program import Program
from toast_lab.text import bytes_text
from toast_lab.written.written_plan import ShardingRule, SiteConstraint, WrittenPlan

_WIDTH = 100


def to_python(written: WrittenPlan, mode: str = AUTO) -> str:
    """A Python file that jits the function of ``written`` with its rules.

    Args:
        written: the plan.
        mode: of the mesh's axes, "auto" or "explicit"; the patch has to be of the same mode.

    Raises:
        InvalidPlan: the program came without its function, the function takes arguments that no
            jitted function can take, a rule does not decide the arguments that it names, or there
            is no such mode for the function's library.
    """
    program, form = written.problem.analysis.program, call_form(written)
    check_mode(mode)
    if mode == EXPLICIT and form.library != JAX:
        raise InvalidPlan(
            f"explicit mode is exported for functions that jax.jit takes; this one needs "
            f"{form.library}"
        )
    _check_rules(written.rules, program)
    arguments = program.value_name[: program.n_arguments]
    on_host = [arguments[argument] for argument in program.host.arguments]
    on_host += [program.output_paths[i] for i in program.host.results]
    parts = FileParts(
        form=form,
        names=_identifiers(form.names),
        results=_results(written.rules, program, form),
        on_host=pattern_of([*arguments, *program.output_paths], on_host),
        needs_mesh=bool(written.constraints) or mode == EXPLICIT,
    )
    head = [
        _docstring(written, parts, mode),
        python_forms.imports(parts),
        _tables(written, parts, mode),
    ]
    text = "\n\n\n".join(["\n\n".join(head), *python_forms.functions(parts)]) + "\n"
    syntax.parse(text)
    return text


def call_form(written: WrittenPlan) -> CallForm:
    """How the function of ``written`` is called.

    Raises:
        InvalidPlan: it is unknown, or no jitted function can be called so.
    """
    model = written.problem.analysis.model
    if model.call_form is None:
        raise InvalidPlan(
            f"{model.program.name} came without its function; use tl.from_jax, or take the "
            "annotated StableHLO (tl.annotate)"
        )
    form = model.call_form
    if form.around_modules:
        names = ", ".join(form.names[position] for position in form.around_modules)
        raise InvalidPlan(
            f"{names}: modules of nnx inside of other arguments; make them arguments of their own"
        )
    # nnx keeps such leaves in its graph, and equinox jits functions that have them
    if form.library == JAX and form.partly_static:
        names = ", ".join(form.names[position] for position in form.partly_static)
        raise InvalidPlan(
            f"{names}: jax.jit takes no pytree with leaves that are not arrays; bind these with "
            "functools.partial, or jit by equinox.filter_jit"
        )
    return form


def _first(rules: Sequence[ShardingRule], path: str) -> int:
    """Index of the rule that decides a path, -1 if none does."""
    return next((i for i, rule in enumerate(rules) if re.search(rule.pattern, path)), -1)


def _check_rules(rules: Sequence[ShardingRule], program: Program) -> None:
    offenders = []
    for number, rule in enumerate(rules):
        for argument in rule.arguments:
            path = program.value_name[argument]
            if (first := _first(rules, path)) != number:
                instead = rules[first].pattern if first >= 0 else "no rule"
                offenders.append(f"{path}: {instead} instead of {rule.pattern}")
    if offenders:
        raise InvalidPlan(
            f"rules do not decide the arguments that they name:\n{join_offenders(offenders)}"
        )


def _results(rules: Sequence[ShardingRule], program: Program, form: CallForm) -> Results:
    like = dict(form.returned)
    elements = tuple(range(form.result_count)) if form.result_count > 0 else (-1,)
    by_rule = set()
    for element in elements:
        start = "result" if element < 0 else f"result[{element}]"
        paths = [path for path in program.output_paths if path.startswith(start)]
        if element not in like and any(_first(rules, path) >= 0 for path in paths):
            by_rule.add(element)
    return Results(elements, like, frozenset(by_rule))


def _identifiers(names: Sequence[str]) -> tuple[str, ...]:
    """Names of parameters for arguments with these names, none that the file uses otherwise."""
    taken = {"jax", "re", "nnx", "eqx", "P", "step", "graph", "modules", "result"}
    taken |= {"state", "states", "shapes", "ins", "jitted", "run", "planned", "pure", "new_state"}
    free = (f"{name}_" if name in taken else name for name in names)
    return tuple(
        name if name.isidentifier() and names.count(given) == 1 else f"arg{i}"
        for i, (given, name) in enumerate(zip(names, free, strict=True))
    )


# -- text ------------------------------------------------------------------------------------------


def _docstring(written: WrittenPlan, parts: FileParts, mode: str) -> str:
    problem, cost, model = written.problem, written.cost, written.problem.analysis.model
    plan = f"Plan {written.plan.key:016x}" if written.plan.key else "Written"
    lines = [
        f'"""Sharding of {model.name} on a mesh of {problem.mesh}: {written.size}.',
        "",
        f"{plan} by TOAST Lab {__version__}, priced for {problem.machine.name} at "
        f"{cost.time_s * 1e3:.3f} ms a step",
        f"and {bytes_text(cost.peak_bytes)} at the peak of a device.",
        "",
        *(f"    {line}" for line in python_forms.usage(parts)),
        *_about_constraints(written.constraints, problem.analysis.program, CONSTRAIN[mode]),
        *_about_layers(model.recompute),
        *([] if written.constraints or model.recompute else NOTHING_TO_WRITE),
        *_about_padding(model.padding, parts),
        '"""',
    ]
    return "\n".join(line.rstrip().replace("\\", "/") for line in lines)


NOTHING_TO_WRITE = ("", "Nothing has to be written into the function itself.")


def _about_layers(layers: Sequence[Recomputed]) -> list[str]:
    if not layers:
        return []
    return [
        "",
        "The plan's patch writes jax.checkpoint around these layers where they are called:",
        "",
        *(f"    {layer}" for layer in layers),
    ]


def _about_padding(padding: Padding | None, parts: FileParts) -> list[str]:
    if padding is None:
        return []
    return [
        "",
        f"It is the plan of the function, {padding}.",
        "The file that ``to_padding()`` wrote makes that function, and pads what it takes:",
        "",
        f"    step = padded_step(step, {parts.parameters})",
        f"    {parts.parameters} = step.pad({parts.parameters})",
        "    ...",
        "    result = step.cut(result)",
    ]


def _about_constraints(
    constraints: Sequence[SiteConstraint], program: Program, constrain: str
) -> list[str]:
    if not constraints:
        return []
    rows = []
    for constraint in constraints:
        refusal = constraint.site.refusal
        reason = f"  (cannot stand there: {refusal})" if refusal else ""
        rows.append(f"    {constraint_text(program, constraint)}{reason}")
    return [
        "",
        "The plan's patch writes these constraints into the source of the function, as",
        f"``x = {constrain}(x, P(...))`` after each line. Whatever else runs",
        "these lines, such as an init, needs ``with jax.set_mesh(MESH)`` around it.",
        *rows,
    ]


def _tables(written: WrittenPlan, parts: FileParts, mode: str) -> str:
    mesh = written.problem.mesh
    sizes, axes = tuple(mesh.sizes), _tuple_text(mesh.axes)
    types = f"(AxisType.{mode.capitalize()},) * {len(mesh.axes)}"
    lines = [
        f"MESH = jax.make_mesh({sizes!r}, {axes}, axis_types={types})",
        *python_forms.mesh_context(parts),
    ]
    if parts.form.library == JAX:
        names = [parts.form.names[i] for i in parts.array_positions]
        lines.append(f"ARGUMENTS = {_tuple_text(names)}")
    if parts.on_host:
        lines.append(f"ON_HOST = {_raw(parts.on_host)}  # paths of what stays in host memory")
    return "\n".join([*lines, *_rules(written.rules)])


def _tuple_text(words: Sequence[str]) -> str:
    inner = ", ".join(f'"{word}"' for word in words)
    return f"({inner},)" if len(words) == 1 else f"({inner})"


def _rules(rules: Sequence[ShardingRule]) -> list[str]:
    lines = [
        "RULES = [  # the first pattern that is found in a path decides; all else is replicated",
    ]
    for rule in rules:
        line = f"    ({_raw(rule.pattern)}, {spec_text(rule.spec, short=True)}),"
        comment = f"  # {rule.words}"
        is_told = any(word not in rule.pattern for word in re.findall(r"\w+", rule.words))
        lines.append(line + comment if is_told and len(line + comment) <= _WIDTH else line)
    return [*lines, "]"]


def _raw(pattern: str) -> str:
    if '"' in pattern or pattern.endswith("\\"):
        return repr(pattern)
    return f'r"{pattern}"' if "\\" in pattern else f'"{pattern}"'
