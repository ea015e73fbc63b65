"""``ColourRoles``: the part that each colour plays in a program, found from its use alone.

No name is read, except that a colour called "batch" is the batch. The parts:

=============  ====================================================================================
batch          leads the data, on most computed values, and weights are never summed over it
sequence       positions: both dims of attention scores, or what a loop walks, one step a round
cache          positions of a cache: an argument that is written at a position and comes back
nodes, edges   of a graph: rows that are looked up and added into, and what looks them up
space          dims that a convolution slides over
experts        shared by data and a weight in a product, and chosen among by a router
router         one score for each expert
heads          kept apart in attention: in products of data with data, on positions
key            summed over in attention scores, or made by its values: the size of a head
vocabulary     rows of a table that data looks up, or what a softmax of the outputs chooses from
features       the residual stream: read by weights before other weights write it again
hidden         made by one weight and summed over by a later one
channels       the same, of convolutions
outputs        made by a weight, and by none read again
layers         stacked weights, of which a loop takes one a round
=============  ====================================================================================

A colour group has the part that most of its colours play; the rest play none. Start reading at
``roles``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from toast_lab.conflicts.argument_words import telling_word
from toast_lab.conflicts.colouring import Colouring
from toast_lab.conflicts.data_arguments import (
    ArgumentKinds,
    groups_of,
    is_whole_number,
    scattered_groups,
    sort_arguments,
    walked_groups,
)
from toast_lab.conflicts.uses_of_colours import (
    DATA_ORIGIN,
    WEIGHT_ORIGIN,
    Uses,
    WeightProduct,
    products_by_colour,
    uses_of_colours,
)
from toast_lab.errors import InvalidInput, did_you_mean
from toast_lab.text import as_html, table

#: All parts, those of data first.
ROLES = (
    "batch",
    "sequence",
    "cache",
    "nodes",
    "edges",
    "space",
    "experts",
    "router",
    "heads",
    "key",
    "vocabulary",
    "features",
    "hidden",
    "channels",
    "outputs",
    "layers",
)


_LOOKED_UP = "data looks up rows of"
_OF_INPUTS = "of the inputs"


class PlayedRole(NamedTuple):
    """The part that a colour group plays."""

    role: str  #: one of ``ROLES``
    colour: str  #: name of the group
    group: int
    size: int
    colour_count: int  #: colours of the group, one for each of several layers alike
    evidence: str  #: the uses from which the part follows
    #: what people call it, where that says more than the role: ``d_model`` of the features of a
    #: Transformer, ``height`` of space; empty for a role that says too little by itself
    word: str


@dataclasses.dataclass(frozen=True)
class ColourRoles:
    """The parts that the colours of a program play.

    ``str()`` prints a table with the evidence, and the parts that no colour plays.
    """

    played: tuple[PlayedRole, ...]  #: in the order of ``ROLES``, larger sizes first
    arguments: ArgumentKinds
    weight_products: tuple[WeightProduct, ...]  #: of the forward pass, in program order
    walked: frozenset[int]  #: colour groups of dims that loops walk, one slice a round
    is_cache_by_heads: bool  #: every cache has a dim of heads
    doubt: str  #: why there is no batch; empty if there is one

    def groups(self, *roles: str) -> tuple[int, ...]:
        """The colour groups that play one of these parts.

        Raises:
            InvalidInput: there is no such part.
        """
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            words = ", ".join(f"{role!r}{did_you_mean(role, ROLES)}" for role in unknown)
            raise InvalidInput(f"no part is called {words}; there are {', '.join(ROLES)}")
        return tuple(row.group for role in roles for row in self.played if row.role == role)

    def of(self, colour: str) -> str:
        """The part of a colour group, by its name; empty if it plays none."""
        return next((row.role for row in self.played if row.colour == colour), "")

    def of_group(self, group: int) -> str:
        """The part of a colour group, by its index; empty if it plays none."""
        return next((row.role for row in self.played if row.group == group), "")

    def __str__(self) -> str:
        rows = [
            (
                row.role,
                f"{row.colour} x {row.colour_count}" if row.colour_count > 1 else row.colour,
                row.size,
                row.evidence,
            )
            for row in self.played
        ]
        absent = [role for role in ROLES if not self.groups(role)]
        lines = [table(("role", "colour", ">size", "because"), rows, limit=200)]
        if self.doubt:
            lines.append(f"No batch: {self.doubt}.")
        if absent:
            lines.append(f"No colour plays: {', '.join(absent)}.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return as_html(self)


def roles(analysis: Colouring) -> ColourRoles:
    """Find the part that each colour plays, with the evidence.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("transformer", layers=2, mode="forward")
        >>> parts = tl.roles(tl.analyse(model))
        >>> [(row.role, row.colour) for row in parts.played][:3]
        [('batch', 'batch'), ('sequence', 'sequence'), ('heads', 'heads')]
        >>> parts.of("hidden")
        'hidden'
    """
    arguments = sort_arguments(analysis)
    uses = uses_of_colours(analysis, arguments)
    parts = _Parts(analysis, arguments, uses)
    heads = {
        analysis.group[colour] for colour, (role, _) in parts.by_colour.items() if role == "heads"
    }
    played = tuple(
        row
        for by_colour in (parts.by_colour, parts.as_well)
        for row in _by_group(analysis, by_colour, parts.words())
    )
    played = tuple(sorted(played, key=lambda row: (ROLES.index(row.role), -row.size, row.group)))
    has_batch = any(row.role == "batch" for row in played)
    doubt = "" if has_batch else (arguments.doubt or parts.why_no_batch)
    return ColourRoles(
        played=played,
        arguments=arguments,
        weight_products=uses.weight_products,
        walked=frozenset(parts.walked),
        is_cache_by_heads=all(
            not heads.isdisjoint(groups_of(analysis, cache)) for cache in arguments.caches
        ),
        doubt=doubt,
    )


def _by_group(
    analysis: Colouring, by_colour: dict[int, tuple[str, str]], words: dict[int, str]
) -> tuple[PlayedRole, ...]:
    votes: dict[int, Counter[str]] = {}
    evidence: dict[tuple[int, str], str] = {}
    word: dict[tuple[int, str], str] = {}
    for colour, (role, text) in sorted(by_colour.items()):
        group = int(analysis.group[colour])
        votes.setdefault(group, Counter())[role] += 1
        evidence.setdefault((group, role), text)
        word.setdefault((group, role), words.get(colour, role))
    played = []
    for group, counts in votes.items():
        role = counts.most_common(1)[0][0]
        of_group = analysis.groups[group]
        played.append(
            PlayedRole(
                role=role,
                colour=of_group.name,
                group=group,
                size=of_group.size,
                colour_count=len(of_group.colours),
                evidence=evidence[group, role],
                word=word[group, role],
            )
        )
    return tuple(played)


class _Parts:
    """Gives each colour its part; the first rule that applies decides."""

    def __init__(self, analysis: Colouring, arguments: ArgumentKinds, uses: Uses) -> None:
        self.analysis, self.arguments, self.uses = analysis, arguments, uses
        self.program = analysis.program
        self.why_no_batch = ""
        self.by_colour: dict[int, tuple[str, str]] = {}
        self.as_well: dict[int, tuple[str, str]] = {}  # second parts
        self.expert_counts: set[int] = set()
        self.walked = walked_groups(analysis)
        self.positions = self._positions()
        rules: tuple[Callable[[], Iterator[tuple[int, str, str]]], ...] = (
            self._graph,
            self._cache,
            self._batch,
            self._space,
            self._sequence,
            self._layers,
            self._heads_and_keys,
            self._experts,
            self._vocabulary,
            self._features_and_hidden,
        )
        for rule in rules:
            for colour, role, text in rule():
                if self.analysis.colours[colour].size <= 1:
                    continue
                first_role, _ = self.by_colour.setdefault(colour, (role, text))
                # Tokens that are sorted by their experts have one colour with them.
                if (first_role, role) == ("batch", "experts"):
                    self.as_well[colour] = (role, text)

    # -- words for people --------------------------------------------------------------------------

    def words(self) -> dict[int, str]:
        """What people call colours, where that differs from the role."""
        words = dict[int, str]()
        shown = {
            colour
            for value in (*self.arguments.data, *self._computed_outputs())
            for colour in self._colours(value)
        }
        of_convolutions = {
            colour
            for product in self.uses.weight_products
            if product.is_convolution
            for colour in product.summed | product.produced
        }
        of_keys = self._words_of_keys()
        has_attention = any(role == "heads" for role, _ in self.by_colour.values())
        for colour, (role, text) in self.by_colour.items():
            if role == "vocabulary":
                words[colour] = self._word_of_table(colour)
            elif role == "key":
                words[colour] = of_keys.get(colour, "head_dim")
            elif role == "space":
                words[colour] = self._word_of_space(colour)
            elif role == "features" and colour in of_convolutions:
                words[colour] = "channels"
            elif role == "features" and has_attention and not text.startswith(_OF_INPUTS):
                words[colour] = "d_model"
            elif role == "outputs" or text.startswith(_OF_INPUTS):
                # What no weight makes, or none reads, need not be an input or output of the program
                words[colour] = role if colour in shown else ""
        return words

    def _computed_outputs(self) -> list[int]:
        """Results of a program that does not train."""
        return [] if self.arguments.trains else self.program.outputs.tolist()

    def _word_of_table(self, colour: int) -> str:
        tables, outputs = set[int](), set[int]()
        _, producing = products_by_colour(self.uses.weight_products)
        for other, (role, evidence) in self.by_colour.items():
            if role == "vocabulary":
                size = self.analysis.colours[other].size
                if evidence.startswith(_LOOKED_UP):
                    tables.add(other)
                if other in self.uses.softmax or other in producing:
                    outputs.add(size)
        if not tables:
            return "classes"
        is_of_outputs = self.analysis.colours[colour].size in outputs
        return "vocab" if is_of_outputs or tables == {colour} else "entries"

    def _words_of_keys(self) -> dict[int, str]:
        """The size of a head in attention scores, or of what they weigh: the first use decides."""
        words, positions = dict[int, str](), self._all_positions
        for product in self.uses.data_products:
            kept = product.left | product.right
            if kept & positions:
                words = {**dict.fromkeys(product.summed, "head_dim"), **words}
            if product.summed & positions:
                words = {**dict.fromkeys(kept, "value_dim"), **words}
        return words

    def _word_of_space(self, colour: int) -> str:
        words = {2: ("height", "width"), 3: ("depth", "height", "width")}
        for product in self.uses.weight_products:
            if colour in product.space and len(product.space) in words:
                result = self._colours(self.program.results(product.op)[0])
                in_order = [other for other in result if other in product.space]
                return words[len(product.space)][in_order.index(colour)]
        return "space"

    def _argument(self, argument: int) -> str:
        return (
            telling_word(self.program.value_name[argument])
            if argument >= 0
            else "a computed tensor"
        )

    def _listed(self, arguments: Iterable[int]) -> str:
        names = list(dict.fromkeys(self._argument(argument) for argument in arguments))
        shown = ", ".join(names[:3])
        return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown

    def _colours(self, value: int) -> list[int]:
        names = self.program.def_names(value)
        return [int(self.analysis.colour[name]) for name in names]

    # -- parts of data -----------------------------------------------------------------------------

    def _positions(self) -> dict[int, str]:
        """Colours of positions in attention, each with its evidence."""
        positions: dict[int, str] = {}
        products = self.uses.data_products
        of_products = {
            colour
            for product in self.uses.weight_products
            for colour in product.summed | product.produced | product.shared
        }
        for product in products:
            for colour in product.left & product.right - of_products:
                positions.setdefault(colour, "both dims of attention scores: their conflict")
        kept = {colour for product in products for colour in product.left | product.right}
        for product in products:
            for colour in product.summed & self.uses.softmax & kept:
                if colour not in self.uses.on_weights:
                    positions.setdefault(
                        colour, "a softmax runs over it, and attention sums over it"
                    )
        return positions

    def _graph(self) -> Iterator[tuple[int, str, str]]:
        scattered = scattered_groups(self.analysis)
        nodes, edges = set[int](), set[int]()
        for lookup in self.uses.lookups:
            rows = {
                colour
                for colour in lookup.rows - self.uses.on_weights
                if int(self.analysis.group[colour]) in scattered
            }
            if lookup.table == DATA_ORIGIN and rows and not lookup.rows - rows:
                nodes |= rows
                edges |= lookup.index_dims - rows
        integer_dims = {
            colour
            for argument in self.arguments.data
            if is_whole_number(self.program, argument)
            for colour in self._colours(argument)
        }
        data_dims = {
            colour for argument in self.arguments.data for colour in self._colours(argument)[:1]
        }
        edges &= integer_dims
        for colour in sorted(edges) if nodes & data_dims else ():
            yield colour, "edges", "whole numbers along it look up rows of nodes"
        for colour in sorted(nodes & data_dims) if edges else ():
            yield colour, "nodes", "its rows are looked up, and sums are added into them"

    def _cache(self) -> Iterator[tuple[int, str, str]]:
        for argument, dims in self.arguments.caches.items():
            colours = self._colours(argument)
            for dim in dims:
                group = int(self.analysis.group[colours[dim]])
                if group not in self.arguments.batches:
                    name = self._argument(argument)
                    yield (
                        colours[dim],
                        "cache",
                        f"{name} is written at a position of it and returned",
                    )

    def _batch(self) -> Iterator[tuple[int, str, str]]:
        sums = self.uses.gradient_count
        for batch, argument in self.arguments.batches.items():
            colours = self.analysis.groups[batch].colours
            name = self.analysis.group_name[batch]
            kind = next(
                (self.by_colour[colour][0] for colour in colours if colour in self.by_colour), ""
            )
            if kind:
                self.why_no_batch = f"{name} leads the data, but counts {kind} of a graph"
                continue
            is_attended = any(
                not product.summed.isdisjoint(colours)
                and not (product.left | product.right).isdisjoint(colours)
                for product in self.uses.data_products
            )
            if is_attended and not self.arguments.trains:
                self.why_no_batch = f"{name} leads the data, but attention looks along it"
                continue
            lead = "" if argument is None else f"leads {self._argument(argument)}, "
            rest = "never summed over with a weight"
            if sums and self.arguments.trains:
                rest = f"{sums} products sum over it, for gradients of weights"
            for colour in colours:
                yield colour, "batch", lead + rest

    def _sequence(self) -> Iterator[tuple[int, str, str]]:
        for colour, text in self.positions.items():
            yield colour, "sequence", text
        for argument in sorted(self.arguments.data):
            for colour in self._colours(argument):
                if int(self.analysis.group[colour]) in self.walked:
                    name = self._argument(argument)
                    yield colour, "sequence", f"a loop walks it in {name}, one step a round"
        for argument in sorted(self.arguments.data):
            if is_whole_number(self.program, argument):
                for colour in self._colours(argument)[1:]:
                    if colour not in self.uses.on_weights:
                        yield (
                            colour,
                            "sequence",
                            f"positions of the whole numbers in {self._argument(argument)}",
                        )

    def _layers(self) -> Iterator[tuple[int, str, str]]:
        for argument in sorted(self.arguments.weights):
            for colour in self._colours(argument):
                if int(self.analysis.group[colour]) in self.walked:
                    name = self._argument(argument)
                    yield colour, "layers", f"a loop takes one slice of {name} a round"

    # -- parts of weights --------------------------------------------------------------------------

    def _experts(self) -> Iterator[tuple[int, str, str]]:
        routed = self.uses.chosen | self.uses.softmax
        summing, producing = products_by_colour(self.uses.weight_products)
        score_counts = {
            self.analysis.colours[colour].size
            for colour in producing
            if colour in routed and colour not in summing
        }
        for product in self.uses.weight_products:
            is_ragged = self.program.kind[product.op] == "chlo.ragged_dot"
            dims = list(
                zip(self._colours(product.weight), self.program.dims(product.weight), strict=True)
            )
            for colour in () if product.is_convolution else sorted(product.shared):
                counts = {size for other, size in dims if other == colour}
                if is_ragged or colour in routed or counts & score_counts:
                    self.expert_counts |= counts
                    name = self._argument(product.weight)
                    yield colour, "experts", f"each has its own {name}, and a router chooses it"

    @property
    def _all_positions(self) -> set[int]:
        return set(self.positions) | {
            colour for colour, (role, _) in self.by_colour.items() if role in ("sequence", "cache")
        }

    def _heads_and_keys(self) -> Iterator[tuple[int, str, str]]:
        positions = self._all_positions
        heads, keys = dict[int, str](), dict[int, str]()
        for product in self.uses.data_products:
            kept = product.left | product.right
            if not positions & kept or positions & product.summed:
                continue
            for colour in product.shared - positions:
                heads.setdefault(colour, "kept apart in attention scores, and in what they weigh")
            for colour in kept - positions:
                if colour in self.uses.on_weights:
                    heads.setdefault(colour, "of queries alone: all heads share a key and a value")
            for colour in product.summed - positions:
                keys.setdefault(colour, "summed over in attention scores")
        for product in self.uses.data_products:
            if positions & product.summed:
                for colour in (product.left | product.right) & self.uses.on_weights - positions:
                    keys.setdefault(colour, "kept where attention sums over positions")
        for colour, text in heads.items():
            if "summed" not in keys.get(colour, ""):
                if colour in self.uses.on_weights:
                    yield colour, "heads", text
                else:
                    yield colour, "sequence", "blocks of positions, kept apart in attention"
        for colour, text in keys.items():
            yield colour, "key", text

    def _vocabulary(self) -> Iterator[tuple[int, str, str]]:
        for lookup in self.uses.lookups:
            if lookup.table == WEIGHT_ORIGIN:
                name = self._argument(lookup.argument)
                for colour in sorted(lookup.rows & self.uses.on_weights):
                    yield colour, "vocabulary", f"{_LOOKED_UP} {name} along it"
        summing, producing = products_by_colour(self.uses.weight_products)
        for colour, products in producing.items():
            name = self._argument(products[0].weight)
            is_chosen = colour in self.uses.softmax | self.uses.chosen and colour not in summing
            if is_chosen and self.analysis.colours[colour].size in self.expert_counts:
                yield colour, "router", f"made by {name}: scores, one for each expert"
            elif colour in self.uses.softmax and colour not in summing:
                yield colour, "vocabulary", f"made by {name}, and a softmax chooses from it"

    def _features_and_hidden(self) -> Iterator[tuple[int, str, str]]:
        summing, producing = products_by_colour(self.uses.weight_products)
        tables = {
            colour: lookup.argument
            for lookup in reversed(self.uses.lookups)
            if lookup.table == WEIGHT_ORIGIN
            for colour in lookup.kept & self.uses.on_weights
        }
        for colour in sorted({*summing, *producing, *tables}):
            readers = [product.weight for product in summing.get(colour, ())]
            makers = [product.weight for product in producing.get(colour, ())]
            if self._recurs(colour, summing):
                yield (
                    colour,
                    "hidden",
                    f"state of a loop over steps, which {self._listed(readers)} read",
                )
            elif self._is_written_again(colour, summing, producing):
                text = f"read by {self._listed(readers)} before {self._listed(makers)} add to it"
                yield colour, "features", text
            elif colour in tables:
                text = f"rows of {self._argument(tables[colour])}, read by {self._listed(readers)}"
                yield colour, "features", text
            elif not makers:
                yield colour, "features", f"{_OF_INPUTS}, read by {self._listed(readers)}"
            elif readers:
                is_convolution = any(product.is_convolution for product in producing[colour])
                role = "channels" if is_convolution else "hidden"
                text = f"made by {self._listed(makers)}, summed over with {self._listed(readers)}"
                yield colour, role, text
            elif self.analysis.colours[colour].size in self._table_sizes():
                name = self._listed(makers)
                yield colour, "vocabulary", f"made by {name}, as many as a table has rows"
            else:
                yield colour, "outputs", f"made by {self._listed(makers)}, and read by no weight"

    def _recurs(self, colour: int, summing: dict[int, list[WeightProduct]]) -> bool:
        """Do weights lead from a colour to itself in a loop that walks data?"""
        walks_data = any(
            not self.walked.isdisjoint(groups_of(self.analysis, argument))
            for argument in self.arguments.data
        )
        return walks_data and any(
            colour in product.produced and self.program.trips[product.op] > 1.0
            for product in summing.get(colour, ())
        )

    def _table_sizes(self) -> set[int]:
        """Numbers of rows of the tables that data looks up."""
        roles = self.by_colour.items()
        return {
            self.analysis.colours[colour].size
            for colour, (role, _) in roles
            if role == "vocabulary"
        }

    @staticmethod
    def _is_written_again(
        colour: int,
        summing: dict[int, list[WeightProduct]],
        producing: dict[int, list[WeightProduct]],
    ) -> bool:
        """Is a colour summed over with one weight before another one makes it?"""
        if colour not in summing or colour not in producing:
            return False
        first, last = summing[colour][0], producing[colour][-1]
        return first.op < last.op and first.weight != last.weight

    def _space(self) -> Iterator[tuple[int, str, str]]:
        for product in self.uses.weight_products:
            # A single dim that a kernel slides over is time: a sequence.
            for colour in sorted(product.space) if len(product.space) > 1 else ():
                yield colour, "space", f"{self._argument(product.weight)} slides over it"
