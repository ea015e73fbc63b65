"""Rules of hand-written kernels: along which dims a kernel may be cut, and what it costs.

No compiler sees into a kernel (``pl.pallas_call``, an FFI call, cuDNN's attention). A rule says in
the manner of an einsum which dims of its operands and results are one:

    b s h d, b t h d, b t h d -> b s h d

A dim whose name occurs in a result can be cut; each device then runs the kernel on its part. One
that occurs only in operands (``t``) stays whole, since the kernel sums over it in its own way,
unless ``reduces`` lists it: the results of parts then add up to the whole one. Those that ``whole``
lists stay whole, too. ``_`` is a dim that stays whole, ``(k g)`` one that is made of two
(heads in groups that share keys), ``*`` a whole operand and ``**`` all further ones.

``register`` adds rules; those of well-known kernels are in ``known_kernels``. Start reading at
``rule_of``.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toast_lab.errors import FrontendError, InvalidInput, did_you_mean, join_offenders
from toast_lab.files import PathLike
from toast_lab.ir import own_rules, source_names
from toast_lab.ir.known_kernels import known_rule
from toast_lab.ir.own_rules import PARTITIONED as PARTITIONED
from toast_lab.ir.own_rules import WRAPPED as WRAPPED
from toast_lab.ir.own_rules import Rule, Shapes, call_target, call_without_rule
from toast_lab.ir.program import NEED_REPLICATION, PASS, REDUCTION

#: FLOPs or bytes of a whole kernel: a number, an expression of the sizes, or a function of them.
Amount = float | str | Callable[[Mapping[str, int]], float] | None
#: Dims of one tensor: for each the names that it is made of, the major one first; None: all whole.
Dims = tuple[tuple[str, ...], ...] | None
_MERGED = re.compile(r"\(([^()]*)\)|(\S+)")
_WHOLE, _REST = "*", "**"
_KEYS = ("rule", "whole", "reduces", "flops", "bytes")
# Calls that are no kernels: XLA's own linear algebra, which it gathers, and calls of the host
_NO_KERNELS = ("Eigh", "LuDecomposition", "CustomSPMDPartitioning", "Sharding")


@dataclasses.dataclass(frozen=True)
class KernelRule:
    """The rule of the kernels whose name matches ``name``, a regular expression."""

    name: str
    text: str  #: as in the module's docstring
    flops: Amount = None
    bytes: Amount = None  #: moved between memory and the device's cores
    whole: frozenset[str] = frozenset()  #: names of dims that stay whole
    reduces: frozenset[str] = frozenset()  #: names of dims over which results of parts add up
    decorates: bool = False  #: it decorates a function, whose name ``name`` is

    @property
    def title(self) -> str:
        """The name as a person reads it."""
        return re.sub(r"\\(.)", r"\1", self.name) if self.decorates else self.name

    def __post_init__(self) -> None:
        if self.text.count("->") != 1:
            raise InvalidInput(
                f'the rule {self.text!r} of kernel {self.title} is not "operands -> results", such '
                'as "b s h d, b t h d -> b s h d"'
            )
        try:
            re.compile(self.name)
        except re.error as error:
            raise InvalidInput(
                f"the kernel's name {self.name!r} is not a regular expression: {error}"
            ) from None
        operands, results = (_names_in(side) for side in self.dims())
        unknown = sorted(self.whole - operands - results)
        if unknown:
            raise InvalidInput(
                f"kernel {self.title}: whole={' '.join(unknown)!r} is not in its rule {self.text!r}"
            )
        unsummed = sorted(self.reduces - (operands - results - self.whole))
        if unsummed:
            raise InvalidInput(
                f"kernel {self.title}: reduces={' '.join(unsummed)!r}: only dims of operands that "
                f"no result has are summed over, see its rule {self.text!r}"
            )

    def dims(self) -> tuple[list[Dims], list[Dims]]:
        """The dims of the operands and results that the text lists."""
        sides = [
            [_dims(tensor) for tensor in side.split(",") if tensor.strip() != _REST]
            for side in self.text.split("->")
        ]
        return sides[0], sides[1]

    def has_rest(self) -> tuple[bool, bool]:
        """Does the text end in ``**`` for operands and for results?"""
        before, after = (side.split(",")[-1].strip() == _REST for side in self.text.split("->"))
        return before, after


@dataclasses.dataclass(frozen=True)
class _EachOf:
    """FLOPs or bytes of as many kernels as the dim ``name`` is long, each of ``amount``."""

    amount: Callable[[Mapping[str, int]], float]
    name: str

    def __call__(self, sizes: Mapping[str, int]) -> float:
        return self.amount(sizes) * sizes[self.name]


def mapped(
    kernel: KernelRule, name: str, operands: Sequence[tuple[int, bool]], results: Sequence[int]
) -> KernelRule:
    """The rule of a kernel that ``jax.vmap`` runs for each entry of a new first dim.

    Args:
        kernel: the rule of one run.
        name: the name of the mapped kernel, a regular expression.
        operands: rank in one run, and whether there is one for each entry.
        results: ranks in one run; there is one for each entry.

    >>> mapped(KernelRule("k", "a b, b -> a", "a*b"), "ks", [(2, True), (1, False)], [1]).text
    'v a b, b -> v a'
    """
    used = set().union(*map(_names_in, kernel.dims()))
    new = "v"
    while new in used:
        new += "v"

    def side(text: str, tensors: Sequence[tuple[int, bool]]) -> str:
        given = [tensor.strip() for tensor in text.split(",")]
        if given[-1] == _REST:
            given[-1:] = [_WHOLE] * (len(tensors) - len(given) + 1)
        return ", ".join(
            f"{new} {' '.join(['_'] * rank) if tensor == _WHOLE else tensor}".strip()
            if is_mapped
            else tensor
            for tensor, (rank, is_mapped) in zip(given, tensors, strict=True)
        )

    def times(amount: Amount) -> Amount:
        if amount is None:
            return None
        return _EachOf(amount, new) if callable(amount) else f"({amount}) * {new}"

    before, after = kernel.text.split("->")
    text = f"{side(before, operands)} -> {side(after, [(rank, True) for rank in results])}"
    return dataclasses.replace(
        kernel, name=name, text=text, flops=times(kernel.flops), bytes=times(kernel.bytes)
    )


def _names_in(tensors: Sequence[Dims]) -> set[str]:
    return {name for dims in tensors for names in dims or () for name in names}


def _dims(text: str) -> Dims:
    if text.strip() == _WHOLE:
        return None
    return tuple(
        tuple(merged.split()) if merged else (single,) for merged, single in _MERGED.findall(text)
    )


#: Rules of users, the latest first.
_REGISTERED: list[KernelRule] = []


def register(rule: KernelRule) -> None:
    """Add a rule, in place of an earlier one for the same name."""
    _REGISTERED[:] = [rule, *(other for other in _REGISTERED if other.name != rule.name)]


def registered() -> tuple[KernelRule, ...]:
    """The rules of users."""
    return tuple(_REGISTERED)


def registered_for(name: str) -> KernelRule | None:
    """The user's rule for the kernel called ``name``, the latest that matches."""
    return next((rule for rule in _REGISTERED if re.fullmatch(rule.name, name)), None)


