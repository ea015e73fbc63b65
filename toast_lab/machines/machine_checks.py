"""Checks for impossible numbers of a machine, whether they come from a file or from code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from toast_lab.machines.links import Link, above_zero, at_least_zero

COMPILERS = ("cpu", "gpu", "tpu")


def machine_problems(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Impossible fields of a ``Machine``, each as (key, sentence).

    Fields with a default may be left out.
    """
    problems: list[tuple[str, str]] = []
    positive = {
        "memory_bytes": fields["memory_bytes"],
        "memory_bytes_per_s": fields["memory_bytes_per_s"],
        **{f"flops.{dtype}": rate for dtype, rate in fields["flops"].items()},
    }
    for key, value in positive.items():
        if not above_zero(value):
            problems.append((key, f"{key} = {value} (must be above 0)"))
    for key in (
        "op_overhead_s",
        "tile",
        "vector_memory_bytes",
        "vector_memory_bytes_per_s",
        "collective_matmul",
        "combined_sum_bytes",
        "transposed_numbers_per_s",
        "shifted_numbers_per_s",
        "host_link_bytes_per_s",
    ):
        value = fields.get(key, 0.0)
        if not at_least_zero(value):
            problems.append((key, f"{key} = {value} (must not be below 0)"))
    if fields.get("products") is not None:
        problems += [("products", problem) for problem in fields["products"].problems()]
        if fields.get("tile", 0.0):
            problem = f"tile = {fields['tile']} beside [products] (both say how products fill"
            problems.append(("tile", f"{problem} the machine: remove one)"))
    for key, default in (("overlap", 1.0), ("gathered_ahead", 0.0)):
        share = fields.get(key, default)
        if not 0 <= share <= 1:
            problems.append((key, f"{key} = {share} (must be from 0 to 1)"))
    sustained = fields.get("memory_sustained", 1.0)
    if not 0 < sustained <= 1:
        problem = f"memory_sustained = {sustained} (must be above 0 and at most 1)"
        problems.append(("memory_sustained", problem))
    compiler = fields.get("compiler", COMPILERS[0])
    if compiler not in COMPILERS:
        problems.append(("compiler", f"compiler = {compiler!r} (one of {', '.join(COMPILERS)})"))
    if "f32" not in fields["flops"]:
        problem = 'flops has no "f32" entry, the fallback for types that are not listed'
        problems.append(("flops", problem))
    problems.extend(_link_problems(fields["links"]))
    return problems


def _link_problems(links: tuple[Link, ...]) -> Iterator[tuple[str, str]]:
    """Problems of each level of links, and of the levels together."""
    if not links:
        yield "links", "no level of links; give at least one"
    for level, link in enumerate(links):
        for problem in link.problems():
            yield f"links[{level}]", problem
    if any(link.devices is None for link in links[:-1]):
        yield "links", "every level but the outermost must say how many devices it joins"
    sizes = [link.devices for link in links if link.devices is not None]
    neighbouring_sizes = itertools.pairwise(sizes)
    if any(inner < 1 or outer % inner or outer <= inner for inner, outer in neighbouring_sizes):
        yield (
            "links",
            f"levels join {sizes} devices; each must join a multiple of the one inside it",
        )
    for level, link in enumerate(links):
        if link.topology != "torus" or link.devices is None:
            continue
        if not link.extents or min(link.extents) <= 0:
            continue
        inner_devices = links[level - 1].devices if level else 1
        held_devices = math.prod(link.extents) * (inner_devices or 0)
        if inner_devices and held_devices < link.devices:
            problem = f"extents {list(link.extents)} hold {held_devices} devices"
            yield f"links[{level}]", f"{problem}, fewer than devices = {link.devices}"
