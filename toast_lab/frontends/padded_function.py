"""A function on padded arrays: sizes that no mesh axis divides become ones that it does.

``padded(jaxpr, sizes)`` follows chosen dims of a jaxpr from its arguments through every op, and
gives a function of arguments whose dims are padded with zeros, which works on padded values
throughout. Where padding would change a result (a sum, a maximum, a product that contracts the dim,
an index out of bounds), it is masked with what changes nothing; what it holds is followed from op
to op, so that masks stand only where they are needed. An op that has no rule here runs on the
values' own sizes: they are cut before it and padded after it, which is always right.

A padded dim consists of runs, each with its padding behind it: a reshape of 1600 to 25 x 64 whose
25 become 32 pads at the end, and the fused 4800 of three such projections three times.

The results are padded, too, and their padding is zero, so that they can be the next step's
arguments. This module needs JAX alone: exported plans carry its source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend import core, source_info_util


class PaddedDim(NamedTuple):
    """A padded dim: so many runs, each of ``size`` elements and padding up to ``padded``."""

    runs: int
    size: int
    padded: int

    @property
    def whole(self) -> int:
        """The dim's size without padding."""
        return self.runs * self.size

    @property
    def total(self) -> int:
        """The dim's size with padding."""
        return self.runs * self.padded


class Start(NamedTuple):
    """A dim of an argument, from which dims of one size are to be padded.

    ``size`` may be that of a dim that slices or reshapes make of the argument's, such as 25 heads
    of its 1600 columns.
    """

    argument: int
    dim: int
    size: int
    padded: int


class Alone(NamedTuple):
    """An op that runs on the values' own sizes, although a dim of them is padded around it."""

    op: str
    where: str  #: file and line
    sizes: tuple[str, ...]  #: "50257 of 50304"

    def __str__(self) -> str:
        return f"{self.op} at {self.where} on {', '.join(self.sizes)}"


@dataclasses.dataclass(frozen=True)
class Padded:
    """A function on padded arguments, made by ``padded``.

    Attributes:
        call: takes the padded leaves of the arguments and gives the padded leaves of the results.
        arguments: the padded dims of each argument.
        results: the padded dims of each result.
        alone: ops that run on their own sizes; known once ``call`` was traced.
    """

    call: Callable[..., list[Any]]
    arguments: tuple[dict[int, PaddedDim], ...]
    results: tuple[dict[int, PaddedDim], ...]
    alone: list[Alone]


def padded(jaxpr: Any, starts: Iterable[Start]) -> Padded:
    """The function of a closed jaxpr on arguments of which some dims are padded.

    Args:
        jaxpr: as ``jax.make_jaxpr`` gives it.
        starts: what to pad. All dims that these reach and that have their size are padded.

    Raises:
        ValueError: nothing of that size can be reached from a dim (all such are listed).
    """
    frame = _Frame(jaxpr.jaxpr)
    spread = _Spread(frame)
    reached: set[tuple[int, int]] = set()
    unreached: dict[tuple[int, int], list[Start]] = {}
    for start in starts:
        seeds = spread.reached(frame, jaxpr.jaxpr.invars[start.argument], start.dim, start.size)
        if not seeds:
            unreached.setdefault((start.size, start.padded), []).append(start)
        else:
            reached.add((start.size, start.padded))
        spread.pad(seeds, PaddedDim(1, start.size, start.padded))
    if offenders := [size for size in unreached if size not in reached]:
        raise ValueError(
            "nothing to pad: "
            + "; ".join(
                f"no dim of size {size} is made of "
                + ", ".join(f"dim {s.dim} of argument {s.argument}" for s in unreached[size, to])
                for size, to in offenders
            )
        )

    arguments = tuple(map(frame.layouts, jaxpr.jaxpr.invars))
    results = tuple(map(frame.layouts, jaxpr.jaxpr.outvars))
    run = _Run()

    def call(*leaves: Any) -> list[Any]:
        given = [
            Followed(leaf, dict(layouts), dict.fromkeys(layouts, 0))
            for leaf, layouts in zip(leaves, arguments, strict=True)
        ]
        outs = run.frame(frame, [_constant(value) for value in jaxpr.consts], given)
        return [run.zeroed(held, own).array for held, own in zip(outs, results, strict=True)]

    return Padded(call, arguments, results, run.alone)


class PaddedStep:
    """A function of pytrees, on padded arrays: ``step(*step.pad(*arguments))``.

    Args:
        fn: a function that ``jax.jit`` takes.
        arguments: arrays or shapes of its arguments, without padding.
        starts: (argument leaf, dim, size, padded size), see ``Start``.

    Raises:
        ValueError: see ``padded``.
    """

    def __init__(
        self, fn: Callable[..., Any], arguments: Sequence[Any], starts: Iterable[Sequence[int]]
    ) -> None:
        self.fn, self.arguments = fn, tuple(arguments)
        self.starts = [Start(*start) for start in starts]
        self.padded, self.result_tree = self._padded()

    def _padded(self) -> tuple[Padded, Any]:
        jaxpr, shapes = jax.make_jaxpr(self.fn, return_shape=True)(*self.arguments)
        return padded(jaxpr, self.starts), jax.tree.structure(shapes)

    def __call__(self, *arguments: Any) -> Any:
        """The padded results; ``fn`` is traced again whenever this is."""
        outputs, _ = self._padded()
        results = outputs.call(*jax.tree.leaves(arguments))
        self.padded.alone[:] = outputs.alone
        return jax.tree.unflatten(self.result_tree, results)

    def pad(self, *arguments: Any) -> tuple[Any, ...]:
        """The arguments with zeros in their padding."""
        leaves, tree = jax.tree.flatten(arguments)
        padded_leaves = [pad(*row) for row in zip(leaves, self.padded.arguments, strict=True)]
        return tuple(jax.tree.unflatten(tree, padded_leaves))

    def cut(self, results: Any) -> Any:
        """Results without their padding."""
        leaves, tree = jax.tree.flatten(results)
        cut_leaves = [cut(*row) for row in zip(leaves, self.padded.results, strict=True)]
        return jax.tree.unflatten(tree, cut_leaves)


def pad(array: Any, layouts: dict[int, PaddedDim]) -> Any:
    """``array`` with zeros in the padding of its dims."""
    for dim, layout in layouts.items():
        array = _pad(array, dim, layout)
    return array


def cut(array: Any, layouts: dict[int, PaddedDim]) -> Any:
    """``array`` without the padding of its dims."""
    for dim, layout in layouts.items():
        array = _cut(array, dim, layout)
    return array


# -- values ----------------------------------------------------------------------------------------

#: what padding holds: a number everywhere, or numbers, or anything (infinities and NaNs, too)
FINITE, ANY = "finite", "any"
Fill = Any


@dataclasses.dataclass
class Followed:
    """A value with padded dims, and what is known of it.

    Attributes:
        array: the value; what it holds in its padding may be replaced.
        layouts: its padded dims.
        fills: what the padding of each holds, wherever the other dims are.
        finite: no element outside of padding is infinite or no number, if no argument's is.
        number: all elements are equal to it; None: they are not, or it is not known.
        lowest: no element is below it, of padding neither; None: it is not known.
        top_of: the value whose maxima along ``top_dims`` these elements are, or more.
        top_dims: dims along which something is 1, and nothing more except in their padding, or
            those of ``top_of``.
    """

    array: Any
    layouts: dict[int, PaddedDim] = dataclasses.field(default_factory=dict)
    fills: dict[int, Fill] = dataclasses.field(default_factory=dict)
    finite: bool = True
    number: Fill = None
    lowest: float | None = None
    top_of: Followed | None = None
    top_dims: frozenset[int] = frozenset()

    def fill(self, dim: int) -> Fill:
        """What the padding of a dim holds; of a dim that is broadcast, what all elements do."""
        return self.fills[dim] if dim in self.fills else self.everywhere

    @property
    def elsewhere(self) -> Fill:
        """What any element outside of padding is known to be."""
        return self.number if self.number is not None else (FINITE if self.finite else ANY)

    @property
    def everywhere(self) -> Fill:
        """What any element is known to be, those of padding too."""
        return _joined(self.elsewhere, *self.fills.values())

    @property
    def wholly_finite(self) -> bool:
        """Is no element infinite or no number, of padding neither?"""
        return self.finite and all(map(_is_finite, self.fills.values()))


def _constant(value: Any) -> Followed:
    known = isinstance(value, np.ndarray | np.generic | int | float | bool | complex)
    if known and np.ndim(value) == 0:
        number = np.asarray(value).item()
        lowest = None if isinstance(number, complex) else number
        return Followed(value, finite=bool(np.isfinite(value)), number=number, lowest=lowest)
    if known and value.dtype.kind in "fc":
        return Followed(value, finite=bool(np.isfinite(value).all()))
    return Followed(value, finite=known or not _is_inexact(value))


def _is_inexact(value: Any) -> bool:
    return bool(jax.dtypes.issubdtype(value.dtype, np.inexact))


def _is_finite(fill: Fill) -> bool:
    return fill == FINITE if isinstance(fill, str) else bool(np.isfinite(fill))


def _joined(*fills: Fill) -> Fill:
    if all(fill == fills[0] for fill in fills[1:]):
        return fills[0]
    return FINITE if all(map(_is_finite, fills)) else ANY


