"""Shardy as an oracle: its own lowering and propagation of a plan, compared with ours.

Tests and the certification call these plain functions; the package does not need them. Start
reading at ``routes.compare_with_shardy``.
"""
