"""Why prices of some programs are off, as far as it is known."""

from __future__ import annotations

from tests.corpus import programs

#: By program.  What nobody has looked into is not here: a guess is no reason.
KNOWN: dict[str, str] = {
    "augment": "gains by a layout that has images along the lanes are not foreseen",
    "dilated_network": "all that the backward pass needs stays in vector memory",
    "latent_attention": "exponentials of a softmax without a mask are kept in float32",
    "optimal_transport": "sums over values in vector memory take 12 ps a number, a rule is missing",
    "quantised_sound": "elementwise ops between convolutions of few images are slow",
    "regnet": "kernels around grouped convolutions take five times their traffic",
    "sinkhorn": "its distances stand there twice: the compiler merges equal ops, prices count both",
    "video": "convolutions of three channels in three dims are priced three times too short",
}


def reason(program: str) -> str:
    """What is known of why a program's price is off."""
    is_held_out = programs.PROGRAMS[program].family in programs.HELD_OUT
    return "held out: not looked into" if is_held_out else KNOWN.get(program, "")
