"""``toast-lab analyse``: what the static analysis found in a model."""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab.commands import common, output, reports
from toast_lab.text import line_text

if TYPE_CHECKING:
    from toast_lab.conflicts.analysis import Analysis, ColourGroup, Conflict
    from toast_lab.conflicts.graph import Place
    from toast_lab.ir.model import Model
    from toast_lab.sharding.mesh import Mesh

ROWS = 40


def run(args: argparse.Namespace) -> int:
    """Analyse a model and print colours, conflicts and what cannot be sharded."""
    from toast_lab.sharding.mesh import make_mesh

    mesh = make_mesh(args.mesh) if args.mesh else None
    model = common.load_model(args)
    analysis = common.analyse(args, model)
    texts = _listings(args, analysis)
    if texts and not args.json:
        return output.emit(args, texts, lambda out: _print_texts(texts))
    data = {**to_data(model, analysis, mesh), **texts} if args.json else {}
    return output.emit(args, data, lambda out: _show(out, args, model, analysis, mesh))


def _listings(args: argparse.Namespace, analysis: Analysis) -> dict[str, str]:
    from toast_lab.conflicts.analysis import annotated_listing, names_listing

    texts = {}
    if args.listing:
        texts["listing"] = annotated_listing(analysis)
    if args.names:
        texts["names_listing"] = names_listing(analysis)
    return texts


def _print_texts(texts: dict[str, str]) -> None:
    print("\n\n".join(texts.values()))


def to_data(model: Model, analysis: Analysis, mesh: Mesh | None) -> dict[str, Any]:
    """The analysis as plain data."""
    from toast_lab.conflicts.coverage import coverage
    from toast_lab.sharding.divisibility import divisibility

    names = analysis.program.value_name
    return {
        "model": output.model_data(model),
        "colours": len(analysis.colour_name),
        "resolutions": analysis.n_resolutions,
        "groups": [
            {
                "name": g.name,
                "size": g.size,
                "shardable": g.shardable,
                "names": g.n_names,
                "colours": [analysis.colour_name[c] for c in g.colours],
                "arguments": [names[a] for a in g.arguments],
                "resolutions": list(g.resolutions),
            }
            for g in analysis.groups
        ],
        "conflicts": [_conflict_data(analysis, c) for c in analysis.conflicts],
        "compatibility_sets": [
            {**s._asdict(), "colour": analysis.colour_name[s.colour]}
            for s in analysis.compatibility_sets
        ],
        "coverage": reports.coverage_data(coverage(analysis)),
        "divisibility": reports.divisibility_data(divisibility(analysis, mesh)) if mesh else None,
    }


def _conflict_data(analysis: Analysis, conflict: Conflict) -> dict[str, Any]:
    return {
        "conflict": conflict.index,
        "set": conflict.set,
        "colour": analysis.colour_name[conflict.colour],
        "sides": [analysis.name_text[n] for n in conflict.sides],
        "places": [_place_data(analysis, place) for place in conflict.places],
    }


def _place_data(analysis: Analysis, place: Place) -> dict[str, Any]:
    program = analysis.program
    value = program.value_name[place.value]
    if place.use < 0:
        op = int(program.value_op[place.value])
        what = f"definition of {value}"
    else:
        op = int(np.searchsorted(program.use_ptr, place.use, side="right")) - 1
        results = program.results(op)
        what = (
            f"use of {value} in "
            f"{program.value_name[results[0]] if len(results) else program.kind[op]}"
        )
    return {"place": what, "dims": [place.first_dim, place.second_dim], "where": program.where(op)}


def _show(
    out: output.Out, args: argparse.Namespace, model: Model, analysis: Analysis, mesh: Mesh | None
) -> None:
    from toast_lab.conflicts.coverage import coverage
    from toast_lab.sharding.divisibility import divisibility

    limit = None if args.all else ROWS
    p = analysis.program
    out.print(str(model))
    out.print(
        f"{p.n_factors} names, {len(analysis.colour_name)} colours in {len(analysis.groups)} "
        "groups, "
        f"{len(analysis.conflicts)} conflicts, {len(analysis.compatibility_sets)} compatibility "
        "sets, "
        f"{analysis.n_resolutions} resolutions"
    )
    out.print()
    groups = [g for g in analysis.groups if g.size > 1]
    # Constants have no edges in M, so each of their dims is a colour by itself, and of no interest.
    telling = [g for g in groups if args.all or g.arguments or g.n_names > 1]
    out.table(
        "Colour groups (sizes above 1)",
        ("group", ">size", ">names", ">colours", "~arguments", ">resolutions", "can be sharded"),
        [
            _group_row(analysis, g)
            for g in sorted(telling, key=lambda g: (not g.shardable, -g.n_names))
        ],
        limit,
    )
    if len(telling) < len(groups):
        out.print(
            f"and {len(groups) - len(telling)} groups of one name, on no argument "
            "(constants, mostly)"
        )
        out.print()
    _show_conflicts(out, analysis, args.all)
    reports.show_coverage(out, coverage(analysis), everything=args.all)
    if mesh:
        reports.show_divisibility(out, divisibility(analysis, mesh), everything=args.all)


def _group_row(analysis: Analysis, g: ColourGroup) -> tuple[object, ...]:
    arguments = output.few(analysis.program.value_name[a] for a in g.arguments)
    resolutions = 2 ** len(g.resolutions) if g.resolutions else "-"
    return (
        g.name,
        g.size,
        g.n_names,
        len(g.colours),
        arguments,
        resolutions,
        "yes" if g.shardable else "no",
    )


def _show_conflicts(out: output.Out, analysis: Analysis, everything: bool) -> None:
    """One table a set; of sets that are tied only the first, unless everything is asked for."""
    tied: dict[int, list[int]] = defaultdict(list)
    for s in analysis.compatibility_sets:
        tied[s.resolution].append(s.index)
    for resolution, members in tied.items():
        for index in members if everything else members[:1]:
            s = analysis.compatibility_sets[index]
            rows = []
            for k in s.conflicts:
                c = _conflict_data(analysis, analysis.conflicts[k])
                place = c["places"][0]
                more = f" (+{len(c['places']) - 1})" if len(c["places"]) > 1 else ""
                rows.append(
                    (c["sides"][0], c["sides"][1], place["place"] + more, line_text(place["where"]))
                )
            title = (
                f"Compatibility set {index}, colour {analysis.colour_name[s.colour]}, "
                f"resolution {resolution}"
            )
            if len(members) > 1 and not everything:
                title += f" ({len(members) - 1} more sets are isomorphic and share it)"
            out.table(
                title,
                ("side 0", "side 1", "~meet at", "~source"),
                rows,
                None if everything else ROWS,
            )