def _pad(array: Any, dim: int, layout: PaddedDim) -> Any:
    shape = array.shape
    if layout.runs > 1:
        array = lax.reshape(array, (*shape[:dim], layout.runs, layout.size, *shape[dim + 1 :]))
        dim_of_run = dim + 1
    else:
        dim_of_run = dim
    widths = [(0, 0, 0)] * array.ndim
    widths[dim_of_run] = (0, layout.padded - layout.size, 0)
    array = lax.pad(array, np.asarray(0, array.dtype), widths)
    if layout.runs > 1:
        array = lax.reshape(array, (*shape[:dim], layout.total, *shape[dim + 1 :]))
    return array


def _cut(array: Any, dim: int, layout: PaddedDim) -> Any:
    shape = array.shape
    if layout.runs == 1:
        return lax.slice_in_dim(array, 0, layout.size, axis=dim)
    array = lax.reshape(array, (*shape[:dim], layout.runs, layout.padded, *shape[dim + 1 :]))
    array = lax.slice_in_dim(array, 0, layout.size, axis=dim + 1)
    return lax.reshape(array, (*shape[:dim], layout.whole, *shape[dim + 1 :]))


def _masked(array: Any, dim: int, layout: PaddedDim, number: Any) -> Any:
    index = lax.iota(np.int32, layout.total)
    if layout.runs > 1:
        index = lax.rem(index, np.int32(layout.padded))
    is_real = lax.broadcast_in_dim(index < np.int32(layout.size), array.shape, (dim,))
    return lax.select(is_real, array, lax.full_like(array, number))


def _least(lowest: float | None, number: float, is_added: bool = True) -> float | None:
    """The lowest of elements and a number that is added to them."""
    return lowest if lowest is None or not is_added else min(lowest, number)


def _lowest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return False
    return -np.inf if jax.dtypes.issubdtype(dtype, np.inexact) else jax.numpy.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    return np.inf if jax.dtypes.issubdtype(dtype, np.inexact) else jax.numpy.iinfo(dtype).max


# -- which dims are padded -------------------------------------------------------------------------


class _Frame:
    """A jaxpr at one place of the program, and the layouts that its values' dims shall have."""

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr
        self.wanted: dict[tuple[Any, int], PaddedDim] = {}
        self.inner = {
            number: [_Frame(inner) for inner in _inner_jaxprs(eqn)]
            for number, eqn in enumerate(jaxpr.eqns)
        }

    @property
    def is_padded(self) -> bool:
        """Is any dim padded in it, or in a jaxpr that it runs?"""
        frames = itertools.chain.from_iterable(self.inner.values())
        return bool(self.wanted) or any(frame.is_padded for frame in frames)

    def layouts(self, atom: Any) -> dict[int, PaddedDim]:
        """The padded dims that a value shall have."""
        if isinstance(atom, core.Literal):
            return {}
        dims = range(len(getattr(atom.aval, "shape", ())))
        return {dim: self.wanted[atom, dim] for dim in dims if (atom, dim) in self.wanted}


def _inner_jaxprs(eqn: Any) -> list[Any]:
    """The open jaxprs that an equation runs, if it is one that is walked into."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return [branch.jaxpr for branch in params["branches"]]
    if name == "while":
        return [params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr]
    if name in (*_INLINED, *_REMAT, "scan"):
        inner = _jaxpr_of(eqn)
        return [getattr(inner, "jaxpr", inner)]
    return []


def _jaxpr_of(eqn: Any) -> Any:
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return next(eqn.params[name] for name in names if name in eqn.params)


_INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_REMAT = ("checkpoint", "remat", "remat2")


class _DimOf(NamedTuple):
    frame: _Frame
    atom: Any
    dim: int


class _Spread:
    """Follows dims through the program, forwards and backwards."""

    def __init__(self, frame: _Frame) -> None:
        #: equations that read or make a value, and the same value in other frames, by its frame
        self.around: dict[tuple[_Frame, Any], list[tuple[_Frame, Any]]] = {}
        self.twins: dict[tuple[_Frame, Any], list[tuple[_Frame, Any, int]]] = {}
        self._add(frame)

    def _add(self, frame: _Frame) -> None:
        for number, eqn in enumerate(frame.jaxpr.eqns):
            for atom in {*_vars(eqn.invars), *eqn.outvars}:
                self.around.setdefault((frame, atom), []).append((frame, eqn))
            for inner in frame.inner[number]:
                self._add(inner)
            for (one, atom, shift), (other, twin, other_shift) in _pairs(frame, number, eqn):
                if isinstance(atom, core.Literal) or isinstance(twin, core.Literal):
                    continue
                step = other_shift - shift
                self.twins.setdefault((one, atom), []).append((other, twin, step))
                self.twins.setdefault((other, twin), []).append((one, atom, -step))

    def reached(self, frame: _Frame, atom: Any, dim: int, size: int) -> list[_DimOf]:
        """All dims of ``size`` that have to do with a dim, through slices and reshapes, too."""
        nodes = list(self._followed([(_DimOf(frame, atom, dim), None)]))
        return [node for node, _ in nodes if node.atom.aval.shape[node.dim] == size]

    def pad(self, seeds: Sequence[_DimOf], layout: PaddedDim) -> None:
        """Have dims padded, and all that are to be split alike."""
        for node, own in self._followed([(seed, layout) for seed in seeds]):
            node.frame.wanted.setdefault((node.atom, node.dim), own)

    def _followed(
        self, first: Sequence[tuple[_DimOf, PaddedDim | None]]
    ) -> Iterator[tuple[_DimOf, Any]]:
        seen: set[_DimOf] = set()
        waiting = list(first)
        while waiting:
            node, layout = waiting.pop()
            frame, atom, dim = node
            shape = getattr(getattr(atom, "aval", None), "shape", ())
            fits = 0 <= dim < len(shape) and (layout is None or shape[dim] == layout.whole)
            if node in seen or isinstance(atom, core.Literal) or not fits:
                continue
            if layout is not None and (atom, dim) in frame.wanted:
                continue
            seen.add(node)
            yield node, layout
            for other, twin, step in self.twins.get((frame, atom), ()):
                waiting.append((_DimOf(other, twin, dim + step), layout))
            for own, eqn in self.around.get((frame, atom), ()):
                for side, atoms in (("i", eqn.invars), ("o", eqn.outvars)):
                    for index, other in enumerate(atoms):
                        if other is atom:
                            for slot, carried in _carried(eqn, (side, index, dim), layout):
                                atoms_of = eqn.invars if slot[0] == "i" else eqn.outvars
                                waiting.append((_DimOf(own, atoms_of[slot[1]], slot[2]), carried))


def _vars(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _pairs(frame: _Frame, number: int, eqn: Any) -> Iterator[tuple[Any, Any]]:
    """Values inside and outside of an equation that are the same, with leading dims to skip."""
    name, params, inner = eqn.primitive.name, eqn.params, frame.inner[number]
    if name == "scan":
        (body,) = inner
        kept = params["num_consts"] + params["num_carry"]
        for index, (atom, own) in enumerate(zip(eqn.invars, body.jaxpr.invars, strict=True)):
            yield (frame, atom, int(index >= kept)), (body, own, 0)
        for index, (atom, own) in enumerate(zip(eqn.outvars, body.jaxpr.outvars, strict=True)):
            yield (frame, atom, int(index >= params["num_carry"])), (body, own, 0)
        carries = body.jaxpr.invars[params["num_consts"] : kept]
        for atom, own in zip(carries, body.jaxpr.outvars, strict=False):
            yield (body, atom, 0), (body, own, 0)
    elif name == "while":
        condition, body = inner
        of_condition, of_both = _consts_of_while(params)
        carries = eqn.invars[of_both:]
        outer = ([*eqn.invars[:of_condition], *carries], [*eqn.invars[of_condition:]])
        for own, atoms in zip((condition, body), outer, strict=True):
            for atom, twin in zip(atoms, own.jaxpr.invars, strict=True):
                yield (frame, atom, 0), (own, twin, 0)
        for atom, twin, result in zip(carries, body.jaxpr.outvars, eqn.outvars, strict=True):
            yield (frame, atom, 0), (frame, result, 0)
            yield (frame, result, 0), (body, twin, 0)
    elif inner:
        operands = eqn.invars[1:] if name == "cond" else eqn.invars
        for own in inner:
            for atom, twin in zip(operands, own.jaxpr.invars, strict=True):
                yield (frame, atom, 0), (own, twin, 0)
            for atom, twin in zip(eqn.outvars, own.jaxpr.outvars, strict=True):
                yield (frame, atom, 0), (own, twin, 0)


def _consts_of_while(params: dict[str, Any]) -> tuple[int, int]:
    return params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]


Slot = tuple[str, int, int]  # "i" or "o", operand or result, dim


def _carried(eqn: Any, slot: Slot, layout: PaddedDim | None) -> Iterator[tuple[Slot, Any]]:
    """The dims that are laid out as one is, and how; without a layout those that it has to do with.

    Slices, reshapes and the like change layouts; of other ops whole groups of dims are alike.
    """
    side, index, dim = slot
    name = eqn.primitive.name
    if name == "reshape" and eqn.params.get("dimensions") is None:
        one, other = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        one, other = (one, other) if side == "i" else (other, one)
        to = _major(one, other, dim) if layout is None else _reshaped(one, other, dim, layout)
        if to is not None:
            yield (("o" if side == "i" else "i"), 0, to[0]), to[1]
        return
    if name in ("slice", "pad", "split", "concatenate"):
        for other_side, number, offset in _parts(eqn, dim):
            whole_side = "i" if name in ("slice", "split") else "o"
            size = (eqn.invars if other_side == "i" else eqn.outvars)[number].aval.shape[dim]
            if layout is None or (offset == 0 and size == _whole_of(eqn, dim)):
                to_part, to_whole = layout, layout
            else:
                to_part = _run_of(layout, offset, size) if side == whole_side else None
                to_whole = _run_around(layout, offset, _whole_of(eqn, dim))
            if side == whole_side and (layout is None or to_part is not None):
                yield (other_side, number, dim), to_part
            elif (side, index) == (other_side, number) and (layout is None or to_whole is not None):
                yield (whole_side, 0, dim), to_whole
        return
    for group in _groups(eqn):
        if slot in group:
            yield from ((other, layout) for other in group if other != slot)


def _parts(eqn: Any, dim: int) -> list[tuple[str, int, int]]:
    """(side, number, offset) of the parts of the whole that a slice or its like has."""
    name, params = eqn.primitive.name, eqn.params
    if name == "slice":
        strides = params["strides"]
        plain = strides is None or strides[dim] == 1
        return [("o", 0, params["start_indices"][dim])] if plain else []
    if name == "pad":
        low, high, inner = params["padding_config"][dim]
        return [("i", 0, low)] if inner == 0 and low >= 0 and high >= 0 else []
    axis, side = (params["axis"], "o") if name == "split" else (params["dimension"], "i")
    atoms = eqn.outvars if name == "split" else eqn.invars
    sizes = [atom.aval.shape[dim] if dim == axis else 0 for atom in atoms]
    return [(side, number, sum(sizes[:number])) for number in range(len(atoms))]


def _whole_of(eqn: Any, dim: int) -> int:
    atoms = eqn.invars if eqn.primitive.name in ("slice", "split") else eqn.outvars
    return int(atoms[0].aval.shape[dim])


def _run_of(layout: PaddedDim, offset: int, size: int) -> PaddedDim | None:
    """The layout of whole runs that are cut out of a dim."""
    runs, rest = divmod(size, layout.size)
    return None if rest or offset % layout.size or not runs else layout._replace(runs=runs)


def _run_around(layout: PaddedDim, offset: int, whole: int) -> PaddedDim | None:
    """The layout of a dim of which runs are a part."""
    runs, rest = divmod(whole, layout.size)
    return None if rest or offset % layout.size else layout._replace(runs=runs)


def _block(one: Sequence[int], other: Sequence[int], dim: int) -> tuple[range, range] | None:
    """The dims that a reshape makes of those around ``dim``: the least with equal products."""
    i = j = 0
    while i < len(one) and j < len(other):
        first, second = i, j
        left, right = one[i], other[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                if i == len(one):
                    return None
                left, i = left * one[i], i + 1
            else:
                if j == len(other):
                    return None
                right, j = right * other[j], j + 1
        if first <= dim < i:
            return range(first, i), range(second, j)
    return None


def _major(one: Sequence[int], other: Sequence[int], dim: int) -> tuple[int, None] | None:
    """The major dim that a reshape makes of the major dim of a block."""
    block = _block(one, other, dim)
    if block is None or math.prod(one[block[0].start : dim]) != 1:
        return None
    return next(((to, None) for to in block[1] if other[to] > 1), None)


def _reshaped(
    one: Sequence[int], other: Sequence[int], dim: int, layout: PaddedDim
) -> tuple[int, PaddedDim] | None:
    """The dim that a reshape makes of a padded one, and its layout; None if no dim can hold it."""
    block = _block(one, other, dim)
    if block is None:
        return None
    before, after = one[block[0].start : dim], one[dim + 1 : block[0].stop]
    runs = math.prod(before) * layout.runs
    size, padded = layout.size * math.prod(after), layout.padded * math.prod(after)
    outer = 1
    for to in block[1]:
        inner = math.prod(other[to + 1 : block[1].stop])
        if other[to] > 1 and runs % outer == 0 and size % inner == 0 and padded % inner == 0:
            own = PaddedDim(runs // outer, size // inner, padded // inner)
            if own.whole == other[to]:
                return to, own
        outer *= other[to]
    return None


# -- dims that are alike ---------------------------------------------------------------------------

_ELEMENTWISE = frozenset(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil
    clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc
    exp exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite le lgamma log log1p
    logistic lt max min mul name ne neg nextafter not or polygamma population_count pow real
    reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical
    sign sin sinh sqrt square stop_gradient sub tan tanh xor""".split()
)
_REDUCE = frozenset(
    """reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax
    argmin""".split()
)
_CUMULATIVE = frozenset("cumsum cumprod cummax cummin cumlogsumexp".split())
_SCATTER = ("scatter-add", "scatter_add")