def read_file(path: PathLike) -> None:
    """Register the rules of a TOML file.

    Each kernel is a table under its name, a regular expression::

        ["my_norm"]
        rule = "b s d, d -> b s d"
        whole = "d"               # optional, likewise reduces
        flops = "8 * b * s * d"   # optional: a number or an expression of the dims
        bytes = 4e6               # optional, likewise

    Raises:
        InvalidInput: the file cannot be read, or a table is wrong; all mistakes are listed.
    """
    try:
        tables = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidInput(f"cannot read the kernel rules {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: this is not TOML: {error}") from None
    kernels, mistakes = [], []
    for name, table in tables.items():
        try:
            kernels.append(_read_table(name, table))
        except InvalidInput as error:
            mistakes.append(str(error))
    if mistakes:
        raise InvalidInput(f"{path}: kernel rules that cannot be read:\n{join_offenders(mistakes)}")
    for kernel in kernels:
        register(kernel)


def _read_table(name: str, table: Any) -> KernelRule:
    if not isinstance(table, dict) or not isinstance(table.get("rule"), str):
        raise InvalidInput(f'["{name}"] has no rule, such as rule = "b s d, d -> b s d"')
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        words = ", ".join(f"{key}{did_you_mean(key, _KEYS)}" for key in unknown)
        raise InvalidInput(f'["{name}"]: no such key: {words}; keys are {", ".join(_KEYS)}')
    amounts_given = table.get("flops"), table.get("bytes")
    if not all(value is None or type(value) in (int, float, str) for value in amounts_given):
        raise InvalidInput(f'["{name}"]: flops and bytes are numbers or expressions of the dims')
    whole, reduces = (frozenset(str(table.get(key, "")).split()) for key in ("whole", "reduces"))
    return KernelRule(name, table["rule"], *amounts_given, whole=whole, reduces=reduces)


