"""Prices and XLA's own times against a real GPU, one device's share at a time.

What one device of a mesh computes can be run on a single GPU: XLA divides the annotated program,
stand-ins take the place of collectives (``toast_lab.compare.local_program``), and the profiler
tells the time of every kernel.  So three clocks stand beside each other for the same ops: the
GPU's, that of XLA's cost model (which judges plans for GPUs that are not there) and our price.

    python -m tests.measured divide FOLDER       here: plans of the corpus and single ops, divided
    python -m tests.measured.measure FOLDER OUT  where the GPU is; of packages it needs JAX alone
    python -m tests.measured keep OUT            put what came back into measured.jsonl
    python -m tests.measured tell                price the single ops; XLA's time of them
    python -m tests.measured figures             docs/measured.md
"""
