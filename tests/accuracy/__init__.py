"""How well our prices agree with the TPU compiler, and with measured times of GPUs.

``python -m tests.accuracy`` says what there is to run.

``cases``: which models, sizes, meshes and plans.  ``dataset``: compiles them for slices of TPUs
that need not be there, into ``compiled.csv`` and ``cycles.csv``, which are committed: prices are
judged against them without libtpu.  ``judge``: our prices beside the compiled programs.
``report``: table and scatter for the documentation.  ``link_times``: collectives and products of
GPUs against the times that XLA's authors measured, and the fit of the machine files' terms.
"""
