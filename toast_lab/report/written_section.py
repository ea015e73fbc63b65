"""The plan as people write it: its rules and constraints with their gain."""

from __future__ import annotations

from collections.abc import Callable

from toast_lab.plan_verbs import Written
from toast_lab.report.page_tables import Section, rows_table
from toast_lab.report.subject import ReportSubject
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.markup import Safe, h, join
from toast_lab.written.screen import spec_code
from toast_lab.written.sharding_rules import rules_of
from toast_lab.written.written_plan import ShardingRule, SiteConstraint

WITHOUT = (">step without it", ">memory without it")


def written_section(subject: ReportSubject) -> Section:
    """What a person writes to get the plan."""
    written, plan = subject.written, subject.plan
    parts: list[Safe] = []
    if written is None:
        reason = subject.not_written or "its constraints were not asked for"
        parts.append(h("p", f"Not written: {reason}. It shards the arguments so:"))
        rules = rules_of(plan.program, list(plan.argument_specs().values()))
        rows = [(rule.words, spec_code(rule.spec), len(rule.arguments)) for rule in rules]
        parts.append(rows_table(("~arguments", "=spec", ">number"), rows, "arguments"))
    else:
        parts += _tables(written)
    return Section("written", "Written", "The plan as people write it", join(*parts))


def _tables(written: Written) -> list[Safe]:
    cost = written.cost

    def gains(item: ShardingRule | SiteConstraint) -> tuple[str, str]:
        without = written.without.get(item)
        if without is None:
            return "–", "–"
        return (
            _gain(seconds_text, without.time_s - cost.time_s),
            _gain(bytes_text, without.peak_bytes - cost.peak_bytes),
        )

    fits = "" if cost.fits else ", does not fit"
    parts = [
        h(
            "p",
            f"Written in {written.size}: {seconds_text(cost.time_s)} a step, "
            f"{bytes_text(cost.peak_bytes)} a device{fits}; C(s) {written.loss:+.1%} compared with "
            "the whole plan, which the other sections are about. JAX decides all else.",
        )
    ]
    rules = [
        (rule.words, rule.pattern, spec_code(rule.spec), len(rule.arguments), *gains(rule))
        for rule in written.rules
    ]
    if rules:
        columns = ("~arguments", "=pattern of paths", "=spec", ">number", *WITHOUT)
        parts += [
            h("h3", "Rules"),
            h("p", "The first pattern that is found in a path decides; others stay whole."),
            rows_table(columns, rules, "rules and what each gains"),
        ]
    constraints = [
        (row.site.where, row.site.target, spec_code(row.spec), *gains(row))
        for row in written.constraints
    ]
    if constraints:
        named = ("=line", "=variable", "=spec", *WITHOUT)
        parts += [
            h("h3", "Constraints"),
            rows_table(named, constraints, "constraints and what each gains"),
        ]
    return parts


def _gain(text: Callable[[float], str], difference: float) -> str:
    if not difference:
        return "="
    return f"{'+' if difference > 0 else '-'}{text(abs(difference))}"
