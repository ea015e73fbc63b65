"""What a plan is, in the words of engineers: data parallel, fully sharded, tensor parallel.

Nothing is read but the plan: along which dims it cuts arguments, activations and ops, and what it
gathers before use. The parts that dims play come from their use (``conflicts/colour_roles.py``), so
that neither names nor the way on which a plan was found make a difference. What fits no term is
told as it is, and what stays whole is told if it matters.

Start reading at ``plan_words``.
"""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.argument_words import telling_word
from toast_lab.cost.problem import Cost, Problem
from toast_lab.sharding.plan import ShardingPlan, Spec
from toast_lab.text import bytes_text
from toast_lab.written.parts import ProgramParts, program_parts

#: Terms, in the order in which a plan is told.
TERMS = (
    "data parallel",
    "fully sharded",
    "ZeRO-1",
    "tensor parallel",
    "expert parallel",
    "vocabulary parallel",
    "sequence parallel",
    "context parallel",
    "decoding cache",
    "spatial",
    "graph",
    "cut otherwise",
    "whole",
)
LEAST_SHARE = 0.03  #: of what a trait is about; less is not told
ALMOST_ALL = 0.9  #: shares above that are not told as numbers
_ATTENTION, _FEED_FORWARD = ("heads", "kv heads"), ("hidden", "channels", "outputs")


class Trait(NamedTuple):
    """Something that a plan does, in words."""

    term: str  #: one of ``TERMS``
    axes: tuple[str, ...]  #: mesh axes over which it does so
    text: str  #: the same with all that is to be said of it, axes included
    #: of the FLOPs or bytes that the term is about: those for which it holds
    share: float


class _Remark(NamedTuple):
    """A trait along one axis."""

    term: str
    text: str  #: with ``{axes}`` where the axes belong
    share: float


def plan_words(
    source: Problem | Analysis, plan: ShardingPlan, cost: Cost | None = None
) -> tuple[Trait, ...]:
    """What a plan does, in the terms that engineers use.

    Args:
        source: the problem that the plan is for, or the analysis of its program.
        plan: one of that program.
        cost: its price, if known: says how much time the axes' collectives take.

    Returns:
        Traits in the order of ``TERMS``; those of several axes alike are one.

    Raises:
        InvalidPlan: the plan is of another program.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("mlp", batch=64)), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> [trait.text for trait in tl.plan_words(problem, plan)]
        ['data parallel over data', 'tensor parallel over model: hidden']
    """
    analysis = source.analysis if isinstance(source, Problem) else source
    plan.check_is_of(analysis.program)
    parts = program_parts(analysis)
    axes_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    share_of: dict[tuple[str, str], float] = {}
    for axis in range(len(plan.mesh.axes)):
        if plan.mesh.sizes[axis] == 1:
            continue
        for remark in _AxisFacts(parts, plan, axis).remarks():
            key = (remark.term, remark.text)
            axes_of[key].append(plan.mesh.axes[axis])
            share_of[key] = max(share_of.get(key, 0.0), remark.share)
    traits = [
        Trait(term, tuple(axes), text.format(axes=_listed(axes)), share_of[term, text])
        for (term, text), axes in axes_of.items()
    ]
    traits += _whole_weights(parts, plan)
    if cost is not None:
        traits = [_with_time(trait, cost) for trait in traits]
    return tuple(sorted(traits, key=lambda trait: TERMS.index(trait.term)))


def plan_paragraph(traits: Sequence[Trait], width: int = 80, most_lines: int | None = None) -> str:
    """Traits as one paragraph; the last ones are counted where it would be too long."""
    for count in range(len(traits), -1, -1):
        texts = [trait.text for trait in traits[:count]]
        if count < len(traits):
            texts.append(f"and {len(traits) - count} more (tl.plan_words has all)")
        text = "; ".join(texts) or "nothing is cut"
        lines = textwrap.wrap(
            f"{text[0].upper()}{text[1:]}.", width, break_long_words=False, break_on_hyphens=False
        )
        if most_lines is None or len(lines) <= most_lines:
            break
    return "\n".join(lines)


