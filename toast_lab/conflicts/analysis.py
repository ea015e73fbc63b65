"""``Analysis``: everything that the static analysis derives from a program.

Start reading at ``analyse``. ``str(analysis)`` prints the paper's annotated listing.
Reference: TOAST sections 3 and 4.4.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import keyword
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toast_lab.conflicts import compatibility, dimension_graph, repeated
from toast_lab.conflicts.annotated_listing import listing
from toast_lab.conflicts.argument_words import last_key
from toast_lab.conflicts.colour_names import name_colours
from toast_lab.conflicts.colouring import (
    Colouring,
)
from toast_lab.conflicts.earlier_names import earlier_names
from toast_lab.conflicts.given_names import given_names
from toast_lab.conflicts.networkx_graph import networkx_graph
from toast_lab.errors import ToastError, did_you_mean, join_offenders
from toast_lab.ir.model import Model
from toast_lab.nda.names import name_dims
from toast_lab.text import bounded

if TYPE_CHECKING:
    import networkx


MOST_LINES = 2000  #: maximum length of the listing that ``str()`` gives


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis(Colouring):
    """Result of the analysis of one program: its colouring, with names.

    Examples:
        >>> import toast_lab as tl
        >>> analysis = tl.analyse(tl.load("attention", sequence=4096))
        >>> analysis.group_name
        ('S', 'D', 'H1', 'H2')
        >>> len(analysis.conflicts), len(analysis.compatibility_sets), analysis.n_resolutions
        (5, 1, 2)
        >>> [analysis.name_text[name] for name in analysis.conflicts[0].sides]
        ['S#5', 'S#6']
    """

    def __getstate__(self) -> dict[str, Any]:
        """The state that other processes get: all but the model's source, see ``of_model``."""
        colour_name = self.colour_name  # part of it is the user's, and may come from the source
        return {
            **self.__dict__,
            "colour_name": colour_name,
            "model": self.model.without_source(),
        }

    def of_model(self, model: Model) -> Analysis:
        """Attach this analysis, made in another process, to ``model`` in this one."""
        analysis = object.__new__(Analysis)
        model = dataclasses.replace(model, program=self.program)
        analysis.__dict__.update({**self.__dict__, "model": model})
        return analysis

    def lowered_for(self, platform: str) -> Analysis:
        """The analysis of the function's program for a platform: "cpu", "tpu" or "gpu".

        It is this one if its program is for the platform. Colours keep the names that the user
        chose where the other program has them.

        Raises:
            FrontendError: see ``Model.lowered_for``.
        """
        model = self.model
        if platform in model.platforms:
            return self
        lowered, analyses = model.lowered_for(platform), model.lowerings.analyses
        key = (lowered.platforms, self.phases)
        if key not in analyses:
            analyses[key] = analyse(lowered, phases=self.phases)
        analysis: Analysis = analyses[key].of_model(lowered)
        names = self._chosen_names(analysis)
        return analysis.renamed(names) if names else analysis

    def _chosen_names(self, other: Analysis) -> dict[str, str]:
        """The names that the user chose, by the names that colours have in ``other``.

        Names come from use, which may differ there, so that dims of arguments tell which colour is
        meant.
        """
        names: dict[str, str] = {}
        for old, new in self.renames.items():
            colours = map(other._colour_of_dim, self._argument_dims(self.colour_name.index(new)))
            colour = next((c for c in colours if c is not None), other.colour_index(old))
            if colour is not None:
                names.setdefault(other.colour_name[colour], new)
        return names

    def _argument_dims(self, colour: int) -> Iterator[str]:
        """Dims of arguments that have a colour, as ``params['wq'].1``."""
        for argument in range(self.program.n_arguments):
            for dim, name in enumerate(self.program.def_names(argument)):
                if name >= 0 and self.colour[name] == colour:
                    yield f"{self.program.value_name[argument]}.{dim}"

    @functools.cached_property
    def colour_name(self) -> tuple[str, ...]:
        """[colours] name of each colour, all different; see ``colour_names``."""
        return name_colours(
            Colouring(
                **{field.name: getattr(self, field.name) for field in dataclasses.fields(Colouring)}
            )
        )

    @functools.cached_property
    def _earlier_names(self) -> dict[str, int]:
        """Colours by the names that earlier versions gave them."""
        given = given_names(self.program, self.colour, self.model)  # without renames
        names = earlier_names(self.program, self.colour, given)
        return {name: index for index, name in enumerate(names)}

    def colour_index(self, name: str) -> int | None:
        """Number of a colour by its name, or by one that earlier versions gave it; None if none."""
        if name in self.colour_name:
            return self.colour_name.index(name)
        return self._earlier_names.get(name)

    @functools.cached_property
    def name_text(self) -> tuple[str, ...]:
        """[N] readable unique text of each name: the k-th name of colour S is called S#k."""
        counters = [itertools.count() for _ in self.colour_name]
        return tuple(
            f"{self.colour_name[colour]}#{next(counters[colour])}"
            for colour in self.colour.tolist()
        )

    @property
    def n_resolutions(self) -> int:
        """Number of independent resolutions (2 per class of tied compatibility sets)."""
        return 2 * (int(self.ties.class_of.max()) + 1) if len(self.ties.class_of) else 0

    def group_index(self, name: str) -> int:
        """Index of a colour group, by its name, the name of one of its colours, or a dim: ``wq.1``.

        A dim belongs to the first argument with this path or, failing that, with this last key.

        Raises:
            ToastError: no colour group, colour or dim has this name.
        """
        if name in self.group_name:
            return self.group_name.index(name)
        colour = self._colour_of_dim(name)
        if colour is None:
            colour = self.colour_index(name)
        if colour is not None:
            return int(self.group[colour])
        shardable = [group.name for group in self.groups if group.shardable and group.n_names > 1]
        raise ToastError(
            f"no colour is called {name!r}{did_you_mean(name, shardable)}; colours: "
            f"{', '.join(shardable[:40])}"
        )

    def _colour_of_dim(self, text: str) -> int | None:
        """Colour of a dim of an argument, ``params['wq'].1``; None if there is no such dim."""
        path, _, dim = text.rpartition(".")
        paths = self.program.value_name[: self.program.n_arguments]
        for known_names in (paths, tuple(map(last_key, paths))):
            if path in known_names and dim.isdecimal():
                dims = self.program.def_names(known_names.index(path))
                return int(self.colour[dims[int(dim)]]) if int(dim) < len(dims) else None
        return None

    def renamed(self, names: Mapping[str, str]) -> Analysis:
        """A copy with some colours renamed: ``analysis.renamed({"x_rows": "batch"})``.

        Colours of repeated layers that are numbered after one of these, such as ``x_rows_1``, are
        numbered after its new name. Plans made with the copy keep the new names when they are
        saved.

        Raises:
            ToastError: a colour does not exist, or a new name is taken or cannot be written in an
                action; the message lists every offence.
        """
        new_names = dict(enumerate(self.colour_name))
        offences = list[str]()
        for old, new in names.items():
            index = self.colour_index(old)
            if index is None:
                offences.append(f"no colour is called {old!r}{did_you_mean(old, self.colour_name)}")
            elif offence := _name_offence(new):
                offences.append(f"{old}: {offence}" if len(names) > 1 else offence)
            else:
                new_names[index] = new
        offences += [
            f"another colour is called {name}"
            if name in self.colour_name
            else f"{count} colours would have the name {name}"
            for name, count in Counter(new_names.values()).items()
            if count > 1
        ]
        if offences:
            head = "these colours cannot be renamed:\n" if len(offences) > 1 else ""
            raise ToastError(head + (join_offenders(offences) if head else offences[0]))
        self._number_anew(new_names)
        renamed = {
            old: new
            for old, new in zip(self.colour_name, new_names.values(), strict=True)
            if old != new
        }
        given = self.given_names
        words = {index: new for index, new in new_names.items() if new in renamed.values()}
        analysis = object.__new__(Analysis)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        analysis.__dict__.update(
            {
                **fields,
                "colour_name": tuple(new_names.values()),
                "given_names": given._replace(of_dims={**given.of_dims, **words}),
                "renames": self._renames_with(renamed),
            }
        )
        return analysis

    def _number_anew(self, new_names: dict[int, str]) -> None:
        """Number colours after the new name of the first of their group, if they were before."""
        for group in self.groups:
            first, *others = group.colours
            old, new = self.colour_name[first], new_names[first]
            if old == new:
                continue
            for colour in others:
                name = self.colour_name[colour]
                if name == new_names[colour] and re.fullmatch(re.escape(old) + r"_\d+", name):
                    taken = {*new_names.values()}
                    numbered = (f"{new}_{number}" for number in itertools.count(1))
                    new_names[colour] = next(text for text in numbered if text not in taken)

    def _renames_with(self, names: Mapping[str, str]) -> dict[str, str]:
        """All renames so far, by the names that the analysis gave."""
        later = dict(names)
        earlier = {original: later.pop(new, new) for original, new in self.renames.items()}
        return {original: new for original, new in {**earlier, **later}.items() if original != new}

    def dim_text(self, name: int) -> str:
        """Colour of a name, which stands for it in listings."""
        return self.colour_name[self.colour[name]]

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The dimension graph, for the algorithms of networkx.

        Colours are its weakly connected components, with or without the conflicts. For instance, to
        find the cheapest places for a reshard that separates the two sides of a conflict::

            graph = analysis.to_networkx()
            of_m = networkx.Graph()  # undirected; flows have no direction here
            for source, target, edge in graph.edges(data=True):
                if edge["kind"] == "M":
                    of_m.add_edge(source, target, bytes=edge["bytes"])
            conflict = analysis.conflicts[0]
            left, right = (analysis.name_text[name] for name in conflict.sides)
            cut_bytes, parts = networkx.minimum_cut(of_m, left, right, capacity="bytes")

        Returns:
            A node for each dimension name, labelled as in listings (``S#5``), with

            - ``index``: number of the name, as in ``Analysis.colour`` and ``Names``
            - ``colour``, ``group``: names of its colour and colour group
            - ``size``: of the dim, in elements
            - ``shardable``: whether an action may split it
            - ``factor_class``: what the op does along it, "pass", "reduction" and so on
            - ``op``, ``op_kind``: number and kind of the op that the name splits; an argument has
              the kind "argument"
            - ``value``, ``dim``, ``on``: where the name first appears: a value, the index of one of
              its dims, and "definition" or, for a dim that is summed over, "use"; -1 and empty if
              it appears nowhere
            - ``compatibility_set``, ``resolution``: of the first conflict of the name, -1 if it has
              none
            - ``side``: the bit of the resolution that splits this name, in most of its conflicts;
              -1 if it has none
            - ``source_line``: of the op, ``model.py:12``

            An edge of kind and key "M" from a name on a definition to the name of the same dim on a
            use, both of which should be split alike, with

            - ``value``, ``bytes``: the value passed (the first of several), and the bytes of all of
              them, unsharded; a reshard here moves that much, over all devices together
            - ``next_round``: whether the edge leads into the next round of a loop

            An edge of kind and key "conflict" from side 0 to side 1 of its compatibility set, with

            - ``conflict``, ``compatibility_set``, ``resolution``: their indices
            - ``value``, ``on``, ``first_dim``, ``second_dim``, ``source_line``: where the two names
              first meet; ``n_places`` counts all such places
        """
        return networkx_graph(self)

    def __repr__(self) -> str:
        return (
            f"<Analysis of {self.program.name}: {len(self.groups)} colour groups, "
            f"{len(self.conflicts)} conflicts>"
        )

    def __str__(self) -> str:
        """The program, each dim annotated with its colour (paper: identified with I and M)."""
        cut_note = (
            " lines: toast_lab.conflicts.analysis.annotated_listing(analysis) gives all of them"
        )
        return bounded(annotated_listing(self).split("\n"), MOST_LINES, cut_note)


def annotated_listing(analysis: Analysis) -> str:
    """The program, its dims identified with I and M: each shows its colour (figures 4c and 5a)."""
    program = analysis.program

    def colours_of(value: int) -> str:
        return "[" + ", ".join(map(analysis.dim_text, program.def_names(value))) + "]"

    return listing(program, colours_of)


def names_listing(analysis: Analysis) -> str:
    """The program, its dims identified with I only.

    Every definition and every use shows its own names (figures 4b and 5c).
    """
    program = analysis.program

    def bracketed(names: list[int]) -> str:
        return "[" + ", ".join(analysis.name_text[name] for name in names) + "]"

    return listing(
        program,
        lambda value: bracketed(program.def_names(value)),
        lambda use: bracketed(program.use_names(use)),
    )


def analyse(model: Model, *, phases: str = "joined") -> Analysis:
    """Name every dimension of a model and find its colours, conflicts and compatibility sets.

    Args:
        model: its program is analysed. Its ``dim_names`` name dims of arguments, by the argument's
            path or by the last key of that path (``{"wq": ("d_model", "heads", "key")}``); colours
            are named after them.
        phases: "joined" boxes conflicts wherever M allows; "separate" keeps a forward pass and its
            backward pass apart (the finer reading of TOAST section 3.5).

    Raises:
        ToastError: ``phases`` is neither of the two.

    Examples:
        >>> import toast_lab as tl
        >>> analysis = tl.analyse(tl.load("mlp", batch=64))
        >>> print(analysis)
        def mlp(x : [B, X],
                w1 : [X, U],
                w2 : [U, W]) {
          y : [B, U] = matmul(x, w1)
          z : [B, U] = max(y, 0)
          w : [B, W] = matmul(z, w2)
          return w
        }
    """
    if phases not in ("joined", "separate"):
        raise ToastError(f'phases must be "joined" or "separate", not {phases!r}')
    program = model.program
    names = name_dims(program)
    colour = dimension_graph.colour_names(names)
    places_of = dimension_graph.find_conflicts(names, colour)
    sets = compatibility.compatibility_sets(names, places_of, phases=phases)
    pairs = list(places_of)
    ties = repeated.tie_repeated(names, pairs, sets)
    arguments = repeated.argument_groups(program)
    group = repeated.colour_groups(names, colour, arguments)
    return Analysis(
        model=model,
        names=names,
        colour=colour,
        group=group,
        pairs=tuple(pairs),
        places=tuple(map(tuple, places_of.values())),
        sets=sets,
        ties=ties,
        argument_groups=tuple(map(tuple, arguments)),
        phases=phases,
    )


def _name_offence(name: object) -> str:
    """Why a colour cannot have this name; empty if it can."""
    if not isinstance(name, str) or not name:
        return "a colour needs a name"
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        return (
            f"{name!r} is not a name of letters, digits and underscores that begins with a letter"
        )
    return f"{name} is a word of Python" if keyword.iskeyword(name) else ""
