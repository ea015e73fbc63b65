"""The commands of ``toast-lab``: one module a verb, each with ``run(args) -> exit status``.

Takes: parsed arguments. Gives: a table or a JSON object on stdout, progress on stderr. Nothing of
the paper is here. Start reading at `search_command.py`, then `common.py`.
"""
