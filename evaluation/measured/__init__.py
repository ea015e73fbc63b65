"""Compare our prices and XLA's own times with a real GPU, one device's share at a time.

The share of one device of a mesh can run on a single GPU: XLA divides the annotated program,
stand-ins replace the collectives (``toast_lab.compare.local_program``), and the profiler gives the
time of every kernel. So three times are compared for the same ops: the GPU's, that of XLA's cost
model (which judges plans for GPUs that are not attached) and our price.

    python -m evaluation measured divide FOLDER       divide plans of the corpus and single ops
    python -m evaluation measured measure FOLDER OUT  on the GPU's machine; it needs JAX alone
    python -m evaluation measured keep OUT            put what came back into measured.jsonl
    python -m evaluation measured tell                price single ops, and ask XLA for their times
    python -m evaluation measured figures             docs/measured.md
"""