class _AxisFacts:
    """What a plan cuts along one axis."""

    def __init__(self, parts: ProgramParts, plan: ShardingPlan, axis: int) -> None:
        self.parts, self.plan, self.axis = parts, plan, axis
        self.program = plan.program
        self.split = plan.op_factor[:, axis]
        #: FLOPs by the part of the dim along which they are split
        self.split_work: dict[str, float] = defaultdict(float)
        for op in parts.work.nonzero()[0].tolist():
            self.split_work[self._role_of_split(op)] += float(parts.work[op])
        self.total = float(parts.work.sum()) or 1.0
        self.parameter_bytes = sum(map(self.program.nbytes, parts.parameters)) or 1
        #: for each parameter, along which parts of dims its uses read it cut
        self.used: dict[int, Counter[str]] = defaultdict(Counter)
        for use, parameter, _ in parts.uses:
            self.used[parameter][self._use_role(use)] += 1
        lookups = [self._use_role(use) for use, _, is_lookup in parts.uses if is_lookup]
        #: the share of looked-up tables that are read cut along the vocabulary
        self.tables = lookups.count("vocabulary") / len(lookups) if lookups else 0.0

    # -- facts -------------------------------------------------------------------------------------
    def _role_of_split(self, op: int) -> str:
        """The part of the dim along which an op is split; "whole" if it is not split."""
        factor = int(self.split[op])
        return "whole" if factor < 0 else self.parts.name_role[factor] or "other dims"

    def kept_role(self, value: int) -> str:
        """The part of the dim along which a value is kept cut; "whole" if it is not."""
        dim = self._dim(self.plan.lowered.kept[value])
        if dim < 0:
            return "whole"
        return self.parts.name_role[self.program.def_names(value)[dim]] or "other dims"

    def _dim(self, spec: Spec) -> int:
        """The dim that the axis cuts, -1: none."""
        axis = self.plan.mesh.axes[self.axis]
        return next((dim for dim, axes in enumerate(spec) if axis in axes), -1)

    def _use_role(self, use: int) -> str:
        dim = self._dim(self.plan.lowered.used[use])
        if dim < 0:
            return "whole"
        return self.parts.name_role[self.program.use_names(use)[dim]] or "other dims"

    def share_of_role(self, role: str) -> tuple[float, str]:
        """(share of the FLOPs of ops with a dim of this part that are split along it, layers)."""
        return self._share(self._ops_with(role), (role,))

    def _ops_with(self, role: str) -> list[int]:
        return [
            op
            for op in self.parts.work.nonzero()[0].tolist()
            if any(self.parts.name_role[name] == role for name in self.program.factors(op))
        ]

    def _share(self, ops: Iterable[int], roles: Sequence[str]) -> tuple[float, str]:
        """(share of the FLOPs of ops that are split along dims of these parts, in which layers)."""
        cut_work = all_work = 0.0
        of_layer: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for op in ops:
            work = float(self.parts.work[op])
            cut = work if self._role_of_split(op) in roles else 0.0
            cut_work, all_work = cut_work + cut, all_work + work
            layer = self._layer(self.program.factors(op))
            of_layer[layer][0] += cut
            of_layer[layer][1] += work
        layers = [cut > work / 2 for layer, (cut, work) in of_layer.items() if layer >= 0]
        return (cut_work / all_work if all_work else 0.0), self._in_layers(layers)

    def _layer(self, names: Iterable[int]) -> int:
        layers = {int(self.parts.name_layer[name]) for name in names} - {-1}
        return layers.pop() if len(layers) == 1 else -1

    def _in_layers(self, layers: Sequence[bool]) -> str:
        count = sum(layers)
        return f" in {count} of {len(layers)} layers" if 0 < count < len(layers) else ""

    # -- remarks -----------------------------------------------------------------------------------
    def remarks(self) -> list[_Remark]:
        """All that is to be said of the axis."""
        remarks = [
            *self._data(),
            *self._weights(),
            *self._tensors(),
            *self._experts(),
            *self._vocabulary(),
            *self._positions(),
            *self._cache(),
            *self._space_and_graph(),
            *self._others(),
        ]
        if not remarks:
            return [_Remark("whole", "nothing is cut over {axes}", 1.0)]
        return [*remarks, *self._repeated()]

    def _data(self) -> Iterable[_Remark]:
        share, layers = self._share(self.parts.work.nonzero()[0].tolist(), ("batch",))
        if share >= LEAST_SHARE:
            where = layers or _of_work(share)
            yield _Remark("data parallel", f"data parallel over {{axes}}{where}", share)

    def _weights(self) -> Iterable[_Remark]:
        """Weights that are stored in parts but read whole, and states that are cut alone."""
        parts, program = self.parts, self.program
        stored = gathered = 0
        layers: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for parameter in parts.parameters:
            size = program.nbytes(parameter)
            is_cut = self.kept_role(parameter) != "whole"
            roles = self.used[parameter]
            is_gathered = is_cut and 2 * roles["whole"] > roles.total()
            stored += size * is_cut
            gathered += size * is_gathered
            layer = self._layer(program.def_names(parameter))
            layers[layer][0] += size * is_gathered
            layers[layer][1] += size
        share = gathered / self.parameter_bytes
        if share >= LEAST_SHARE:
            where = self._in_layers(
                [2 * cut > size for layer, (cut, size) in layers.items() if layer >= 0]
            )
            which = "" if where or share > ALMOST_ALL else f"{share:.0%} of the "
            text = (
                f"fully sharded (FSDP, ZeRO-3) over {{axes}}{where}: {which}weights are stored in "
                "parts and gathered before use"
            )
            yield _Remark("fully sharded", text, share)
        state_bytes = sum(map(program.nbytes, parts.states))
        if not state_bytes:
            return
        cut_states = sum(
            program.nbytes(state) for state in parts.states if self.kept_role(state) != "whole"
        )
        alone = cut_states / state_bytes - stored / self.parameter_bytes
        if alone >= 0.1:
            of_states = "" if alone > ALMOST_ALL else f" ({alone:.0%} of their bytes)"
            text = f"optimizer states alone cut over {{axes}}{of_states} (ZeRO-1)"
            yield _Remark("ZeRO-1", text, alone)

    def _tensors(self) -> Iterable[_Remark]:
        """Products that are split along the dims of heads and of hidden layers."""
        texts, shares = [], list[float]()
        for role in (*_ATTENTION, *_FEED_FORWARD, "key"):
            share, layers = self.share_of_role(role)
            if share >= LEAST_SHARE:
                texts.append(f"{'key size' if role == 'key' else role}{layers or _part(share)}")
                shares.append(share)
        if not texts:
            return
        ops = {role: self._ops_with(role) for role in (*_ATTENTION, *_FEED_FORWARD)}
        has_attention = any(ops[role] for role in _ATTENTION)
        has_hidden = any(ops[role] for role in _FEED_FORWARD)
        in_attention = any(text.startswith((*_ATTENTION, "key size")) for text in texts)
        in_feed_forward = any(text.startswith(_FEED_FORWARD) for text in texts)
        where = ""
        if has_attention and has_hidden and in_attention != in_feed_forward:
            where = "attention only, " if in_attention else "feed-forward only, "
        if self._is_ulysses():
            return  # heads in attention alone: told with the positions
        megatron = " (Megatron)" if in_attention and in_feed_forward else ""
        text = f"tensor parallel{megatron} over {{axes}}: {where}{_listed(texts)}"
        yield _Remark("tensor parallel", text, max(shares))

    def _experts(self) -> Iterable[_Remark]:
        share, layers = self.share_of_role("experts")
        if share >= LEAST_SHARE:
            text = f"expert parallel over {{axes}}{layers or _of_work(share)}"
            yield _Remark("expert parallel", text, share)

    def _vocabulary(self) -> Iterable[_Remark]:
        share, _ = self.share_of_role("vocabulary")
        cut = [
            *(["embedding"] if self.tables > 0.5 else []),
            *(["logits"] if share >= LEAST_SHARE else []),
        ]
        if cut:
            text = f"vocabulary parallel over {{axes}} ({_listed(cut)})"
            yield _Remark("vocabulary parallel", text, max(share, self.tables))

    def _sequence_share(self) -> tuple[float, str]:
        """(share of the weights' products that are split along positions, in which layers)."""
        products = [op for op in self._ops_with("sequence") if op not in self.parts.attention]
        return self._share(products, ("sequence",))

    def _is_ulysses(self) -> bool:
        """Are activations cut along positions, and only attention along heads?"""
        projections = [
            op
            for role in _ATTENTION
            for op in self._ops_with(role)
            if op not in self.parts.attention
        ]
        return (
            self._sequence_share()[0] > 0.3
            and self._share(self.parts.attention, _ATTENTION)[0] > 0.3
            and self._share(projections, _ATTENTION)[0] < 0.3
        )

    def _positions(self) -> Iterable[_Remark]:
        """Activations that are cut along the sequence, in attention and outside of it."""
        in_attention, layers = self._share(self.parts.attention, ("sequence", "cache"))
        outside, outside_layers = self._sequence_share()
        residual_bytes = stream_bytes = 0
        for value in self.parts.residual:
            size = self.program.nbytes(value)
            stream_bytes += size
            residual_bytes += size * (self.kept_role(value) == "sequence")
        stream = residual_bytes / stream_bytes if stream_bytes else 0.0
        if in_attention >= 0.3 and not self.parts.roles.arguments.caches:
            where = layers or _part(in_attention)
            rest = "" if outside > 0.3 or stream > 0.3 else ", in attention only"
            text = f"context parallel over {{axes}}{where}: the sequence is cut{rest}"
            yield _Remark("context parallel", text, in_attention)
        elif self._is_ulysses():
            text = "sequence parallel over {axes}, with heads cut in attention (Ulysses)"
            yield _Remark("sequence parallel", text + outside_layers, outside)
        elif stream > 0.3 and outside <= 0.3:
            text = "residual stream cut along the sequence over {axes} (sequence parallel)"
            yield _Remark("sequence parallel", text + _of_bytes(stream), stream)
        elif outside >= LEAST_SHARE:
            where = " outside of attention" if self.parts.attention else ""
            text = f"the sequence is cut over {{axes}}{where}" + (outside_layers or _part(outside))
            yield _Remark("sequence parallel", text, outside)

    def _cache(self) -> Iterable[_Remark]:
        caches = self.parts.roles.arguments.caches
        sizes: Counter[str] = Counter()
        for cache in caches:
            sizes[self.kept_role(cache)] += self.program.nbytes(cache)
        words = {"cache": "positions", "sequence": "positions", "key": "key size"}
        for role, size in sizes.most_common():
            share = size / sizes.total()
            if role != "whole" and share >= LEAST_SHARE:
                text = f"decoding cache cut along {words.get(role, role)} over {{axes}}"
                yield _Remark("decoding cache", text + _of_bytes(share), share)

    def _space_and_graph(self) -> Iterable[_Remark]:
        for role, term, text in (
            ("space", "spatial", "images cut in space over {axes}, with halo exchange"),
            ("edges", "graph", "edges of the graph cut over {axes}"),
            ("nodes", "graph", "nodes of the graph cut over {axes}"),
        ):
            share = self.split_work[role] / self.total
            if share >= LEAST_SHARE:
                yield _Remark(term, text + _of_work(share), share)

    def _others(self) -> Iterable[_Remark]:
        """Work that is split along dims for which there is no term."""
        for role in ("features", "router", "layers", "other dims"):
            share = self.split_work[role] / self.total
            if share >= LEAST_SHARE:
                weights = self._weights_split(role) if role != "layers" else ""
                text = f"{role}{weights} cut over {{axes}} in {share:.0%} of the FLOPs"
                yield _Remark("cut otherwise", text, share)

    def _weights_split(self, role: str) -> str:
        """The weights whose products are split along dims of a part, heaviest first."""
        sizes: Counter[str] = Counter()
        for parameter, roles in self.used.items():
            if 2 * roles[role] > roles.total():
                word = telling_word(self.program.value_name[parameter])
                sizes[word] += self.program.nbytes(parameter)
        names = [word for word, _ in sizes.most_common(3)]
        return f" of {_listed(names)}" if names else ""

    def _repeated(self) -> Iterable[_Remark]:
        share = self.split_work["whole"] / self.total
        if share >= 0.1:
            text = f"{share:.0%} of the FLOPs done alike by all devices along {{axes}}"
            yield _Remark("whole", text, share)


