"""How XLA compiles in the tests."""

from __future__ import annotations

#: Tests judge partitioned programs, never the speed of their machine code, and generating that code
#: is most of a compilation. The passes that partition a program and merge collectives stay.
QUICK_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
