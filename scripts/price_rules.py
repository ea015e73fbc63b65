"""Write the catalogue of the rules of the price: ``python scripts/price_rules.py``.

The table of ``docs/price_rules.md`` is made from ``toast_lab/cost/price_rules.py``;
``tests/docs/test_price_rules.py`` notices when it is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

from toast_lab.cost.price_rule import FAMILIES, PriceRule
from toast_lab.cost.price_rules import RULES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "price_rules.md"
MARKS = re.compile(r"(<!-- rules: [^>]*-->\n).*(<!-- end of rules -->)", re.DOTALL)
COMPILERS = {"tpu": "TPUs", "gpu": "GPUs", "cpu": "CPUs"}


def catalogue() -> str:
    """All rules as Markdown, a table for each family."""
    lines = list[str]()
    for family in FAMILIES:
        lines += [
            f"## {family.capitalize()}",
            "",
            "| name | says | for | without it | read off |",
            "|---|---|---|---|---|",
            *(_row(rule) for rule in RULES if rule.family == family),
            "",
        ]
    return "\n".join(lines)


def page() -> str:
    """The page with the catalogue of today."""
    text = PAGE.read_text(encoding="utf-8")
    return MARKS.sub(lambda marks: f"{marks[1]}{catalogue()}{marks[2]}", text)


def _row(rule: PriceRule) -> str:
    compilers = (
        "all"
        if len(rule.compilers) == len(COMPILERS)
        else ", ".join(COMPILERS[compiler] for compiler in rule.compilers)
    )
    switches = ", ".join(f"`{name}` {value!r}" for name, value in rule.off.items())
    return f"| `{rule.name}` | {rule.says} | {compilers} | {switches} | {rule.source} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
