"""The catalogue of the rules of the price is that of the day."""

from __future__ import annotations

from scripts import price_rules
from toast_lab.cost.price_rule import FAMILIES
from toast_lab.cost.price_rules import RULES


def test_the_catalogue_is_up_to_date() -> None:
    assert price_rules.PAGE.read_text(encoding="utf-8") == price_rules.page(), (
        "python scripts/price_rules.py"
    )


def test_every_rule_has_a_row() -> None:
    text = price_rules.catalogue()
    assert all(text.count(f"| `{rule.name}` | {rule.says} |") == 1 for rule in RULES)
    assert {rule.family for rule in RULES} == set(FAMILIES)