def _groups(eqn: Any) -> list[list[Slot]]:
    """Groups of dims of an op's operands and results that have to be laid out alike.

    A group of one operand's dim alone is one that the op may see padded; a dim in no group is cut.
    """
    name = eqn.primitive.name
    if name in _ELEMENTWISE:
        shape = eqn.outvars[0].aval.shape
        slots = [("i", i, atom) for i, atom in enumerate(eqn.invars)] + [("o", 0, eqn.outvars[0])]
        return [
            [(side, i, dim) for side, i, atom in slots if atom.aval.shape[dim : dim + 1] == (size,)]
            for dim, size in enumerate(shape)
        ]
    finder = _GROUPS.get(name)
    return [] if finder is None else finder(eqn)


def _rank(atom: Any) -> int:
    return len(atom.aval.shape)


def _groups_of_same(eqn: Any) -> list[list[Slot]]:
    """Each operand is a result, dim by dim."""
    return [
        [("i", i, dim), ("o", i, dim)]
        for i, atom in enumerate(eqn.invars)
        for dim in range(_rank(atom))
    ]


def _groups_of_kept(eqn: Any, gone: Iterable[int]) -> list[list[Slot]]:
    """All dims of the operand but some are those of the result."""
    rank = _rank(eqn.invars[0])
    kept = (dim for dim in range(rank) if dim not in {dim % rank for dim in gone})
    return [[("i", 0, dim), ("o", 0, to)] for to, dim in enumerate(kept)]


def _groups_of_reduce(eqn: Any) -> list[list[Slot]]:
    axes = eqn.params["axes"]
    return [*_groups_of_kept(eqn, axes), *([("i", 0, dim)] for dim in axes)]


def _groups_of_dot(eqn: Any) -> list[list[Slot]]:
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    groups: list[list[Slot]] = []
    groups += [[("i", 0, a), ("i", 1, b)] for a, b in zip(left, right, strict=True)]
    groups += [
        [("i", 0, a), ("i", 1, b), ("o", 0, to)]
        for to, (a, b) in enumerate(zip(left_batch, right_batch, strict=True))
    ]
    to = len(left_batch)
    for i, used in ((0, {*left, *left_batch}), (1, {*right, *right_batch})):
        for dim in range(_rank(eqn.invars[i])):
            if dim not in used:
                groups.append([("i", i, dim), ("o", 0, to)])
                to += 1
    return groups


def _groups_of_broadcast(eqn: Any) -> list[list[Slot]]:
    dims, operand = eqn.params["broadcast_dimensions"], eqn.invars[0].aval.shape
    shape = eqn.outvars[0].aval.shape
    return [
        [("i", 0, dim), ("o", 0, int(to))]
        for dim, to in enumerate(dims)
        if operand[dim] == shape[int(to)]
    ]


def _groups_of_stack(eqn: Any) -> list[list[Slot]]:
    axis = eqn.params["axis"]
    return [
        [
            *(("i", i, dim) for i in range(len(eqn.invars))),
            ("o", 0, dim + (dim >= axis)),
        ]
        for dim in range(_rank(eqn.invars[0]))
    ]


def _groups_of_sort(eqn: Any) -> list[list[Slot]]:
    """Operands are sorted together: their dims are alike, and the sorted one is cut."""
    return [
        [(side, i, dim) for side in "io" for i in range(len(eqn.invars))]
        for dim in range(_rank(eqn.invars[0]))
        if dim != eqn.params["dimension"]
    ]


def _groups_of_top_k(eqn: Any) -> list[list[Slot]]:
    last = eqn.params.get("axis", -1) % _rank(eqn.invars[0])
    return [
        [("i", 0, dim)] if dim == last else [("i", 0, dim), ("o", 0, dim), ("o", 1, dim)]
        for dim in range(_rank(eqn.invars[0]))
    ]


