"""Classes of ops by the kind of kernel that computes them."""

from __future__ import annotations

#: Op kinds by class; all other kinds are loops over elements.
CLASSES: dict[str, tuple[str, ...]] = {
    "product": ("dot_general",),
    "convolution": ("convolution",),
    "reduction": ("reduce", "reduce_window", "cumsum", "argmax"),
    "movement": tuple(
        "transpose reshape pad slice concatenate gather scatter sort dynamic_slice "
        "dynamic_update_slice reverse broadcast_in_dim iota select_and_scatter".split()
    ),
    "elementwise": (),
}


def class_of(kind: str) -> str:
    """The class of an op kind."""
    return next((name for name, kinds in CLASSES.items() if kind in kinds), "elementwise")
