"""``toast-lab machines``: list the machines that plans can be priced on.

It also shows how a mesh is laid out on a machine's links.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from toast_lab.commands import output
from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import MACHINES, machine
from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import LATENCY, RATE, SWITCHED, AxisLinks, lay_out
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.text import JsonObject, bytes_text


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab machines``."""
    parser.add_argument(
        "machine",
        metavar="MACHINE",
        nargs="?",
        help="only this one, by name or as a machine file (.toml)",
    )
    parser.add_argument(
        "--mesh",
        help='also show which links the axes of this mesh run on ("4x4x4", data=4,model=2)',
    )


def run(args: Namespace) -> int:
    """Print every machine, or one, with its numbers and their sources.

    With ``--mesh``, also print the links that each axis runs on.
    """
    if args.mesh and not args.machine:
        raise InvalidProblem(
            f'--mesh {args.mesh}: name a machine, too, as in "toast-lab machines tpu-v4 --mesh '
            '4x4x4"'
        )
    machines = [machine(args.machine)] if args.machine else list(MACHINES.values())
    report: JsonObject = {"machines": [_data(machine_model) for machine_model in machines]}
    if not args.mesh:
        return output.emit(args, report, lambda console: _show(console, machines))
    mesh = make_mesh(args.mesh)
    links = lay_out(machines[0], mesh)
    report["mesh"] = dict(zip(mesh.axes, mesh.sizes, strict=True))
    report["slice"] = list(links.slice)
    report["axes"] = [
        {
            "axis": axis,
            "size": size,
            "link_bytes_per_s": rate,
            "link_latency_s": latency,
            "switched": bool(switched),
            "where": where,
        }
        for axis, size, rate, latency, switched, where in _axes(mesh, links)
    ]

    def show(console: output.Out) -> None:
        _show_layout(console, machines[0], mesh, links)
        _show(console, machines)

    return output.emit(args, report, show)


def _axes(mesh: Mesh, links: AxisLinks) -> Any:
    columns = (*links.shape[:, [RATE, LATENCY, SWITCHED]].T, links.where)
    return zip(mesh.axes, mesh.sizes, *columns, strict=True)


def _data(machine_model: Machine) -> dict[str, object]:
    data = machine_model.as_dict()
    data["flops_per_s"] = data.pop("flops")
    return data


def _show(console: output.Out, machines: list[Machine]) -> None:
    console.table(
        "Machines (one device each)",
        ("name", ">bf16 FLOP/s", ">f32 FLOP/s", ">memory", ">memory/s", ">devices"),
        [_row(machine_model) for machine_model in machines],
    )
    console.table(
        "Links, innermost level first (rates of one device, of a torus along one dim)",
        ("name", "level", "topology", ">sends", ">hop", ">devices", "fitted collectives"),
        [
            _link_row(machine_model, link)
            for machine_model in machines
            for link in machine_model.links
        ],
    )
    rows = [
        (machine_model.name, number_name, source)
        for machine_model in machines
        for number_name, source in (
            *machine_model.sources.items(),
            *((link.name, link.source) for link in machine_model.links if link.source),
        )
    ]
    console.table("Sources", ("name", "number", "~where it is from"), rows)


def _row(machine_model: Machine) -> tuple[str, ...]:
    peaks = f"{machine_model.peak_flops('bf16'):.3g}", f"{machine_model.peak_flops('f32'):.3g}"
    sizes = bytes_text(machine_model.memory_bytes), _rate(machine_model.memory_bytes_per_s)
    return (
        machine_model.name,
        *peaks,
        *sizes,
        "any" if machine_model.max_devices is None else str(machine_model.max_devices),
    )


def _rate(bytes_per_s: float) -> str:
    """A rate in powers of ten, as in data sheets: ``90 GB/s``."""
    scale, unit = (1e12, "TB/s") if bytes_per_s >= 1e12 else (1e9, "GB/s")
    return f"{bytes_per_s / scale:.4g} {unit}"


def _link_row(machine_model: Machine, link: Link) -> tuple[str, ...]:
    topology = link.topology + (" " + "x".join(map(str, link.extents)) if link.extents else "")
    devices = "any" if link.devices is None else str(link.devices)
    return (
        machine_model.name,
        link.name,
        topology,
        _rate(link.bytes_per_s),
        output.time_text(link.latency_s),
        devices,
        ", ".join(link.collectives),
    )


def _show_layout(console: output.Out, machine_model: Machine, mesh: Mesh, links: AxisLinks) -> None:
    slice_ = f", a slice of {'x'.join(map(str, links.slice))}" if links.slice else ""
    rows = [
        (
            axis,
            size,
            bytes_text(rate) if size > 1 else "-",
            output.time_text(latency) if size > 1 else "-",
            where,
        )
        for axis, size, rate, latency, _, where in _axes(mesh, links)
    ]
    console.table(
        f"Mesh {mesh} on {machine_model.name}{slice_}",
        ("axis", ">size", ">sends", ">hop", "~runs on"),
        rows,
    )
