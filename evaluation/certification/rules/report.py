"""The table of op kinds and certified factors."""

from __future__ import annotations

from collections.abc import Iterable

from evaluation.certification.rules.certify import NOT_COMPILED, Outcome


def table(outcomes: Iterable[Outcome]) -> str:
    """A table with one line for each kind.

    A line counts cases, certifications of pass and of reduction factors, on shards and compiled,
    and failures.
    """
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    lines = [
        f"{'kind':34} {'cases':>5} {'pass':>5} {'reduce':>6} {'shards':>6} {'compiled':>8} "
        f"{'failed':>6}"
    ]
    notes: dict[str, None] = {}
    total = [0] * 6
    for kind in sorted(by_kind):
        found = by_kind[kind]
        row = [
            len({o.case for o in found}),
            sum(o.role == "pass" for o in found),
            sum(o.role == "reduction" for o in found),
            sum(o.local_error is not None for o in found),
            sum(o.compiled_error is not None for o in found),
            sum(not o.ok for o in found),
        ]
        total = [a + b for a, b in zip(total, row, strict=True)]
        lines.append(f"{kind:34} {row[0]:5} {row[1]:5} {row[2]:6} {row[3]:6} {row[4]:8} {row[5]:6}")
        notes.update(dict.fromkeys(f"  {o.case}: {o.excuse}" for o in found if o.excuse))
    lines.append(
        f"{'all':34} {total[0]:5} {total[1]:5} {total[2]:6} {total[3]:6} {total[4]:8} {total[5]:6}"
    )
    lines += (
        ["Compiled with more communication than priced, by this machine's CPU compiler:", *notes]
        if notes
        else []
    )
    lines += ["Not compiled:", *(f"  {case}: {reason}" for case, reason in NOT_COMPILED.items())]
    return "\n".join(lines)
