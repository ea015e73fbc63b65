"""How XLA compiles in the tests."""

from __future__ import annotations

import importlib.metadata

#: Tests judge partitioned programs, never the speed of their machine code, and generating that code
#: is most of a compilation. The passes that partition a program and merge collectives stay.
QUICK_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# The newer of two generators takes twice as long. Other versions may know no such flag, and a flag
# that XLA does not know ends the process.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    QUICK_COMPILES += " --xla_cpu_use_fusion_emitters=false"
    # Splitting a module for several threads is a sixth of a compilation, and the cores are taken.
    QUICK_COMPILES += " --xla_cpu_parallel_codegen_split_count=1"
