"""Shardy as an oracle: its own lowering and propagation of a plan, laid beside ours.

Plain functions that the tests and the certification call; nothing of the package needs them.  Start
reading at ``routes.compare_with_shardy``.
"""
