"""All uses of undocumented JAX names: compiling a module and running the executable.

``jax.extend.backend`` is public and gives the client and the compile options; the methods of the
client and of the executable are not documented. (The documented way, ``jax.export``, re-traces a
module under ``jit``, which loses the donations and argument shardings as written.) Tried with jax
0.10.2 and 0.12.0.1.

This file is separate from ``toast_lab._jaxlib`` because the latter must never import jax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import _jaxlib
from toast_lab.ir import fourier


class LeftOpen(NamedTuple):
    """Arguments and results whose sharding the compiler may choose, as ``jax.jit`` lets it."""

    arguments: tuple[bool, ...]
    results: tuple[bool, ...]


def compile_module(
    stablehlo: str,
    devices: Sequence[Any],
    flags: Mapping[str, str | bool] | None = None,
    *,
    left_open: LeftOpen | None = None,
) -> Any:
    """Compile StableHLO text for ``devices``, one partition each, with Shardy.

    Gives a loaded executable, or one that cannot be run if the devices are those of a topology
    description. ``flags`` maps names of XLA flags, without dashes, to values for this compilation
    alone.
    """
    from jax.extend import backend

    if "@lapack_" in stablehlo and devices[0].platform == "cpu":
        _load_lapack()
    devices = list(devices)
    if fourier.KIND in stablehlo and devices[0].platform == "cpu":
        stablehlo = _with_pinned_layouts(stablehlo)
    options = backend.get_compile_options(
        num_replicas=1, num_partitions=len(devices), device_assignment=np.asarray(devices)[None, :]
    )
    options.env_option_overrides = list((flags or {}).items())
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    if left_open is not None:
        build_options = options.executable_build_options
        build_options.allow_spmd_sharding_propagation_to_parameters = list(left_open.arguments)
        build_options.allow_spmd_sharding_propagation_to_output = list(left_open.results)
    client = devices[0].client
    if type(client).__name__ != "CompileOnlyPyClient":
        return client.compile_and_load(stablehlo, devices, options)
    from jaxlib import _jax

    # This client takes only a parsed module.
    module = _jaxlib.parse_module(_jaxlib.make_context(), stablehlo)
    return client.compile(
        module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options
    )


def _with_pinned_layouts(stablehlo: str) -> str:
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, stablehlo)
    with context, _jaxlib.ir.Location.unknown(context):
        fourier.pin_layouts(module)
        return str(module.operation.get_asm(enable_debug_info=True))


def _load_lapack() -> None:
    """Register the LAPACK routines with XLA's CPU client.

    Otherwise a program that calls one crashes the process.

    JAX registers them when it lowers the first such op, which never happens for a program that
    comes as text.
    """
    import jax

    jax.jit(jax.lax.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def execute(executable: Any, arguments: Sequence[Any]) -> list[list[Any]]:
    """Start one execution on global arrays; gives the single-device arrays of each result."""
    return list(executable.execute_sharded(list(arguments)).disassemble_into_single_device_arrays())


def optimised_hlo(executable: Any) -> str:
    """The compiled program as HLO text."""
    return "\n".join(module.to_string() for module in executable.hlo_modules())


def flops(executable: Any) -> float | None:
    """Floating-point operations on one device by XLA's own count; None if it gives none.

    A loop's body counts once, whatever its number of rounds.
    """
    try:
        analysis = executable.cost_analysis()
    except Exception:
        return None
    if isinstance(analysis, list | tuple):
        analysis = analysis[0] if analysis else {}
    value = analysis.get("flops")
    return None if value is None or value < 0 else float(value)


def memory_stats(executable: Any) -> dict[str, int]:
    """Bytes that the compiled program holds on one device while it runs.

    They come from XLA's buffer assignment.

    Keys: argument, output, alias (part of the outputs that reuses donated arguments), temp, code,
    and peak: arguments + outputs - aliases + temporaries. XLA's own ``peak_memory_in_bytes`` is not
    used: on CPU it was seen far below the temporaries alone (118 KB against 711 KB).
    """
    stats = executable.get_compiled_memory_stats()
    sizes = {
        key: int(getattr(stats, f"{key}_size_in_bytes"))
        for key in ("argument", "output", "alias", "temp")
    }
    sizes["code"] = int(stats.generated_code_size_in_bytes)
    sizes["peak"] = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    return sizes


def set_assembler_folder(folder: str) -> None:
    """Make XLA's compiler for GPUs use the assembler ``bin/ptxas`` of a folder.

    JAX looks for one during its import, among the packages that can be imported then. Without it
    XLA takes whichever the machine has, which may not support the GPU.
    """
    from jax._src import lib

    lib.cuda_path = folder
