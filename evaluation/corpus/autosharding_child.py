"""Run XLA's AutoSharding on one StableHLO text, in an interpreter with jax 0.6.2.

    python autosharding_child.py PROGRAM.mlir FOLDER v5e:4x4 4,4 16

The last number is the memory that a device may use, in GB. Without it, the pass keeps close to the
least memory possible, at any cost in time.

The script writes the module after the pass as HLO text into FOLDER. The rest of the compilation is
not needed, so the parent may end this process as soon as that text is there. The script imports
nothing of this project, which uses another version of jax.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir, pxla
from jax.experimental import topologies
from jax.sharding import Mesh
from jaxlib import _jax
from jaxlib.mlir import ir


def main(program: str, folder: str, topology: str, sizes: str, budget_gb: str) -> None:
    """Compile with the pass on, which may shard every argument and result as it likes."""
    shape = [int(size) for size in sizes.split(",")]
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh = Mesh(np.array(devices).reshape(shape), tuple(f"axis{i}" for i in range(len(shape))))
    with mlir.make_ir_context(), open(program) as text:
        module = ir.Module.parse(text.read())
        main_function = next(
            op
            for op in module.body.operations
            if ir.StringAttr(op.attributes["sym_name"]).value == "main"
        )
        partitions = ir.IntegerType.get_signless(32)
        module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(
            partitions, len(devices)
        )
        options = pxla.create_compile_options(
            module,
            mesh,
            spmd_lowering=True,
            tuple_args=False,
            auto_spmd_lowering=True,
            allow_prop_to_inputs=[True] * len(main_function.type.inputs),
            allow_prop_to_outputs=[True] * len(main_function.type.results),
            backend=devices[0].client,
            np_dev=np.array(devices),
            pmap_nreps=1,
            compiler_options={
                "xla_dump_to": folder,
                "xla_tpu_auto_spmd_partitioning_memory_budget_gb": int(budget_gb),
                "xla_dump_hlo_pass_re": ".*auto_sharding.*",
            },
        )
        compiler.backend_compile(
            devices[0].client, module, _jax.DeviceList(tuple(devices)), options
        )


if __name__ == "__main__":
    print("jax", jax.__version__, flush=True)
    main(*sys.argv[1:])