def forget(name: str) -> None:
    """Take back the rule that was registered for ``name``."""
    _REGISTERED[:] = [rule for rule in _REGISTERED if rule.name != name]


# Names that kernels have whose author gave them none
_ANY_KERNEL = re.compile(r"_?(kernel|body|wrapped|lambda|unnamed)_?", re.I)
_STACK = re.compile(r'loc\("([^"]*)"')
_JITTED = re.compile(r"\bp?jit\((\w+)\)")


def kernel_name(op: Any) -> str:
    """The name of the kernel that a ``custom_call`` runs: its own if it has one, else the target's.

    One that is just called "kernel" goes by the jitted function that calls it.
    """
    own, *functions = _names(op)
    return functions[0] if functions and _ANY_KERNEL.fullmatch(own) else own


def _names(op: Any) -> list[str]:
    """The kernel's own name and, of those of Pallas, the innermost jitted function around it."""
    own = _own_name(op)
    if own == call_target(op) or own_rules.is_wrapped(op):
        return [own]
    stack = _STACK.match(str(op.location))
    return [own, *_JITTED.findall(stack.group(1) if stack else "")[-1:]]


def _own_name(op: Any) -> str:
    """The kernel's name as its author gave it, else the call's target.

    Pallas writes it into the attribute ``kernel_name`` for TPUs, and into the configuration for
    GPUs.
    """
    from toast_lab._jaxlib import ir

    if "kernel_name" in op.attributes:
        return str(ir.StringAttr(op.attributes["kernel_name"]).value)
    if "mhlo.backend_config" in op.attributes:
        configuration: Any = op.attributes["mhlo.backend_config"]
        if isinstance(configuration, ir.DictAttr) and "name" in configuration:
            return str(configuration["name"]).strip('"')
    return call_target(op)


def rule_of(op: Any) -> KernelRule | None:
    """The rule for a ``custom_call``: the user's for its name, else ours, else None."""
    for name in _names(op):
        if rule := registered_for(name):
            return rule
    name = kernel_name(op)
    known = known_rule(name, *_shapes_of(op))
    return None if known is None else KernelRule(re.escape(name), *known)


