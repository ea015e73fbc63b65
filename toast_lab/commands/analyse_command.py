"""``toast-lab analyse``: print the static analysis of a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import defaultdict
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, output, reports
from toast_lab.text import JsonObject, first_items_text, line_text

if TYPE_CHECKING:
    from toast_lab.conflicts.analysis import Analysis
    from toast_lab.conflicts.colouring import ColourGroup, Conflict
    from toast_lab.conflicts.dimension_graph import ConflictPlace
    from toast_lab.ir.model import Model
    from toast_lab.sharding.mesh import Mesh

SHOWN_ROWS = 40


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab analyse``."""
    command_options.model(parser)
    parser.add_argument(
        "--mesh", help='also list the dims that this mesh does not divide ("4x2" or data=4,model=2)'
    )
    command_options.flag(parser, "--listing", "print the program, every dim with its colour")
    command_options.flag(parser, "--names", "print the program, every dim with its own name")
    command_options.everything(parser)


def run(args: Namespace) -> int:
    """Analyse a model and print its colours, its conflicts and the ops that cannot be sharded."""
    from toast_lab.sharding.mesh import make_mesh

    mesh = make_mesh(args.mesh) if args.mesh else None
    model = common.load_model(args)
    analysis = common.analyse(args, model)
    texts = _listings(args, analysis)
    if texts and not args.json:
        return output.emit(args, texts, lambda console: print("\n\n".join(texts.values())))
    report = {**to_data(model, analysis, mesh), **texts} if args.json else {}
    return output.emit(args, report, lambda console: _show(console, analysis, mesh, args.all))


def _listings(args: Namespace, analysis: Analysis) -> dict[str, str]:
    from toast_lab.conflicts.analysis import annotated_listing, names_listing

    texts = {}
    if args.listing:
        texts["listing"] = annotated_listing(analysis)
    if args.names:
        texts["names_listing"] = names_listing(analysis)
    return texts


def to_data(model: Model, analysis: Analysis, mesh: Mesh | None) -> JsonObject:
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
                "name": group.name,
                "size": group.size,
                "shardable": group.shardable,
                "names": group.n_names,
                "colours": [analysis.colour_name[colour] for colour in group.colours],
                "arguments": [names[argument] for argument in group.arguments],
                "resolutions": list(group.resolutions),
            }
            for group in analysis.groups
        ],
        "conflicts": [_conflict_data(analysis, conflict) for conflict in analysis.conflicts],
        "compatibility_sets": [
            {**compatible._asdict(), "colour": analysis.colour_name[compatible.colour]}
            for compatible in analysis.compatibility_sets
        ],
        "coverage": reports.coverage_data(coverage(analysis)),
        "divisibility": reports.divisibility_data(divisibility(analysis, mesh)) if mesh else None,
    }


def _conflict_data(analysis: Analysis, conflict: Conflict) -> JsonObject:
    return {
        "conflict": conflict.index,
        "set": conflict.set,
        "colour": analysis.colour_name[conflict.colour],
        "sides": [analysis.name_text[name] for name in conflict.sides],
        "places": [_place_data(analysis, place) for place in conflict.places],
    }


def _place_data(analysis: Analysis, place: ConflictPlace) -> JsonObject:
    program = analysis.program
    value = program.value_name[place.value]
    if place.use < 0:
        op = int(program.value_op[place.value])
        place_text = f"definition of {value}"
    else:
        op = int(program.use_op[place.use])
        results = program.results(op)
        user = program.value_name[results[0]] if results else program.kind[op]
        place_text = f"use of {value} in {user}"
    return {
        "place": place_text,
        "dims": [place.first_dim, place.second_dim],
        "where": program.where(op),
    }


def _show(console: output.Out, analysis: Analysis, mesh: Mesh | None, everything: bool) -> None:
    from toast_lab.conflicts.coverage import coverage
    from toast_lab.sharding.divisibility import divisibility

    limit = None if everything else SHOWN_ROWS
    program = analysis.program
    console.print(str(analysis.model))
    console.print(
        f"{program.n_factors} names, {len(analysis.colour_name)} colours in {len(analysis.groups)} "
        "groups, "
        f"{len(analysis.conflicts)} conflicts, {len(analysis.compatibility_sets)} compatibility "
        "sets, "
        f"{analysis.n_resolutions} resolutions"
    )
    console.print()
    groups = [group for group in analysis.groups if group.size > 1]
    # Constants have no edges in M, so that each of their dims is a separate colour of no interest.
    shown_groups = [group for group in groups if everything or group.arguments or group.n_names > 1]
    shown_groups.sort(key=lambda group: (not group.shardable, -group.n_names))
    console.table(
        "Colour groups (sizes above 1)",
        ("group", ">size", ">names", ">colours", "~arguments", ">resolutions", "can be sharded"),
        [_group_row(analysis, group) for group in shown_groups],
        limit,
    )
    if len(shown_groups) < len(groups):
        console.print(
            f"and {len(groups) - len(shown_groups)} more groups of a single name, on no argument "
            "(mostly constants)\n"
        )
    _show_conflicts(console, analysis, everything)
    reports.show_coverage(console, coverage(analysis), everything=everything)
    if mesh:
        reports.show_divisibility(console, divisibility(analysis, mesh), everything=everything)


def _group_row(analysis: Analysis, group: ColourGroup) -> tuple[object, ...]:
    names = analysis.program.value_name
    return (
        *(group.name, group.size, group.n_names, len(group.colours)),
        first_items_text(names[argument] for argument in group.arguments),
        2 ** len(group.resolutions) if group.resolutions else "-",
        "yes" if group.shardable else "no",
    )


def _show_conflicts(console: output.Out, analysis: Analysis, everything: bool) -> None:
    """Print one table per set; of sets that share a resolution only the first, by default."""
    sets_of_resolution: dict[int, list[int]] = defaultdict(list)
    for compatible in analysis.compatibility_sets:
        sets_of_resolution[compatible.resolution].append(compatible.index)
    for resolution, set_indices in sets_of_resolution.items():
        for set_index in set_indices if everything else set_indices[:1]:
            compatible = analysis.compatibility_sets[set_index]
            rows = []
            for conflict_index in compatible.conflicts:
                data = _conflict_data(analysis, analysis.conflicts[conflict_index])
                place, *others = data["places"]
                other_places = f" (+{len(others)})" if others else ""
                rows.append(
                    (*data["sides"], place["place"] + other_places, line_text(place["where"]))
                )
            title = (
                f"Compatibility set {set_index}, colour {analysis.colour_name[compatible.colour]}, "
                f"resolution {resolution}"
            )
            if len(set_indices) > 1 and not everything:
                title += f" ({len(set_indices) - 1} more sets are isomorphic and share it)"
            console.table(
                title,
                ("side 0", "side 1", "~meet at", "~source"),
                rows,
                None if everything else SHOWN_ROWS,
            )
