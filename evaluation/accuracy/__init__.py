"""Agreement of our prices with the TPU compiler, and with measured times of GPUs.

``python -m evaluation accuracy`` lists the commands.

``cases`` chooses models, sizes, meshes and plans. ``dataset`` compiles them ahead of time for
slices of TPUs, into ``compiled.jsonl``; the file is committed, so that prices are
judged without libtpu. ``judge`` compares our prices with the compiled programs. ``report`` makes
table and scatter for the documentation. ``link_times`` compares collectives and products of GPUs
with the times that XLA's authors measured, and fits the terms of the machine files.
"""
