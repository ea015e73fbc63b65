"""Search many problems on many workers (paper section 5).

Problems are models x sizes x meshes x machines x methods x seeds.

Takes: tasks, workers (child processes, or those of a `dask.distributed` scheduler) and a file of
rows. Gives: one row for each task, kept as it finishes, so that an interrupted run continues where
it stopped. Start reading at `task.py`, then `run_sweep.py`.
"""
