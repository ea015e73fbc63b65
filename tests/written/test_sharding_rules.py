"""Sharding rules of arguments: few, as regular expressions, and exactly the shardings given."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
import pytest

from tests.helpers import model
from toast_lab.ir.program import Program
from toast_lab.sharding.plan import Spec
from toast_lab.written.sharding_rules import keys_of, rules_of, trimmed
from toast_lab.written.written_plan import ShardingRule

WHOLE: Spec = ()
ROWS: Spec = (("b",),)
COLUMNS: Spec = ((), ("b",))
BOTH: Spec = (("a",), ("b",))
BATCH: Spec = (("a",),)
SPECS = (WHOLE, ROWS, COLUMNS, BOTH)
Shard = Callable[[str, int, str], Spec]  # of the tree, the layer and the word of a weight


class Arguments(NamedTuple):
    """What rules read of a program."""

    value_name: tuple[str, ...]

    @property
    def n_arguments(self) -> int:
        return len(self.value_name)


def rules_for(paths: Sequence[str], specs: Sequence[Spec]) -> tuple[ShardingRule, ...]:
    """Rules of paths, after a check that they give every path its spec."""
    rules = rules_of(cast(Program, Arguments(tuple(paths))), specs)
    check(rules, paths, specs)
    return rules


def decided(rules: Sequence[ShardingRule], path: str) -> ShardingRule | None:
    return next((rule for rule in rules if re.search(rule.pattern, path)), None)


def check(rules: Sequence[ShardingRule], paths: Sequence[str], specs: Sequence[Spec]) -> None:
    for argument, (path, spec) in enumerate(zip(paths, specs, strict=True)):
        rule = decided(rules, path)
        assert (rule.spec if rule else WHOLE) == trimmed(spec), path
        assert [other for other in rules if argument in other.arguments] == [rule] * bool(rule)


MEGATRON = {
    "wq": COLUMNS,
    "wk": COLUMNS,
    "wv": COLUMNS,
    "wo": ROWS,
    "w_up": COLUMNS,
    "w_down": ROWS,
    "norm": WHOLE,
}


def train_state(layers: int, shard: Shard) -> tuple[list[str], list[Spec]]:
    """Paths and specs of parameters, two moments, a step count and data."""
    pairs = [("opt_state[0].count", WHOLE), ("tokens", BATCH), ("targets", BATCH)]
    for tree in ("params", "opt_state[0].mu", "opt_state[0].nu"):
        pairs += [
            (f"{tree}['layers'][{layer}]['{word}']", shard(tree, layer, word))
            for layer in range(layers)
            for word in MEGATRON
        ]
        pairs.append((f"{tree}['embed']", shard(tree, 0, "wo")))
    paths, specs = zip(*pairs, strict=True)
    return list(paths), list(specs)


def megatron(tree: str, layer: int, word: str) -> Spec:
    return MEGATRON[word]


def test_few_rules_whatever_the_depth() -> None:
    rules = rules_for(*train_state(2, megatron))
    assert [rule.pattern for rule in rules] == [
        "^(tokens|targets)$",
        r"\['(wq|wk|wv|w_up)'\]$",
        r"\['(wo|w_down|embed)'\]$",
    ]
    assert [rule.words for rule in rules] == [
        "tokens, targets",
        "wq, wk, wv, w_up",
        "wo, w_down, embed",
    ]
    paths, specs = train_state(12, megatron)
    for path, spec in zip(paths, specs, strict=True):
        rule = decided(rules, path)
        assert (rule.spec if rule else WHOLE) == spec


def test_exceptions_come_first() -> None:
    def shard(tree: str, layer: int, word: str) -> Spec:
        return WHOLE if layer == 1 and word == "w_up" else MEGATRON[word]

    rules = rules_for(*train_state(4, shard))
    assert (rules[0].pattern, rules[0].spec) == (r"\[1\]\['w_up'\]$", WHOLE)
    assert len(rules) == 4


def test_half_of_the_layers() -> None:
    def shard(tree: str, layer: int, word: str) -> Spec:
        return WHOLE if layer < 9 and word in ("w_up", "w_down") else MEGATRON[word]

    rules = rules_for(*train_state(18, shard))
    assert len(rules) == 5
    assert "[9-17].w_up" in [rule.words for rule in rules]


def test_states_that_are_sharded_alone() -> None:
    """ZeRO-1: the rules of states begin with their trees, and cover both moments."""

    def shard(tree: str, layer: int, word: str) -> Spec:
        return WHOLE if tree == "params" else ROWS

    rules = rules_for(*train_state(3, shard))
    assert len(rules) == 2
    assert (rules[0].pattern, rules[0].words) == (r"^opt_state\[0\]\.(mu|nu)\b.*$", "mu, nu: all")


def test_states_that_are_cut_further_than_their_parameters() -> None:
    def shard(tree: str, layer: int, word: str) -> Spec:
        spec = MEGATRON[word]
        return spec if tree == "params" or not spec else BOTH

    rules = rules_for(*train_state(3, shard))
    assert len(rules) == 4
    assert all(("mu, nu" in rule.words) == (rule.spec == BOTH) for rule in rules)


def test_one_rule_for_several_ranks() -> None:
    """A spec ends in its last cut dim, as a PartitionSpec may, so vectors and matrices share it."""
    rules = rules_for(["p['w']", "p['b']"], [(("a",), (), ()), (("a",),)])
    assert [(rule.pattern, rule.spec) for rule in rules] == [(r"\['(w|b)'\]$", (("a",),))]


FOREIGN = {
    "flax": [
        f"{tree}['params']['Block_{layer}']['Dense_{dense}']['{word}']"
        for tree in ("state.params", "state.opt_state[0].mu")
        for layer in range(3)
        for dense in (0, 1)
        for word in ("kernel", "bias")
    ],
    "nnx": [
        f"state['blocks'][{layer}]['{name}']['{word}'].value"
        for layer in range(3)
        for name in ("attn", "linear1", "linear2")
        for word in ("kernel", "bias")
    ],
    "equinox": [
        f"model.blocks[{layer}].{name}.{word}"
        for layer in range(3)
        for name in ("attention.query", "attention.out", "mlp.layers[0]", "mlp.layers[1]")
        for word in ("weight", "bias")
    ],
    "haiku": [
        f"params['lm/~/layer_{layer}/linear{number}']['{word}']"
        for layer in range(3)
        for number in ("", "_1", "_2")
        for word in ("w", "b")
    ],
    "torch": [f"blocks.{layer}.{name}.weight" for layer in range(3) for name in ("fc1", "fc2")],
    "odd": [
        "x",
        "y[0]",
        "y[1]",
        "y[0]['w']",
        "[0]['w']",
        "[1]['w']",
        "['w']",
        "w",
        "ww",
        "a['[x]']",
        "a['b.c']",
        'a["it\'s"]',
        "a['1.5']",
        "[<flat index 0>]",
        "[<flat index 10>]",
        "",
    ],
}


@pytest.mark.parametrize("library", FOREIGN)
def test_paths_of_other_libraries(library: str) -> None:
    paths = FOREIGN[library]
    assert all("".join(keys_of(path)) == path for path in paths)
    generator = np.random.default_rng(0)
    for _ in range(20):
        rules_for(paths, [SPECS[index] for index in generator.integers(0, 4, len(paths))])


@pytest.mark.parametrize(
    ("library", "columns", "count"),
    [
        ("flax", "Dense_0']['kernel", 1),
        ("nnx", "linear1']['kernel", 1),
        ("equinox", "layers[0].weight", 1),
        ("haiku", "linear_1']['w", 1),
        ("torch", "fc1", 1),
    ],
)
def test_rules_of_modules_hold_for_more_layers(library: str, columns: str, count: int) -> None:
    paths = FOREIGN[library]
    rules = rules_for(paths, [COLUMNS if columns in path else WHOLE for path in paths])
    assert len(rules) == count
    for path in paths:
        for old, new in (("_2", "_11"), ("[2]", "[11]"), (".2.", ".11.")):
            if "linear_2" not in path:
                deeper = decided(rules, path.replace(old, new, 1))
                assert (deeper is not None) == (columns in path)


@pytest.mark.parametrize("name", ["transformer", "itx"])
def test_random_shardings_of_built_in_models(name: str) -> None:
    """A random sharding of each weight's word, and some arguments that deviate."""
    program = model(name, layers=2).program
    paths = program.value_name[: program.n_arguments]
    generator = np.random.default_rng(1)
    words = sorted({keys_of(path)[-1] for path in paths})
    by_word = dict(zip(words, generator.integers(0, 4, len(words)).tolist(), strict=True))
    specs = [SPECS[by_word[keys_of(path)[-1]]] for path in paths]
    for argument in generator.integers(0, len(paths), 3).tolist():
        specs[argument] = SPECS[int(generator.integers(0, 4))]
    rules = rules_of(program, specs)
    check(rules, paths, specs)
    assert len(rules) <= len(words) + 3