def _groups_of_gather(eqn: Any) -> list[list[Slot]]:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, rank = eqn.invars[0].aval.shape, _rank(eqn.outvars[0])
    batches = [dim for dim in range(rank) if dim not in numbers.offset_dims]
    rows = [[("i", 1, dim), ("o", 0, to)] for dim, to in enumerate(batches)]
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [dim for dim in range(len(shape)) if dim not in gone]
    batching = (numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    groups = _groups_of_index(rows, numbers.start_index_map, batching)
    for dim, to in zip(windows, numbers.offset_dims, strict=True):
        if sizes[dim] == shape[dim] and dim not in numbers.start_index_map:
            groups.append([("i", 0, dim), ("o", 0, to)])
    return groups


def _groups_of_scatter(eqn: Any) -> list[list[Slot]]:
    numbers = eqn.params["dimension_numbers"]
    operand, updates = eqn.invars[0].aval.shape, eqn.invars[2].aval.shape
    batches = [dim for dim in range(len(updates)) if dim not in numbers.update_window_dims]
    # Rows of padding would overwrite what they meet: only sums of zeros change nothing
    adds = eqn.primitive.name in _SCATTER
    rows = [[("i", 1, dim), ("i", 2, to)] for dim, to in enumerate(batches)] if adds else []
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [dim for dim in range(len(operand)) if dim not in gone]
    indexed = numbers.scatter_dims_to_operand_dims
    batching = (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    groups = _groups_of_index(rows, indexed, batching, kept=True)
    for dim, to in zip(windows, numbers.update_window_dims, strict=True):
        if updates[to] == operand[dim] and dim not in indexed:
            groups.append([("i", 0, dim), ("i", 2, to), ("o", 0, dim)])
    return groups


def _groups_of_index(
    rows: list[list[Slot]],
    indexed: Sequence[int],
    batching: tuple[Sequence[int], Sequence[int]],
    *,
    kept: bool = False,
) -> list[list[Slot]]:
    """Groups of the dims that indices have, ``rows``, and of those that they choose from.

    ``batching`` are dims of the operand and of the indices that go together. ``kept``: the
    operand's dims are those of the result.
    """

    def own(dim: int) -> list[Slot]:
        return [("i", 0, dim), *([("o", 0, dim)] if kept else [])]

    pairs = list(zip(*batching, strict=True))
    return [
        *(
            [*row, *(slot for dim, to in pairs if ("i", 1, to) in row for slot in own(dim))]
            for row in rows
        ),
        *map(own, indexed),
    ]


def _groups_of_dynamic_slice(eqn: Any) -> list[list[Slot]]:
    sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    return [
        [("i", 0, dim), ("o", 0, dim)] if sizes[dim] == shape[dim] else [("i", 0, dim)]
        for dim in range(len(shape))
    ]


def _groups_of_dynamic_update(eqn: Any) -> list[list[Slot]]:
    shape, update = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    return [
        [("i", 0, dim), *([("i", 1, dim)] if update[dim] == shape[dim] else []), ("o", 0, dim)]
        for dim in range(len(shape))
    ]


_GROUPS: dict[str, Callable[[Any], list[list[Slot]]]] = {
    **dict.fromkeys(_REDUCE, _groups_of_reduce),
    **dict.fromkeys(_CUMULATIVE, _groups_of_same),
    **dict.fromkeys(("scatter", *_SCATTER), _groups_of_scatter),
    "dot_general": _groups_of_dot,
    "broadcast_in_dim": _groups_of_broadcast,
    "transpose": lambda eqn: [
        [("i", 0, dim), ("o", 0, to)] for to, dim in enumerate(eqn.params["permutation"])
    ],
    "squeeze": lambda eqn: _groups_of_kept(eqn, eqn.params["dimensions"]),
    "stack": _groups_of_stack,
    "rev": lambda eqn: [
        group for group in _groups_of_same(eqn) if group[0][2] not in eqn.params["dimensions"]
    ],
    "sort": _groups_of_sort,
    "top_k": _groups_of_top_k,
    "gather": _groups_of_gather,
    "dynamic_slice": _groups_of_dynamic_slice,
    "dynamic_update_slice": _groups_of_dynamic_update,
    "optimization_barrier": _groups_of_same,
    "toast_site": _groups_of_same,
    "sharding_constraint": _groups_of_same,
}


# -- running on padded values ----------------------------------------------------------------------

#: ops of which finite operands make finite results
_KEEPS_FINITE = frozenset(
    """abs add add_any and asinh atan broadcast_in_dim ceil clamp convert_element_type copy copy_p
    cos erf erfc floor logistic max min mul name neg not or reduce_precision round select_n sign sin
    square stop_gradient sub tanh xor""".split()
)


#: ops on numbers, to follow what padding holds
_ON_NUMBERS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "copy": np.asarray,
    "copy_p": np.asarray,
    "cos": np.cos,
    "div": lambda x, y: x / y if x.dtype.kind == "f" else x // y,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "ge": np.greater_equal,
    "gt": np.greater,
    "integer_pow": lambda x, y: x**y,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "name": np.asarray,
    "ne": np.not_equal,
    "neg": np.negative,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": lambda which, *cases: cases[int(which)],
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "stop_gradient": np.asarray,
    "sub": np.subtract,
    "tanh": np.tanh,
}


def _lowest_of(eqn: Any, given: Sequence[Followed]) -> float | None:
    """A bound below what an elementwise op makes."""
    name, lows = eqn.primitive.name, [held.lowest for held in given]
    if name in ("abs", "exp", "logistic", "square"):
        return 0.0
    if name == "integer_pow" and eqn.params["y"] % 2 == 0:
        return 0.0
    if name == "mul" and given[0] is given[1]:
        return 0.0
    known = [low for low in lows if low is not None]
    if name == "max" and known:
        return max(known)
    if name == "select_n":
        known, lows = [low for low in lows[1:] if low is not None], lows[1:]
    if not known or len(known) < len(lows):
        return None
    if name in ("copy", "copy_p", "name", "stop_gradient"):
        return known[0]
    if name == "convert_element_type":
        return float(np.asarray(known[0]).astype(eqn.outvars[0].aval.dtype))
    if name in ("min", "select_n"):
        return min(known)
    if name in ("add", "add_any"):
        return sum(known)
    if name == "mul" and min(known) >= 0:
        return known[0] * known[1]
    if name == "sqrt" and known[0] >= 0:
        return 0.0
    if name == "div" and known[0] >= 0 and known[1] > 0:
        return 0.0
    return None


#: ops of which finite operands above a bound make finite results
_FINITE_ABOVE = {"rsqrt": 0.0, "log": 0.0, "log1p": -1.0}


def _fill_of(eqn: Any, fills: Sequence[Fill], given: Sequence[Followed] = ()) -> Fill:
    """What an elementwise op makes of what its operands hold."""
    name, dtype = eqn.primitive.name, eqn.outvars[0].aval.dtype
    if name == "convert_element_type" and not isinstance(fills[0], str):
        return _number(fills[0], dtype)
    if name in _ON_NUMBERS and not any(isinstance(fill, str) for fill in fills):
        atoms = zip(fills, eqn.invars, strict=True)
        own = [np.asarray(fill, atom.aval.dtype) for fill, atom in atoms]
        power = {"y": eqn.params["y"]} if name == "integer_pow" else {}
        with np.errstate(all="ignore"), contextlib.suppress(TypeError, ZeroDivisionError):
            return _number(_ON_NUMBERS[name](*own, **power), dtype)
    if name in ("mul", "and") and any(_is_zero(fill) for fill in fills):
        if all(map(_is_finite, fills)):
            return 0 if name == "mul" else False
    if name == "or" and dtype == np.bool_ and any(fill is True for fill in fills):
        return True
    if name == "select_n":
        which, *cases = fills
        return _joined(*cases) if isinstance(which, str) else cases[int(which)]
    if not jax.dtypes.issubdtype(dtype, np.inexact):
        return FINITE
    keeps = name in _KEEPS_FINITE or (name == "integer_pow" and eqn.params["y"] >= 0)
    lowest = given[-1].lowest if given else None
    if lowest is not None:
        keeps |= lowest > _FINITE_ABOVE.get(name, np.inf) or (name == "sqrt" and lowest >= 0)
        keeps |= name == "div" and lowest > 0
    if name == "div" and (keeps or not (isinstance(fills[1], str) or fills[1] == 0)):
        if _is_zero(fills[0]) and _is_finite(fills[1]):
            return 0
        keeps = True
    return FINITE if keeps and all(map(_is_finite, fills)) else ANY


def _is_zero(fill: Fill) -> bool:
    return not isinstance(fill, str) and bool(fill == 0)


def _number(value: Any, dtype: Any) -> Fill:
    """A number as the type holds it; no number at all may be anything."""
    number = np.asarray(value).astype(dtype).item()
    return ANY if number != number else number


class _Run:
    """Evaluates frames on padded values."""

    def __init__(self) -> None:
        self.alone: list[Alone] = []

    def frame(
        self, frame: _Frame, consts: Sequence[Followed], args: Sequence[Followed]
    ) -> list[Followed]:
        """The results of a frame's jaxpr, laid out as the frame wants."""
        env: dict[Any, Followed] = {}

        def read(atom: Any) -> Followed:
            return _constant(atom.val) if isinstance(atom, core.Literal) else env[atom]

        jaxpr = frame.jaxpr
        env.update(zip(jaxpr.constvars, consts, strict=True))
        for atom, held in zip(jaxpr.invars, args, strict=True):
            env[atom] = self.laid_out(held, frame.layouts(atom))
        last_use = {atom: n for n, eqn in enumerate(jaxpr.eqns) for atom in _vars(eqn.invars)}
        kept = set(_vars(jaxpr.outvars))
        for number, eqn in enumerate(jaxpr.eqns):
            source = eqn.source_info
            names = source_info_util.current_name_stack() + source.name_stack
            place = source_info_util.user_context(source.traceback, name_stack=names)
            with place, eqn.ctx.manager:
                results = self.eqn(frame, number, eqn, [read(atom) for atom in eqn.invars])
                for atom, held in zip(eqn.outvars, results, strict=True):
                    env[atom] = self.laid_out(held, frame.layouts(atom))
            for atom in {*_vars(eqn.invars)}:
                if last_use[atom] == number and atom not in kept:
                    env.pop(atom, None)
        return [self.laid_out(read(atom), frame.layouts(atom)) for atom in jaxpr.outvars]

    def eqn(self, frame: _Frame, number: int, eqn: Any, given: list[Followed]) -> list[Followed]:
        """The results of one equation."""
        name, inner = eqn.primitive.name, frame.inner[number]
        is_padded = any(held.layouts for held in given) or any(own.is_padded for own in inner)
        if inner and (is_padded or name in _INLINED):
            return self.walked_into(frame, number, eqn, given)
        results: list[Followed] | None = None
        if name in _OTHERS:
            results = _OTHERS[name](self, frame, eqn, given)
        elif name in _ELEMENTWISE or name in _RULES:
            held, outs = self.agreed(frame, eqn, given)
            rule = _elementwise if name in _ELEMENTWISE else _RULES[name]
            results = rule(self, eqn, held, outs)
        return self.on_its_own(eqn, given) if results is None else results

    def tell(self, eqn: Any, layouts: Sequence[PaddedDim]) -> None:
        """Keep that an equation sees dims without their padding."""
        if not layouts:
            return
        sizes = dict.fromkeys(f"{layout.whole} of {layout.total}" for layout in layouts)
        where = source_info_util.summarize(eqn.source_info)
        row = Alone(eqn.primitive.name, where.partition(" (")[0], tuple(sizes))
        if row not in self.alone:
            self.alone.append(row)

    def on_its_own(self, eqn: Any, given: list[Followed]) -> list[Followed]:
        """An equation on the own sizes of its values."""
        self.tell(eqn, [layout for held in given for layout in held.layouts.values()])
        given = [self.laid_out(held, {}) for held in given]
        return _bound(eqn, [held.array for held in given], given)

    # -- layouts -----------------------------------------------------------------------------------
    def laid_out(self, held: Followed, layouts: dict[int, PaddedDim]) -> Followed:
        """A value with exactly these dims padded; the same object if they are already."""
        if held.layouts == layouts:
            return held
        array, fills = held.array, dict(held.fills)
        for dim, layout in held.layouts.items():
            if layouts.get(dim) != layout:
                array = _cut(array, dim, layout)
                fills.pop(dim)
        added = [dim for dim, layout in layouts.items() if held.layouts.get(dim) != layout]
        if held.number is not None:
            shape = list(array.shape)
            for dim in added:
                shape[dim] = layouts[dim].total
            if added:
                fills = dict.fromkeys(layouts, held.number)
                array = lax.full(shape, held.number, array.dtype)
        else:
            for dim in added:
                array = _pad(array, dim, layouts[dim])
                fills = {other: _joined(fill, 0) for other, fill in fills.items()}
                fills[dim] = 0
        lowest = held.lowest if held.number is not None else _least(held.lowest, 0, bool(added))
        return Followed(array, dict(layouts), fills, held.finite, number=held.number, lowest=lowest)

    def masked(self, held: Followed, dim: int, number: Any) -> Followed:
        """A value whose padding along ``dim`` holds a number.

        Zeros replace what the value itself holds there, so that later uses find them.
        """
        if not isinstance(held.fills[dim], str) and held.fills[dim] == number:
            return held
        array = _masked(held.array, dim, held.layouts[dim], number)
        fills = {other: _joined(fill, number) for other, fill in held.fills.items()}
        fills[dim] = number
        if number == 0:
            held.array, held.fills, held.number = array, fills, None
            held.lowest = _least(held.lowest, 0)
            return held
        return Followed(array, held.layouts, fills, held.finite)

    def zeroed(self, held: Followed, layouts: dict[int, PaddedDim]) -> Followed:
        """A value with these dims padded with zeros."""
        held = self.laid_out(held, layouts)
        for dim in layouts:
            held = self.masked(held, dim, 0)
        return held

    def agreed(
        self, frame: _Frame, eqn: Any, given: list[Followed]
    ) -> tuple[list[Followed], list[dict[int, PaddedDim]]]:
        """Operands that are laid out alike in each group of dims, and the results' layouts."""
        layouts: list[dict[int, PaddedDim]] = [{} for _ in given]
        outs: list[dict[int, PaddedDim]] = [{} for _ in eqn.outvars]
        for group in _groups(eqn):
            wanted = [
                frame.wanted.get((eqn.outvars[i], dim)) for side, i, dim in group if side == "o"
            ]
            wanted += [given[i].layouts.get(dim) for side, i, dim in group if side == "i"]
            layout = next((layout for layout in wanted if layout is not None), None)
            if layout is None:
                continue
            for side, i, dim in group:
                (layouts if side == "i" else outs)[i][dim] = layout
        self.tell(
            eqn,
            [
                layout
                for held, own in zip(given, layouts, strict=True)
                for dim, layout in held.layouts.items()
                if own.get(dim) != layout
            ],
        )
        return list(map(self.laid_out, given, layouts)), outs

    # -- equations with jaxprs of their own --------------------------------------------------------
    def walked_into(
        self, frame: _Frame, number: int, eqn: Any, given: list[Followed]
    ) -> list[Followed]:
        """An equation that runs jaxprs, on padded values."""
        name, inner = eqn.primitive.name, frame.inner[number]
        if name == "scan":
            return self.scan(inner[0], eqn, given)
        if name == "while":
            return self.loop(inner[0], inner[1], eqn, given)
        if name == "cond":
            if eqn.params.get("branches_platforms"):  # each branch is for one platform alone
                return self.on_its_own(eqn, given)
            return self.cond(inner, eqn, given)
        if name in _REMAT:
            return self.remat(inner[0], eqn, given)
        consts = [_constant(value) for value in getattr(_jaxpr_of(eqn), "consts", ())]
        return self.frame(inner[0], consts, given)

    def remat(self, inner: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
        given = list(map(self.laid_out, given, map(inner.layouts, inner.jaxpr.invars)))
        outs: list[Followed] = []

        def call(*arrays: Any) -> list[Any]:
            outs[:] = self.frame(inner, [], _with_arrays(given, arrays))
            return [held.array for held in outs]

        arrays = [held.array for held in given]
        closed = jax.make_jaxpr(call)(*arrays)
        body, consts = closed.jaxpr, closed.consts
        if consts:
            moved = body.replace(constvars=[], invars=[*body.constvars, *body.invars])
            body = moved.replace(debug_info=moved.debug_info._replace(arg_names=None))
        results = eqn.primitive.bind(*consts, *arrays, **{**eqn.params, "jaxpr": body})
        return _with_arrays(outs, results)

    def scan(self, inner: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
        params = eqn.params
        first, kept = params["num_consts"], params["num_consts"] + params["num_carry"]
        own = [inner.layouts(atom) for atom in inner.jaxpr.invars]
        given = [
            self.laid_out(held, layouts if index < kept else _shifted(layouts, 1))
            for index, (held, layouts) in enumerate(zip(given, own, strict=True))
        ]
        rows = [
            Followed(None, _shifted(held.layouts, -1), _shifted(held.fills, -1), held.finite)
            for held in given[kept:]
        ]
        consts = [_constant(value) for value in params["jaxpr"].consts]

        def body(carried: Sequence[Followed], arrays: Sequence[Any]) -> list[Followed]:
            insides = _with_arrays([*given[:first], *carried, *rows], arrays)
            return self.frame(inner, consts, insides)

        arrays = [held.array for held in given]
        shapes = [
            *(jax.typeof(array) for array in arrays[:kept]),
            *(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in arrays[kept:]),
        ]
        carried, outs = self.settled(given[first:kept], own[first:kept], body, shapes)

        def step(carries: Any, xs: Any) -> Any:
            results = body(carried, [*arrays[:first], *carries, *xs])
            values = [
                self.laid_out(held, out.layouts).array
                for held, out in zip(results, outs, strict=True)
            ]
            return values[: kept - first], values[kept - first :]

        carries, outputs = lax.scan(
            step,
            arrays[first:kept],
            arrays[kept:],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        of_rows = [
            Followed(array, _shifted(held.layouts, 1), _shifted(held.fills, 1), held.finite)
            for held, array in zip(outs[kept - first :], outputs, strict=True)
        ]
        return [*_with_arrays(carried, carries), *of_rows]

    def settled(
        self,
        carried: list[Followed],
        layouts: Sequence[dict[int, PaddedDim]],
        body: Callable[..., list[Followed]],
        shapes: Sequence[Any],
    ) -> tuple[list[Followed], list[Followed]]:
        """What a loop's carries hold in every round, and what its body then makes."""
        outs: list[Followed] = []
        carried[:] = [dataclasses.replace(h, top_of=None, top_dims=frozenset()) for h in carried]

        def watched(*arrays: Any) -> list[Any]:
            outs[:] = [
                self.laid_out(held, layouts[index] if index < len(layouts) else held.layouts)
                for index, held in enumerate(body(carried, arrays))
            ]
            return [held.array for held in outs]

        while True:
            jax.eval_shape(watched, *shapes)
            joined = [
                dataclasses.replace(
                    held,
                    fills={d: _joined(fill, out.fills[d]) for d, fill in held.fills.items()},
                    finite=held.finite and out.finite,
                    number=held.number if held.number == out.number else None,
                    lowest=held.lowest if held.lowest == out.lowest else None,
                )
                for held, out in zip(carried, outs, strict=False)
            ]
            if all(
                dataclasses.replace(one, array=None) == dataclasses.replace(other, array=None)
                for one, other in zip(joined, carried, strict=True)
            ):
                return joined, list(outs)
            carried[:] = joined

    def loop(
        self, condition: _Frame, inner: _Frame, eqn: Any, given: list[Followed]
    ) -> list[Followed]:
        of_condition, first = _consts_of_while(eqn.params)
        own = [
            *(condition.layouts(atom) for atom in condition.jaxpr.invars[:of_condition]),
            *(inner.layouts(atom) for atom in inner.jaxpr.invars),
        ]
        given = list(map(self.laid_out, given, own))
        arrays = [held.array for held in given]
        consts = [_constant(value) for value in eqn.params["body_jaxpr"].consts]
        asked = [_constant(value) for value in eqn.params["cond_jaxpr"].consts]

        def body(carried: Sequence[Followed], values: Sequence[Any]) -> list[Followed]:
            held = _with_arrays([*given[of_condition:first], *carried], values)
            return self.frame(inner, consts, held)

        shapes = [jax.typeof(array) for array in arrays[of_condition:]]
        carried, outs = self.settled(given[first:], own[first:], body, shapes)

        def step(carries: Any) -> Any:
            results = body(carried, [*arrays[of_condition:first], *carries])
            pairs = zip(results, outs, strict=True)
            return [self.laid_out(held, out.layouts).array for held, out in pairs]

        def goes_on(carries: Any) -> Any:
            held = [*given[:of_condition], *_with_arrays(carried, carries)]
            return self.frame(condition, asked, held)[0].array

        return _with_arrays(carried, lax.while_loop(goes_on, step, arrays[first:]))

    def cond(self, branches: Sequence[_Frame], eqn: Any, given: list[Followed]) -> list[Followed]:
        index, *operands = given
        layouts: list[dict[int, PaddedDim]] = [{} for _ in eqn.outvars]
        for branch in branches:
            for own, atom in zip(layouts, branch.jaxpr.outvars, strict=True):
                own.update(branch.layouts(atom))
        outputs: list[list[Followed]] = []

        def call_of(branch: _Frame, closed: Any) -> Callable[..., list[Any]]:
            def call(*arrays: Any) -> list[Any]:
                consts = [_constant(value) for value in closed.consts]
                results = self.frame(branch, consts, _with_arrays(operands, arrays))
                outputs.append(list(map(self.laid_out, results, layouts)))
                return [held.array for held in outputs[-1]]

            return call

        calls = [
            call_of(branch, closed)
            for branch, closed in zip(branches, eqn.params["branches"], strict=True)
        ]
        results = lax.switch(index.array, calls, *(held.array for held in operands))
        return [
            Followed(
                array,
                held[0].layouts,
                {dim: _joined(*(own.fills[dim] for own in held)) for dim in held[0].layouts},
                all(own.finite for own in held),
            )
            for array, held in zip(results, zip(*outputs, strict=True), strict=True)
        ]


def _with_arrays(held: Sequence[Followed], arrays: Sequence[Any]) -> list[Followed]:
    return [
        dataclasses.replace(own, array=array, layouts=dict(own.layouts), fills=dict(own.fills))
        for own, array in zip(held, arrays, strict=True)
    ]


def _shifted(rows: dict[int, Any], step: int) -> dict[int, Any]:
    return {dim + step: row for dim, row in rows.items()}


def _bind(eqn: Any, arrays: Sequence[Any], **changed: Any) -> Any:
    params = eqn.primitive.get_bind_params({**eqn.params, **changed})
    functions, params = params if isinstance(params, tuple) else ((), params)
    return eqn.primitive.bind(*functions, *arrays, **params)


def _bound(
    eqn: Any, arrays: Sequence[Any], given: Sequence[Followed], **changed: Any
) -> list[Followed]:
    """An equation's results, without padded dims."""
    outputs = _bind(eqn, arrays, **changed)
    if not eqn.primitive.multiple_results:
        return [Followed(outputs, finite=_stays_finite(eqn, given))]
    return [Followed(array, finite=_stays_finite(eqn, given, n)) for n, array in enumerate(outputs)]


_MOVES = frozenset(
    """broadcast_in_dim concatenate copy cumsum cummax cummin dot_general dynamic_slice
    dynamic_update_slice iota optimization_barrier pad reduce_max reduce_min reduce_sum reshape rev
    select_n sharding_constraint slice sort split squeeze stack top_k transpose""".split()
)


def _stays_finite(eqn: Any, given: Sequence[Followed], number: int = 0) -> bool:
    dtype = eqn.outvars[number].aval.dtype
    if not jax.dtypes.issubdtype(dtype, np.inexact):
        return True
    name = eqn.primitive.name
    moves = name in _MOVES or name.startswith("scatter")
    if name == "gather":
        moves = "FILL" not in str(eqn.params["mode"])
    return moves and all(held.wholly_finite for held in given)


# -- rules -----------------------------------------------------------------------------------------
Outs = list[dict[int, PaddedDim]]


def _elementwise(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed]:
    (layouts,) = outs
    name = eqn.primitive.name
    fills: dict[int, Fill] = {}
    for dim in layouts:
        fills[dim] = _fill_of(eqn, [held.fill(dim) for held in given], given)
    whole = _fill_of(eqn, [held.elsewhere for held in given], given)
    top_of, top_dims = _top(eqn, given)
    if name == "exp" and top_dims and not top_of:
        # Nothing is above its maximum: what remains is at most 1, and 1 somewhere
        whole = FINITE
        for dim, fill in fills.items():
            if dim not in top_dims and isinstance(fill, str):
                fills[dim] = FINITE
    array = _bind(eqn, [held.array for held in given])
    number = None if isinstance(whole, str) else whole
    lowest = _lowest_of(eqn, given)
    return [
        Followed(
            array,
            layouts,
            fills,
            _is_finite(whole),
            number=number,
            lowest=lowest,
            top_of=top_of,
            top_dims=top_dims,
        )
    ]


def _top(eqn: Any, given: Sequence[Followed]) -> tuple[Followed | None, frozenset[int]]:
    """Whether an elementwise op makes what is above a value, or what is left below its maximum."""
    name = eqn.primitive.name
    if name in ("max", "stop_gradient", "copy"):
        own = [held for held in given if held.top_of is not None]
        if own:
            return own[0].top_of, own[0].top_dims
    if name == "sub" and given[1].top_of is given[0] and given[0].wholly_finite:
        return None, given[1].top_dims
    if name == "exp":
        return None, given[0].top_dims if given[0].top_of is None else frozenset()
    return None, frozenset()


def _moved(
    eqn: Any,
    given: list[Followed],
    layouts: dict[int, PaddedDim],
    source: dict[int, int],
    **changed: Any,
) -> list[Followed]:
    """The result of an op that only moves elements; ``source`` has the operand's dim by its own."""
    (held, *_) = given
    fills = {dim: held.fill(source[dim]) if dim in source else held.everywhere for dim in layouts}
    array = _bind(eqn, [own.array for own in given], **changed)
    # Dims of a maximum are those of the value that it is of: broadcasts alone bring them back
    is_back = eqn.primitive.name in ("broadcast_in_dim", "reshape")
    top_of, top_dims = (held.top_of, held.top_dims) if is_back else (None, frozenset())
    if top_of is None:
        top_dims = frozenset()
    return [
        Followed(
            array,
            layouts,
            fills,
            held.finite,
            number=held.number,
            lowest=held.lowest,
            top_of=top_of,
            top_dims=top_dims,
        )
    ]


def _source(eqn: Any) -> dict[int, int]:
    """The operand's dim of each dim of the result that has one."""
    pairs: dict[int, int] = {}
    for group in _groups(eqn):
        dims: dict[str, int] = {side: dim for side, _, dim in group}
        if "i" in dims and "o" in dims:
            pairs[dims["o"]] = dims["i"]
    return pairs


def _mark(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
    """A mark changes nothing: the value stays the object that it is."""
    given[0].array = _bind(eqn, [given[0].array])
    return given


def _broadcast(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
    """A broadcast makes new dims as they are wanted."""
    held, (layouts,) = run.agreed(frame, eqn, given)
    dims = {int(dim) for dim in eqn.params["broadcast_dimensions"]}
    operand = eqn.invars[0].aval.shape
    grown = {
        int(to)
        for dim, to in enumerate(eqn.params["broadcast_dimensions"])
        if operand[dim] != eqn.params["shape"][int(to)]
    }
    for dim, layout in frame.layouts(eqn.outvars[0]).items():
        if dim not in dims or dim in grown:
            layouts[dim] = layout
    shape = list(eqn.params["shape"])
    for dim, layout in layouts.items():
        shape[dim] = layout.total
    return _moved(eqn, held, layouts, _source(eqn), shape=tuple(shape))


def _iota(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed] | None:
    layouts, own_dim = frame.layouts(eqn.outvars[0]), eqn.params["dimension"]
    if own_dim in layouts and layouts[own_dim].runs > 1:
        return None
    shape = list(eqn.params["shape"])
    for dim, layout in layouts.items():
        shape[dim] = layout.total
    array = _bind(eqn, [held.array for held in given], shape=tuple(shape))
    return [Followed(array, layouts, dict.fromkeys(layouts, FINITE))]


def _rearranged(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed]:
    return _moved(eqn, given, outs[0], _source(eqn))


def _same(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed] | None:
    """Results that are the operands, or, of one dim, cumulated."""
    if eqn.primitive.name in _CUMULATIVE:
        axis = eqn.params["axis"]
        (held,) = given
        if axis in held.layouts:
            if held.layouts[axis].runs > 1:
                return None
            if eqn.params.get("reverse", False):
                held = run.masked(held, axis, _NEUTRAL[eqn.primitive.name](held.array.dtype))
        keeps = _stays_finite(eqn, [held])
        fills: dict[int, Fill] = dict.fromkeys(held.layouts, FINITE if keeps else ANY)
        if eqn.primitive.name == "cumsum":
            zeros: list[int] = [dim for dim in fills if dim != axis and _is_zero(held.fills[dim])]
            fills.update(dict.fromkeys(zeros, 0))
        return [Followed(_bind(eqn, [held.array]), held.layouts, fills, keeps)]
    outputs = _bind(eqn, [held.array for held in given])
    outputs = outputs if eqn.primitive.multiple_results else [outputs]
    return _with_arrays(given, outputs)


_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda dtype: 0,
    "reduce_prod": lambda dtype: 1,
    "reduce_max": _lowest,
    "reduce_min": _highest,
    "reduce_and": lambda dtype: True if dtype == np.bool_ else -1,
    "reduce_or": lambda dtype: 0,
    "reduce_xor": lambda dtype: 0,
    "argmax": _lowest,
    "argmin": _highest,
    "cumsum": lambda dtype: 0,
    "cumprod": lambda dtype: 1,
    "cummax": _lowest,
    "cummin": _highest,
    "cumlogsumexp": _lowest,
}


def _reduce(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed] | None:
    (held,) = given
    name, axes = eqn.primitive.name, eqn.params["axes"]
    if name in ("argmax", "argmin") and any(
        held.layouts[dim].runs > 1 for dim in axes if dim in held.layouts
    ):
        return None
    before, lowest = dict(held.fills), held.lowest
    tops = held.top_dims if held.top_of is None else frozenset()
    for dim in axes:
        if dim in held.layouts:
            held = run.masked(held, dim, _NEUTRAL[name](held.array.dtype))
    array = _bind(eqn, [held.array])
    keeps = _stays_finite(eqn, [Followed(None, finite=held.finite)])

    def fill(dim: int) -> Fill:
        own = before[dim]
        same = name in ("reduce_max", "reduce_min", "reduce_and", "reduce_or")
        if not isinstance(own, str) and (same or (name == "reduce_sum" and own == 0)):
            return own
        inexact = jax.dtypes.issubdtype(eqn.outvars[0].aval.dtype, np.inexact)
        sums = name in ("reduce_sum", "reduce_max", "reduce_min")
        return FINITE if not inexact or (sums and _is_finite(own)) else ANY

    source = _source(eqn)
    fills = {dim: fill(source[dim]) for dim in outs[0]}
    outputs = Followed(array, outs[0], fills, keeps)
    if lowest is not None and (name in ("reduce_max", "reduce_min") or lowest >= 0):
        outputs.lowest = lowest if name != "reduce_prod" else 0.0
    if name == "reduce_max":
        outputs.top_of, outputs.top_dims = given[0], frozenset(axes)
    if name == "reduce_sum" and lowest is not None and lowest >= 0 and tops and tops <= {*axes}:
        outputs.lowest = max(1.0, lowest)
    return [outputs]


def _dot(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed]:
    one, other = given
    (left, right), _ = eqn.params["dimension_numbers"]
    for a, b in zip(left, right, strict=True):
        if a not in one.layouts:
            continue
        zero, other_zero = _is_zero(one.fills[a]), _is_zero(other.fills[b])
        fine, other_fine = _is_finite(one.fills[a]), _is_finite(other.fills[b])
        if not ((zero and other_fine) or (other_zero and fine)):
            # Whichever is not finite has to be masked; of two that are, the smaller
            smaller = math.prod(one.array.shape) <= math.prod(other.array.shape)
            if not fine or (other_fine and (zero or (smaller and not other_zero))):
                one = run.masked(one, a, 0)
            if not other_fine or not (zero or _is_zero(one.fills[a])):
                other = run.masked(other, b, 0)
    array = _bind(eqn, [one.array, other.array])
    finite = one.wholly_finite and other.wholly_finite
    real = one.finite and other.finite
    fills: dict[int, Fill] = {}
    for group in _groups(eqn):
        to = next((dim for side, _, dim in group if side == "o"), None)
        if to is None or to not in outs[0]:
            continue
        own = [given[i].fills[dim] for side, i, dim in group if side == "i"]
        rests = [(one, other)[1 - i].wholly_finite for side, i, _ in group if side == "i"]
        if len(own) == 2:
            is_zero = any(map(_is_zero, own)) and all(map(_is_finite, own))
        else:
            is_zero = _is_zero(own[0]) and rests[0]
        if is_zero:
            fills[to] = 0
        else:
            fills[to] = FINITE if finite else ANY
    return [Followed(array, outs[0], fills, real)]


def _stack(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed]:
    array, axis = _bind(eqn, [held.array for held in given]), eqn.params["axis"]
    fills = {dim: _joined(*(held.fills[dim - (dim > axis)] for held in given)) for dim in outs[0]}
    return [Followed(array, outs[0], fills, all(held.finite for held in given))]


def _sort(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed]:
    outputs = _bind(eqn, [held.array for held in given])
    return [
        Followed(array, own, {d: _joined(held.elsewhere, held.fills[d]) for d in own}, held.finite)
        if own
        else Followed(array, finite=held.finite)
        for array, own, held in zip(outputs, outs, given, strict=True)
    ]


def _top_k(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed] | None:
    (held,) = given
    axis = eqn.params.get("axis", -1) % held.array.ndim
    if axis in held.layouts:
        if held.layouts[axis].runs > 1:
            return None
        held = run.masked(held, axis, _lowest(held.array.dtype))
    values, indices = _bind(eqn, [held.array])
    fills = dict.fromkeys(outs[0], ANY if _is_inexact(values) else FINITE)
    return [
        Followed(values, outs[0], fills, held.finite),
        Followed(indices, outs[1], dict.fromkeys(outs[1], FINITE)),
    ]


def _within(
    indices: Any, layouts: dict[int, PaddedDim], sizes: dict[int, int], *, dims: Any, mode: Any
) -> Any:
    """Indices that choose from padded dims what they choose from the dims themselves.

    ``sizes`` are those of the slices along the padded dims, ``dims`` those of the columns.
    """
    if "PROMISE" in str(mode) or not any(dim in layouts for dim in dims):
        return indices
    dtype = indices.dtype
    most = jax.numpy.iinfo(dtype).max
    of_columns = [(layouts.get(dim), sizes.get(dim, 1)) for dim in dims]
    of_each = np.asarray([most if own is None else own.size - n for own, n in of_columns], dtype)
    limits = lax.broadcast_in_dim(of_each, indices.shape, (indices.ndim - 1,))
    if "CLIP" in str(mode):
        return lax.min(indices, limits)
    return lax.select(indices > limits, lax.full_like(indices, most), indices)


def _gather(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed] | None:
    operand, indices = given
    numbers, sizes = eqn.params["dimension_numbers"], list(eqn.params["slice_sizes"])
    dims = numbers.start_index_map
    if any(operand.layouts[dim].runs > 1 for dim in dims if dim in operand.layouts):
        return None
    of_dims = dict(enumerate(sizes))
    mode = eqn.params["mode"]
    index_array = _within(indices.array, operand.layouts, of_dims, dims=dims, mode=mode)
    source = {}
    for group in _groups(eqn):
        ins = [dim for side, i, dim in group if side == "i" and i == 0]
        to = [dim for side, _, dim in group if side == "o"]
        if ins and to:
            source[to[0]] = ins[0]
            if ins[0] not in numbers.operand_batching_dims and ins[0] in operand.layouts:
                sizes[ins[0]] = operand.layouts[ins[0]].total
    array = _bind(eqn, [operand.array, index_array], slice_sizes=tuple(sizes))
    fine = _stays_finite(eqn, [operand])
    fills = {
        dim: operand.fills[source[dim]]
        if dim in source and fine and dim in numbers.offset_dims
        else (FINITE if fine else ANY)
        for dim in outs[0]
    }
    return [
        Followed(array, outs[0], fills, _stays_finite(eqn, [Followed(None, finite=operand.finite)]))
    ]


def _scatter(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed] | None:
    operand, indices, updates = given
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    dims = numbers.scatter_dims_to_operand_dims
    if any(operand.layouts[dim].runs > 1 for dim in dims if dim in operand.layouts):
        return None
    windows = [
        dim
        for dim in range(operand.array.ndim)
        if dim not in numbers.inserted_window_dims and dim not in numbers.operand_batching_dims
    ]
    to_update = dict(zip(windows, numbers.update_window_dims, strict=True))
    size_of = {dim: updates.array.shape[to] for dim, to in to_update.items()}
    index_array = _within(indices.array, operand.layouts, size_of, dims=dims, mode=mode)
    for dim in updates.layouts:
        if dim not in numbers.update_window_dims:
            updates = run.masked(updates, dim, 0)
    array = _bind(eqn, [operand.array, index_array, updates.array])
    fine = operand.wholly_finite and updates.wholly_finite
    fills = {}
    for dim in outs[0]:
        own = operand.fills[dim]
        if dim in numbers.scatter_dims_to_operand_dims:
            fills[dim] = own if _is_finite(own) else ANY
        elif dim in to_update:
            zeros = _is_zero(own) and _is_zero(updates.fills[to_update[dim]])
            fills[dim] = 0 if zeros else (FINITE if fine else ANY)
        else:
            fills[dim] = FINITE if fine else ANY
    return [Followed(array, outs[0], fills, operand.finite and updates.finite)]


def _clamped(start: Any, layout: PaddedDim, size: int) -> Any:
    start = jax.numpy.asarray(start)
    dtype = start.dtype
    return lax.clamp(np.asarray(0, dtype), start, np.asarray(layout.whole - size, dtype))


def _dynamic_slice(run: _Run, eqn: Any, given: list[Followed], outs: Outs) -> list[Followed] | None:
    held, *starts = given
    sizes, arrays = list(eqn.params["slice_sizes"]), [start.array for start in starts]
    for dim, layout in held.layouts.items():
        if dim in outs[0]:
            sizes[dim] = layout.total
        elif layout.runs > 1:
            return None
        else:
            arrays[dim] = _clamped(arrays[dim], layout, sizes[dim])
    array = _bind(eqn, [held.array, *arrays], slice_sizes=tuple(sizes))
    fills = {dim: held.fills[dim] for dim in outs[0]}
    return [Followed(array, outs[0], fills, held.finite, number=held.number)]


def _dynamic_update(
    run: _Run, eqn: Any, given: list[Followed], outs: Outs
) -> list[Followed] | None:
    held, update, *starts = given
    arrays = [start.array for start in starts]
    for dim, layout in held.layouts.items():
        if dim not in update.layouts:
            if layout.runs > 1:
                return None
            arrays[dim] = _clamped(arrays[dim], layout, update.array.shape[dim])
    for dim in update.layouts:
        if _is_zero(held.fills[dim]):  # masks of the small update spare those of the whole
            update = run.masked(update, dim, 0)
    array = _bind(eqn, [held.array, update.array, *arrays])
    fills = {
        dim: _joined(fill, update.fills[dim]) if dim in update.layouts else fill
        for dim, fill in held.fills.items()
    }
    return [Followed(array, outs[0], fills, held.finite and update.finite)]


def _reshape(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed] | None:
    if eqn.params.get("dimensions") is not None:
        return None
    (held,) = given
    one, other = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    layouts: dict[int, PaddedDim] = {}
    source: dict[int, int] = {}
    for dim, layout in held.layouts.items():
        to = _reshaped(one, other, dim, layout)
        # Of several padded dims that become one, or lie in one block, the major stays padded
        if to is None or any(
            other_dim < dim and dim in (_block(one, other, other_dim) or (range(0),))[0]
            for other_dim in source.values()
        ):
            continue
        layouts[to[0]], source[to[0]] = to[1], dim
    given = [run.laid_out(held, {dim: held.layouts[dim] for dim in source.values()})]
    sizes = list(eqn.params["new_sizes"])
    for dim, layout in layouts.items():
        sizes[dim] = layout.total
    return _moved(eqn, given, layouts, source, new_sizes=tuple(sizes))


def _slice(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
    (held,) = given
    params, shape = eqn.params, eqn.invars[0].aval.shape
    starts, limits = list(params["start_indices"]), list(params["limit_indices"])
    layouts: dict[int, PaddedDim] = {}
    for dim, layout in list(held.layouts.items()):
        strides = params["strides"]
        plain = strides is None or strides[dim] == 1
        run_of = _run_of(layout, starts[dim], limits[dim] - starts[dim]) if plain else None
        if plain and (starts[dim], limits[dim]) == (0, shape[dim]):
            layouts[dim], limits[dim] = layout, layout.total
        elif run_of is not None:
            start = starts[dim] // layout.size * layout.padded
            layouts[dim], starts[dim], limits[dim] = run_of, start, start + run_of.total
        elif layout.runs > 1:
            held = run.laid_out(held, {d: own for d, own in held.layouts.items() if d != dim})
    return _moved(
        eqn,
        [held],
        layouts,
        {dim: dim for dim in layouts},
        start_indices=tuple(starts),
        limit_indices=tuple(limits),
    )


def _pad_op(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
    held, number = given
    shape, padding = eqn.outvars[0].aval.shape, list(eqn.params["padding_config"])
    layouts: dict[int, PaddedDim] = {}
    for dim, layout in list(held.layouts.items()):
        low, high, inner = padding[dim]
        around = _run_around(layout, low, shape[dim])
        if padding[dim] == (0, 0, 0):
            layouts[dim] = layout
        elif around is not None and inner == 0 and low >= 0 and high >= 0:
            layouts[dim] = around
            runs = (low // layout.size * layout.padded, high // layout.size * layout.padded)
            padding[dim] = (*runs, 0)
        else:
            held = run.laid_out(held, {d: own for d, own in held.layouts.items() if d != dim})
    array = _bind(eqn, [held.array, number.array], padding_config=tuple(padding))
    grows = any(tuple(widths) != (0, 0, 0) for widths in padding)
    fills = {
        dim: _joined(held.fills[dim], number.elsewhere) if grows else held.fills[dim]
        for dim in layouts
    }
    return [Followed(array, layouts, fills, held.finite and number.finite)]


def _concatenate(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
    along_dim = eqn.params["dimension"]
    along = [held.layouts.get(along_dim) for held in given]
    runs = {(own.size, own.padded) for own in along if own is not None}
    layouts: dict[int, PaddedDim] = {}
    for held in given:
        layouts |= {dim: own for dim, own in held.layouts.items() if dim != along_dim}
    alike = dict(layouts)
    if None not in along and len(runs) == 1:
        ((size, padded_size),) = runs
        layouts[along_dim] = PaddedDim(sum(own.runs for own in along if own), size, padded_size)
    given = [
        run.laid_out(held, alike | ({along_dim: own} if own and along_dim in layouts else {}))
        for held, own in zip(given, along, strict=True)
    ]
    array = _bind(eqn, [held.array for held in given])
    fills = {dim: _joined(*(held.fills[dim] for held in given)) for dim in layouts}
    return [Followed(array, layouts, fills, all(held.finite for held in given))]


def _split(run: _Run, frame: _Frame, eqn: Any, given: list[Followed]) -> list[Followed]:
    (held,) = given
    axis, sizes = eqn.params["axis"], list(eqn.params["sizes"])
    parts: list[PaddedDim | None] = [None] * len(sizes)
    if axis in held.layouts:
        layout = held.layouts[axis]
        parts = [_run_of(layout, 0, size) for size in sizes]
        if None in parts:
            held = run.laid_out(held, {d: own for d, own in held.layouts.items() if d != axis})
            parts = [None] * len(sizes)
        else:
            sizes = [part.total for part in parts if part is not None]
    outputs = _bind(eqn, [held.array], sizes=tuple(sizes))
    rest = {dim: own for dim, own in held.layouts.items() if dim != axis}
    return [
        Followed(
            array,
            rest | ({axis: part} if part else {}),
            {dim: held.fills[dim] for dim in (*rest, *([axis] if part else []))},
            held.finite,
        )
        for array, part in zip(outputs, parts, strict=True)
    ]


_Rule = Callable[[_Run, Any, list[Followed], Outs], list[Followed] | None]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_REDUCE, _reduce),
    **dict.fromkeys(_CUMULATIVE, _same),
    **dict.fromkeys(("scatter", *_SCATTER), _scatter),
    "dot_general": _dot,
    "transpose": _rearranged,
    "squeeze": _rearranged,
    "stack": _stack,
    "rev": _same,
    "sort": _sort,
    "top_k": _top_k,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "optimization_barrier": _same,
    "sharding_constraint": _same,
}
#: rules that lay their operands out themselves
_OTHERS: dict[str, Callable[[_Run, _Frame, Any, list[Followed]], list[Followed] | None]] = {
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "toast_site": _mark,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad_op,
    "concatenate": _concatenate,
    "split": _split,
}