def _whole_weights(parts: ProgramParts, plan: ShardingPlan) -> list[Trait]:
    """Weights and states that every device holds in full, if they have a share of the bytes."""
    program, traits = plan.program, list[Trait]()
    for words, arguments in (("weights", parts.parameters), ("optimizer states", parts.states)):
        all_bytes = sum(map(program.nbytes, arguments))
        whole = [argument for argument in arguments if not plan.lowered.layouts[argument]]
        whole_bytes = sum(map(program.nbytes, whole))
        if all_bytes and whole_bytes / all_bytes >= 0.1:
            share = whole_bytes / all_bytes
            which = "all" if share > ALMOST_ALL else f"{share:.0%} of the"
            text = f"{which} {words} whole on every device ({bytes_text(whole_bytes)})"
            traits.append(Trait("whole", plan.mesh.axes, text, share))
    caches = parts.roles.arguments.caches
    whole = [cache for cache in caches if not plan.lowered.layouts[cache]]
    if whole:
        whole_bytes = sum(map(program.nbytes, whole))
        text = f"decoding cache whole on every device ({bytes_text(whole_bytes)})"
        share = whole_bytes / sum(map(program.nbytes, caches))
        traits.append(Trait("whole", plan.mesh.axes, text, share))
    return traits


def _with_time(trait: Trait, cost: Cost) -> Trait:
    """A trait with no term of its own, with the time that collectives over its axes take."""
    if trait.term != "cut otherwise" or not cost.time_s:
        return trait
    time_s = sum(row.time_s for row in cost.collectives if set(row.axes) & set(trait.axes))
    share = time_s / cost.time_s
    if share < LEAST_SHARE:
        return trait
    return trait._replace(text=f"{trait.text} (collectives over it: {share:.0%} of the time)")


def _listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def _of_work(share: float) -> str:
    return "" if share > ALMOST_ALL else f" in {share:.0%} of the FLOPs"


def _part(share: float) -> str:
    return "" if share > ALMOST_ALL else f" ({share:.0%})"


def _of_bytes(share: float) -> str:
    return "" if share > ALMOST_ALL else f" ({share:.0%} of its bytes)"
