"""Certification of sharding rules by execution: every op kind, every factor of its rule.

``python -m evaluation certification rules`` prints the table of kinds and certified factors; with
``--full`` it draws more sizes and attributes. Start reading at ``certify``; ``cases`` lists the
ops, ``narrowed`` the errors found in rules, and ``left_out`` the kinds without certification, with
reasons.
"""

from __future__ import annotations


def run(full: bool) -> list[str]:
    """Certify every rule, print the table and give one text for each failure."""
    from evaluation.certification.rules import report, session

    outcomes, failures = session.outcomes(full)
    print(report.table(outcomes))
    return failures
