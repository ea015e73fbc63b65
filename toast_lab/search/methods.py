"""The searches by name: where each is, and what it does in a sentence.  Imports nothing: ``--help`` has to be quick."""

from __future__ import annotations

METHODS = {
    "mcts": "toast_lab.search.mcts.mcts:run",
    "automap": "toast_lab.search.automap:run",
    "alpa": "toast_lab.search.alpa.alpa:run",
    "beam": "toast_lab.search.beam:run",
    "random": "toast_lab.search.random_walk:run",
    "exhaustive": "toast_lab.search.exhaustive.exhaustive:run",
    "manual": "toast_lab.search.manual:run",
}

SENTENCES = {
    "mcts": "Monte-Carlo tree search over colours, sides of conflicts and mesh axes: the method of TOAST.",
    "exhaustive": "Every distinct sharding, less what a bound rules out: small programs only, but a proof.",
    "manual": "Expert plans, all sensible combinations; or the actions that you give, in order.",
    "automap": "Tree search over shardings of arguments, carried through the program after every action.",
    "alpa": "An integer program over the ways to split each op, with the costs of resharding between them.",
    "beam": "The best few plans, each extended by every action, until none gets better.",
    "random": "Random action sequences: what any search has to beat.",
}


def methods_text() -> str:
    """The methods as a list for people, one sentence each."""
    return " ".join(f"{name}: {SENTENCES.get(name, '').rstrip('.')}." for name in METHODS)
