"""The named dimension analysis: one name for every way to partition an op (paper section 3.1).

Takes: a `Program`. Gives: the names of all definitions and uses, with the identities of each op
built in, and the directed map M from definitions to uses. Start reading at `names.py`.
"""