def given(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """The rule of a kernel that has one. Raises FrontendError if it does not fit its shapes."""
    kernel = rule_of(op)
    return None if kernel is None else fitted(kernel, operands, results, source_names.place(op))


def without_rule(op: Any) -> str:
    """The call, why it has no rule, and the line that would give it one."""
    text = call_without_rule(op)
    if op is None or not op.results or call_target(op) in _NO_KERNELS:
        return text
    name, shapes = kernel_name(op), _shapes_of(op)
    return f"{text}. A rule lets plans cut it, such as {example(name, *shapes)}"


def flops(op: Any, rule: Rule, results: Any) -> float:
    """FLOPs of a whole kernel, 0 if nobody says how many."""
    return amounts(op, *_shapes_of(op))[0]


def monoid(op: Any) -> str:
    """How results for parts are combined: they add up if the kernel's rule declares sums."""
    if op is None:
        return "none"
    if call_target(op) == PARTITIONED:
        return "add"
    kernel = rule_of(op)
    return "add" if kernel is not None and kernel.reduces else "none"


def detail(op: Any, monoid: str) -> str:
    """The kernel's name without its module, as listings print it."""
    return kernel_name(op).rpartition(".")[2]


def moved_bytes(op: Any) -> float | None:
    """Bytes that a whole kernel moves, None: those of its operands and results."""
    return amounts(op, *_shapes_of(op))[1]


def without_cost(op: Any) -> str:
    """What would give a kernel FLOPs that has neither these nor bytes; empty for all others."""
    target = call_target(op)
    if not op.results or target in _NO_KERNELS or "callback" in target:
        return ""
    shapes = _shapes_of(op)
    if own_rules.custom_call(*shapes, op) is not None:  # a call that XLA knows
        return ""
    kernel = rule_of(op)
    if _estimates(op) or (kernel is not None and (kernel.flops, kernel.bytes) != (None, None)):
        return ""
    name = kernel_name(op)
    if target == WRAPPED:
        return f"flops=... in its @tl.kernel_rule({kernel.text if kernel else ''!r})"
    given = (
        example(name, *shapes) if kernel is None else f'tl.kernel_rule("{name}", "{kernel.text}")'
    )
    return f"{given[:-1]}, flops=...)"


def _shapes_of(op: Any) -> tuple[Shapes, Shapes]:
    operands, results = (
        [tuple(getattr(value.type, "shape", ())) for value in values]
        for values in (op.operands, op.results)
    )
    return operands, results


def fitted(kernel: KernelRule, operands: Shapes, results: Shapes, where: str) -> Rule:
    """The kernel's rule for these shapes. Raises FrontendError if it does not fit them."""
    specs = _specs(kernel, operands, results, where)
    shapes = [*operands, *results]
    sizes = _sizes(kernel, specs, shapes, where)
    in_operands, in_results = _names_in(specs[: len(operands)]), _names_in(specs[len(operands) :])
    factor_of = {name: i for i, name in enumerate(sizes)}
    factor_sizes = list(sizes.values())
    classes = [
        PASS
        if name in in_results & in_operands - kernel.whole
        else REDUCTION
        if name in kernel.reduces
        else NEED_REPLICATION
        for name in sizes
    ]
    tensors = []
    for dims, shape in zip(specs, shapes, strict=True):
        rows: list[tuple[int, ...]] = []
        for dim, size in enumerate(shape):
            names = () if dims is None else dims[dim]
            factors = tuple(
                factor_of[name] for name in names if name != "_" and sizes[name] > 1
            ) or tuple(factor_of[name] for name in names[:1] if name != "_")
            if not factors:
                factors = (len(factor_sizes),)
                factor_sizes.append(size)
                classes.append(NEED_REPLICATION)
            rows.append(factors)
        tensors.append(rows)
    for rows in tensors:
        for factors in rows:
            # Cutting a minor factor alone would need a strided layout.
            for minor in factors[1:]:
                classes[minor] = NEED_REPLICATION
    return Rule(factor_sizes, classes, tensors[: len(operands)], tensors[len(operands) :])


def _specs(kernel: KernelRule, operands: Shapes, results: Shapes, where: str) -> list[Dims]:
    specs: list[Dims] = []
    for label, dims, shapes, has_rest in zip(
        ("operand", "result"), kernel.dims(), (operands, results), kernel.has_rest(), strict=True
    ):
        if len(dims) > len(shapes) or (len(dims) < len(shapes) and not has_rest):
            reason = f"it has {len(shapes)} {label}s, the rule {len(dims)}"
            raise _misfit(kernel, where, reason, shapes=(operands, results))
        specs += [*dims, *([None] * (len(shapes) - len(dims)))]
        for i, (tensor, shape) in enumerate(zip(dims, shapes, strict=False)):
            if tensor is not None and len(tensor) != len(shape):
                reason = f"{label} {i} has {len(shape)} dims, the rule {len(tensor)}"
                raise _misfit(kernel, where, reason, shapes=(operands, results))
    return specs


def _sizes(kernel: KernelRule, specs: Sequence[Dims], shapes: Shapes, where: str) -> dict[str, int]:
    """The size of each name; merged dims are solved for the one name that is not known."""
    sizes: dict[str, int] = {}
    n_operands = len(kernel.dims()[0])
    pairs = [
        (names, size)
        for dims, shape in zip(specs, shapes, strict=True)
        for names, size in zip(dims or (), shape, strict=False)
        if names != ("_",)
    ]
    for names, size in sorted(pairs, key=lambda pair: len(pair[0])):
        unknown = [name for name in names if name not in sizes]
        known = math.prod(sizes[name] for name in names if name in sizes)
        if len(unknown) == 1 and known and size % known == 0:
            sizes[unknown[0]] = size // known
        elif unknown or known != size:
            reason = (
                f"{' '.join(names)} is {size} on one tensor and {known} on another"
                if not unknown
                else f"the sizes of {' '.join(unknown)} cannot be told from {size}"
            )
            sides = shapes[:n_operands], shapes[n_operands:]
            raise _misfit(kernel, where, reason, shapes=sides)
    return sizes


def _misfit(
    kernel: KernelRule, where: str, reason: str, *, shapes: tuple[Shapes, Shapes]
) -> FrontendError:
    remedy = (
        f'@tl.kernel_rule("{_fitting(*shapes)}")'
        if kernel.decorates
        else example(kernel.name, *shapes)
    )
    return FrontendError(
        f"the rule {kernel.text!r} does not fit the kernel {kernel.title}{where}: {reason}. "
        f"Its shapes are {_shapes_text(shapes[0])} -> {_shapes_text(shapes[1])}. Give it another "
        f"rule: {remedy}"
    )


def _shapes_text(shapes: Shapes) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def example(name: str, operands: Shapes, results: Shapes) -> str:
    """A call of ``tl.kernel_rule`` with the ranks of a kernel; sizes that are equal share a name.

    >>> example("norm", [(8, 4), (4,)], [(8, 4)])
    'tl.kernel_rule("norm", "a b, b -> a b")'
    """
    return f'tl.kernel_rule("{name}", "{_fitting(operands, results)}")'


def _fitting(operands: Shapes, results: Shapes) -> str:
    """A rule with the ranks of these shapes."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    letter_of: dict[int, str] = {}

    def names(shape: tuple[int, ...]) -> str:
        used: set[str] = set()
        dims = []
        for size in shape:
            letter = letter_of.get(size, "")
            if not letter or letter in used:
                letter = next(letters, "_")
                letter_of.setdefault(size, letter)
            used.add(letter)
            dims.append(letter)
        return " ".join(dims) or _WHOLE

    sides = [", ".join(map(names, shapes)) for shapes in (operands, results)]
    return f"{sides[0]} -> {sides[1]}"


# -- FLOPs and bytes -------------------------------------------------------------------------------
_ESTIMATES = re.compile(r'\\?"(flops|bytes_accessed)\\?"\s*:\s*(\d+)')
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def amounts(op: Any, operands: Shapes, results: Shapes) -> tuple[float, float | None]:
    """(FLOPs, bytes or None) of a ``custom_call``: those of its rule, else its own estimates."""
    own = _estimates(op)
    kernel = rule_of(op)
    if kernel is None:
        return own.get("flops", 0.0), own.get("bytes_accessed")
    specs = _specs(kernel, operands, results, "")
    sizes = _sizes(kernel, specs, [*operands, *results], "")
    flops, moved = (amount(kernel, value, sizes) for value in (kernel.flops, kernel.bytes))
    return (
        own.get("flops", 0.0) if flops is None else flops,
        own.get("bytes_accessed") if moved is None else moved,
    )


def _estimates(op: Any) -> dict[str, float]:
    """The ``cost_estimate`` of a ``pallas_call``, which it carries in its configuration."""
    if "backend_config" not in op.attributes or "kernel_name" not in op.attributes:
        return {}
    printed = str(op.attributes["backend_config"])
    _, _, estimate = printed.partition("cost_estimate")
    text = estimate[:600].replace("\\22", '"').replace("\\0A", "\n")
    return {key: float(number) for key, number in _ESTIMATES.findall(text)}


def amount(kernel: KernelRule, value: Amount, sizes: Mapping[str, int]) -> float | None:
    """FLOPs or bytes as a number. Raises FrontendError if an expression cannot be evaluated."""
    if value is None or isinstance(value, int | float):
        return value
    try:
        if callable(value):
            return float(value(sizes))
        return float(_evaluated(ast.parse(value, mode="eval").body, sizes))
    except Exception as error:
        raise FrontendError(
            f"kernel {kernel.title}: {_amount_text(value)} gives no number for the sizes "
            f"{', '.join(f'{name}={size}' for name, size in sizes.items())}: {error}"
        ) from error


def _amount_text(value: str | Callable[..., Any]) -> str:
    if isinstance(value, str):
        return repr(value)
    name = getattr(value, "__name__", type(value).__name__)
    return f"the function {name}, called with one dict of sizes,"


def _evaluated(node: ast.expr, sizes: Mapping[str, int]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in sizes:
            raise ValueError(f"no dim is called {node.id}")
        return sizes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](
            _evaluated(node.left, sizes), _evaluated(node.right, sizes)
        )
    raise ValueError(
        f"only numbers, names of dims and + - * / // ** are known, not {ast.dump(node)}"
    )
