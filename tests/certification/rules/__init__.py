"""Certification of sharding rules by execution: every op kind, every factor of its rule.

``python -m tests.certification rules`` prints the table of kinds and certified factors; with
``--full`` it draws more sizes and attributes.  Start reading at ``certify``; ``cases`` lists the
ops, ``narrowed`` what was found wrong in rules, ``left_out`` the kinds without certification and
why.
"""

from __future__ import annotations


def run(full: bool) -> list[str]:
    """Certify, print the table and give what failed, one text each."""
    from tests.certification.rules import report, session

    outcomes, failures = session.outcomes(full)
    print(report.table(outcomes))
    return failures
