"""The commands of ``toast-lab``: one module per command, each with ``run(args) -> exit status``.

Takes: parsed arguments. Gives: a table or a JSON object on stdout, progress on stderr. The paper
has no counterpart. Start reading at `search_command.py`, then `common.py`.
"""
