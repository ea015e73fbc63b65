"""The flags with which XLA compiles in the tests."""

from __future__ import annotations

import importlib.metadata

#: Tests judge partitioned programs, never the speed of their machine code, and generating that code
#: is most of a compilation. The passes that partition a program and merge collectives stay.
QUICK_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# The newer of two code generators takes twice as long. Other versions may not have this flag, and
# XLA ends the process on an unknown flag.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    QUICK_COMPILES += " --xla_cpu_use_fusion_emitters=false"
    # Splitting a module for several threads takes a sixth of a compilation, and the cores are busy.
    QUICK_COMPILES += " --xla_cpu_parallel_codegen_split_count=1"
