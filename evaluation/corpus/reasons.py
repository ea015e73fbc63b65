"""Known reasons why the prices of some programs are wrong.

Only investigated programs are listed, since a guess is no reason. Held-out families were
investigated once, after their figures were made, and no rule was read off them.
"""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.corpus import programs

#: By program: why times are wrong, or plans are passed over.
TIMES: dict[str, str] = {
    "augment": "gains by a layout that has images along the lanes are not foreseen",
    "optimal_transport": "sums over values in vector memory take 12 ps a number, a rule is missing",
    "quantised_sound": "elementwise ops between convolutions of few images are slow",
    "regnet": "kernels around grouped convolutions take five times their traffic",
    "sinkhorn": "its distances stand there twice: the compiler merges equal ops, prices count both",
    "video": "convolutions of three channels in three dims are priced three times too short",
}

#: By program: why peaks of memory are wrong.
PEAKS: dict[str, str] = {
    "contrastive": "the gradient of a diagonal is priced as written, the compiler compares places",
    "dilated_network": "all that the backward pass needs stays in vector memory",
    "equivariant": "a product of 3 by 3 numbers a row lies in memory padded to 57 times its size",
    "latent_attention": "exponentials of a softmax without a mask are kept in float32",
    "unet": "differences from a norm's mean are priced as kept, the compiler computes them again",
    "video": "short clips stay in vector memory, of long ones convolutions write their windows",
}

#: By program: why its plans are ranked in the wrong order.
ORDERS: dict[str, str] = {
    "unet": "convolutions of one image a device are priced too short, of four images too long",
}


def reason(program: str, known: Mapping[str, str] = TIMES) -> str:
    """The known reason why one figure of a program is wrong, "" if there is none."""
    if program in known:
        return known[program]
    is_held_out = programs.PROGRAMS[program].family in programs.HELD_OUT
    return "held out: not looked into" if is_held_out else ""
