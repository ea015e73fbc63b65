"""Background work: searches, races, loading models, and compiling, executing and exporting plans.

It serves section 5 of the paper, whose searches take minutes, and needs no GUI.

Takes: a problem, a model or a plan. Gives: a `Job` in a child process, which pages and notebooks
watch, pause, step, stop and cancel. Start reading at `background.py`, then `job.py`.
"""
