"""``python -m evaluation accuracy links``: prices of collectives and products against times.

``gpu_collectives.csv`` and ``gpu_products.csv`` hold times that XLA's authors measured on NCCL
collectives (float32, one host, groups of 2, 4 and 8) and on cuBLAS products, as they stand in the
tables of XLA's compiler for GPUs (jax-cuda12-pjrt 0.10.2, openxla/xla under
``xla/service/gpu/model``; Apache License 2.0). The time of a collective is B bytes over the given
throughput, where B is the whole value (of a reduce_scatter, its input); that of a product is what
the compiler writes beside it. ``--fit`` prints the terms of the machine files.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from evaluation import pages
from toast_lab.cost.matrix_tiles import waves_busy
from toast_lab.machines.calibrate_fit import CalibrationPoint, collective_of
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.links import COLLECTIVES, CollectiveTerms
from toast_lab.machines.machine_model import Machine
from toast_lab.records import toml_value

FOLDER = Path(__file__).parent
MEASURED = ("h100", "b200")
#: The smallest size was measured first; its times hold the warm-up, several times too long.
SMALLEST_BYTES = 2048
#: Errors are weighted by this power of the size in bytes, since steps wait mostly for large
#: collectives.
WEIGHT = 0.15
MIB = 2.0**20
SIZES = (
    ("2 KiB to 1 MiB", 0.0, MIB),
    ("1 to 64 MiB", MIB, 64 * MIB),
    ("64 MiB on", 64 * MIB, math.inf),
)
ALL_LARGE = ("1 MiB on", MIB, math.inf)
#: Machines whose links were not measured, with the machine whose terms are scaled for them.
SCALED = {"h200": "h100", "a100": "h100", "p100": "h100"}


class Product(NamedTuple):
    """A measured matrix product."""

    dtype: str
    batch: float
    rows: float
    columns: float
    depth: float
    time_s: float


Points = Sequence[CalibrationPoint]
Leave = Callable[[CalibrationPoint], bool]
LEFT_OUT: dict[str, Leave] = {
    "groups of 4": lambda point: point.devices == 4,
    "every other size": lambda point: round(math.log2(point.size_bytes)) % 2 == 1,
    "groups of 8": lambda point: point.devices == 8,
    "groups of 2": lambda point: point.devices == 2,
}
INSIDE = ("groups of 4", "every other size")


def collectives(gpu: str) -> list[CalibrationPoint]:
    """The measured collectives of a GPU, without the smallest size."""
    with (FOLDER / "gpu_collectives.csv").open() as file:
        return [
            CalibrationPoint(
                what=row["kind"],
                dtype="f32",
                devices=int(row["devices"]),
                size_bytes=float(row["bytes"]),
                flops=0.0,
                time_s=float(row["time_us"]) * 1e-6,
            )
            for row in csv.DictReader(file)
            if row["gpu"] == gpu and float(row["bytes"]) >= SMALLEST_BYTES
        ]


def products(gpu: str) -> list[Product]:
    """The measured products of a GPU."""
    with (FOLDER / "gpu_products.csv").open() as file:
        return [
            Product(
                row["dtype"],
                batch=float(row["batch"]),
                rows=float(row["rows"]),
                columns=float(row["columns"]),
                depth=float(row["depth"]),
                time_s=float(row["time_us"]) * 1e-6,
            )
            for row in csv.DictReader(file)
            if row["gpu"] == gpu
        ]


def fit(points: Points) -> dict[str, CollectiveTerms]:
    """Fit the terms of each kind by non-negative least squares of the relative errors."""
    terms = {}
    for kind in COLLECTIVES:
        own = [point for point in points if point.what == kind]
        if not own:
            continue
        devices = np.asarray([point.devices for point in own], float)
        size_bytes = np.asarray([point.size_bytes for point in own])
        time_s = np.asarray([point.time_s for point in own])
        times_sent = {"permute": 1.0, "all_reduce": 2 * (1 - 1 / devices)}
        sent = size_bytes * times_sent.get(kind, 1 - 1 / devices)
        columns = {"start_s": np.ones_like(sent), "byte_s": sent, "root_byte_s": np.sqrt(sent)}
        if kind != "permute":  # the pairs of a permute do not tell the size of the group
            columns |= {"device_s": devices - 1, "byte_over_n_s": sent / devices}
        weight = (size_bytes / MIB) ** WEIGHT
        matrix = np.stack([column * weight / time_s for column in columns.values()], 1)
        scale = np.linalg.norm(matrix, axis=0)
        values = nnls(matrix / scale, weight)[0] / scale
        terms[kind] = CollectiveTerms(
            **{key: float(f"{value:.3g}") for key, value in zip(columns, values, strict=True)}
        )
    return terms


def scaled(terms: dict[str, CollectiveTerms], ratio: float) -> dict[str, CollectiveTerms]:
    """Terms for links ``ratio`` times as slow.

    Costs per byte grow with the ratio, and those of a pipeline's pieces with its root (see
    ``machines/collectives.py``); the cost of starting stays.
    """
    return {
        kind: row._replace(
            byte_s=float(f"{row.byte_s * ratio:.3g}"),
            byte_over_n_s=float(f"{row.byte_over_n_s * ratio:.3g}"),
            root_byte_s=float(f"{row.root_byte_s * math.sqrt(ratio):.3g}"),
        )
        for kind, row in terms.items()
    }


def fitted_terms(name: str) -> dict[str, CollectiveTerms]:
    """The terms that the machine file of a GPU has to hold."""
    if name in MEASURED:
        return fit(collectives(name))
    source = SCALED[name]
    rates = [MACHINES[gpu].links[0].bytes_per_s for gpu in (source, name)]
    return scaled(fit(collectives(source)), rates[0] / rates[1])


def with_terms(machine: Machine, terms: dict[str, CollectiveTerms]) -> Machine:
    """``machine`` with other terms on its innermost links."""
    inner = dataclasses.replace(machine.links[0], collectives=terms)
    return dataclasses.replace(machine, links=(inner, *machine.links[1:]))


def errors(machine: Machine, points: Points) -> list[float]:
    """|priced - measured| / measured of each point, with the formulas that price plans."""
    return [abs(collective_of(machine, point) / point.time_s - 1) for point in points]


def left_out_errors(gpu: str, leave: Leave) -> tuple[list[CalibrationPoint], list[float]]:
    """The points that ``leave`` selects, and their errors by a fit to all other points."""
    points = collectives(gpu)
    out = [point for point in points if leave(point)]
    terms = fit([point for point in points if not leave(point)])
    if "permute" not in terms:
        out = [point for point in out if point.what != "permute"]
    return out, errors(with_terms(MACHINES[gpu], terms), out)


def product_s(machine: Machine, product: Product) -> float:
    """Seconds of a product alone, as ``cost/computing_prices.py`` prices it."""
    units = machine.products
    width = {"bf16": 2, "f32": 4}[product.dtype]
    _, batch, rows, columns, depth, _ = product
    written_s = width * batch * rows * columns / machine.memory_bytes_per_s
    read_s = width * batch * (rows + columns) * depth / machine.memory_bytes_per_s
    compute_s = 2 * batch * rows * columns * depth / machine.peak_flops(product.dtype)
    start_s = machine.op_overhead_s
    if units:
        share = waves_busy(rows, columns, depth, batch, units.multiprocessors)
        compute_s = compute_s / (share * units.share_of(product.dtype)) + written_s
        start_s += units.start_s
    return max(compute_s, read_s + written_s) + start_s


def product_errors(machine: Machine, rows: Sequence[Product]) -> list[float]:
    """|priced - measured| / measured of each product."""
    return [abs(product_s(machine, row) / row.time_s - 1) for row in rows]


def quantiles(values: Sequence[float]) -> str:
    """Median and 90th percentile as text."""
    if not values:
        return "–"
    return f"{np.median(values):.1%}, {np.quantile(values, 0.9):.0%}"


def collective_rows(gpu: str) -> Iterator[tuple[str, ...]]:
    """Rows of a GPU for the table of collectives."""
    points, machine = collectives(gpu), MACHINES[gpu]
    cases = {
        "before": (points, errors(with_terms(machine, {}), points)),
        "all": (points, errors(machine, points)),
        **{title: left_out_errors(gpu, leave) for title, leave in LEFT_OUT.items()},
    }
    for kind in (*COLLECTIVES, "all but permute"):
        wanted = [kind] if kind in COLLECTIVES else [k for k in COLLECTIVES if k != "permute"]
        for size, low, high in (*SIZES, *(() if kind in COLLECTIVES else (ALL_LARGE,))):
            cells = []
            for out, values in cases.values():
                pairs = zip(out, values, strict=True)
                chosen = [
                    value
                    for point, value in pairs
                    if point.what in wanted and low <= point.size_bytes < high
                ]
                cells.append(quantiles(chosen))
            yield (gpu, kind, size, *cells)


def product_rows(gpu: str) -> Iterator[tuple[str, ...]]:
    """Rows of a GPU for the table of products."""
    machine = MACHINES[gpu]
    plain = dataclasses.replace(machine, products=None)
    for dtype in ("bf16", "f32"):
        for size, low, high in (("below 4 GFLOP", 0, 4e9), ("4 GFLOP on", 4e9, math.inf)):
            rows = [
                row
                for row in products(gpu)
                if row.dtype == dtype
                and low <= 2 * row.batch * row.rows * row.columns * row.depth < high
            ]
            both = (quantiles(product_errors(one, rows)) for one in (plain, machine))
            yield (gpu, dtype, size, str(len(rows)), *both)


def report() -> str:
    """Both tables as Markdown; a cell has the median error and the 90th percentile."""
    head = ("GPU", "kind", "bytes", "rate and latency alone", "all points")
    collective = (row for gpu in MEASURED for row in collective_rows(gpu))
    product = (row for gpu in MEASURED for row in product_rows(gpu))
    lines = [
        *pages.table((*head, *(f"{title} left out" for title in LEFT_OUT)), collective),
        "",
        *pages.table(("GPU", "type", "size", "products", "roofline alone", "in waves"), product),
    ]
    return "\n".join(lines)


def toml_text() -> str:
    """The fitted terms as TOML, as the machine files hold them."""
    lines = []
    for name in (*MEASURED, *SCALED):
        rows = [f"{kind} = {toml_value(terms)}" for kind, terms in fitted_terms(name).items()]
        lines += [f"# {name}", "", "[links.collectives]", *rows, ""]
    return "\n".join(lines)
