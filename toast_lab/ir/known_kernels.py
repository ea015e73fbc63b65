"""Rules of kernels that everybody uses, by their names and shapes: attention, products, norms.

Attention kernels can be cut along the batch and the heads. Their sequences stay whole, since masks
count positions from the first. Products of groups (megablox) can be cut along the features that
they do not sum over, norms along all dims but those of the weight.

Reference: names of the kernels in jax 0.10.2.
"""

from __future__ import annotations

import re

#: Shape of each operand or result.
Shapes = list[tuple[int, ...]]
#: The text of a rule as in ``kernel_rules``, and the FLOPs of the whole kernel.
KnownRule = tuple[str, float]

#: (names, products of a sequence with a sequence, is it [batch, sequence, heads, features])
_ATTENTION = (
    (re.compile(r"_?flash_attention_dkv_kernel|splash_m[hq]a_dkv.*"), 4, False),
    (re.compile(r"_?flash_attention_dq_kernel|splash_m[hq]a_dq.*"), 3, False),
    (re.compile(r"_?flash_attention_kernel.*|splash_m[hq]a_(fwd|forward).*"), 2, False),
    (re.compile(r"mha_backward.*"), 5, True),
    (re.compile(r"mha_forward.*"), 2, True),
    (re.compile(r"__cudnn\$fmha.*Backward.*"), 5, True),
    (re.compile(r"__cudnn\$fmha.*"), 2, True),
)
_NORM = re.compile(r"(layer|rms|group)_?norm.*(forward|fwd)?", re.I)


def known_rule(name: str, operands: Shapes, results: Shapes) -> KnownRule | None:
    """The rule of the well-known kernel called ``name`` with these shapes, or None."""
    for pattern, product_count, heads_third in _ATTENTION:
        if pattern.fullmatch(name):
            return _attention(operands, results, product_count, heads_third=heads_third)
    if _NORM.fullmatch(name):
        return _norm(operands, results)
    return None


def _attention(
    operands: Shapes,
    results: Shapes,
    product_count: int,
    *,
    heads_third: bool,
) -> KnownRule | None:
    """Batch and heads are one on all tensors that have them; all other dims stay whole."""
    ranks = [len(shape) for shape in operands]
    rank = 4 if 4 in ranks else 3
    large = [shape for shape in operands if len(shape) == rank]
    if len(large) < 3:
        return None
    # Operands that are not q, k or v, such as the blocks of a mask, come before or after them.
    start = next(
        (
            i
            for i in range(len(operands) - 2)
            if len(operands[i]) == rank
            and operands[i + 1] == operands[i + 2]
            and len(operands[i + 1]) == rank
            and operands[i][-1] == operands[i + 1][-1]
        ),
        None,
    )
    if start is None:
        return None
    query, key = operands[start], operands[start + 1]
    heads_dim = rank - 2 if heads_third else rank - 3
    sequence_dim = rank - 3 if heads_third else rank - 2
    heads, shared = query[heads_dim], key[heads_dim]
    if (rank == 4 and query[0] != key[0]) or shared == 0 or heads % shared:
        return None
    batch = query[0] if rank == 4 else None

    def text(shape: tuple[int, ...]) -> str:
        if len(shape) != rank:
            return " ".join(["_"] * len(shape)) or "*"
        names = ["_"] * rank
        if batch is not None and shape[0] == batch:
            names[0] = "b"
        # Results of cuDNN's attention have their heads before the sequence, whatever its operands
        dim = heads_dim
        if heads_third and shape[dim] not in (heads, shared) and shape[rank - 3] == heads:
            dim = rank - 3
        if shape[dim] == heads:
            names[dim] = "(k g)" if heads != shared else "k"
        elif shape[dim] == shared:
            names[dim] = "k"
        return " ".join(names)

    pairs = (batch or 1) * heads * query[sequence_dim] * key[sequence_dim]
    sides = (", ".join(map(text, shapes)) for shapes in (operands, results))
    return " -> ".join(sides), 2.0 * product_count * pairs * query[-1]


def _norm(operands: Shapes, results: Shapes) -> KnownRule | None:
    """Normalises the last dim of the first operand; all dims before it can be cut."""
    if not operands or not results or results[0] != operands[0]:
        return None
    leading = operands[0][:-1]
    letters = [chr(ord("a") + i) for i in range(len(leading))]

    def text(shape: tuple[int, ...]) -> str:
        if shape[: len(leading)] == leading and len(shape) - len(leading) in (0, 1):
            return " ".join([*letters, *["_"] * (len(shape) - len(leading))]) or "*"
        return " ".join(["_"] * len(shape)) or "*"

    sides = (", ".join(map(text, shapes)) for shapes in (operands, results))
    elements = 1.0
    for size in operands[0]:
        elements *= size
    return " -> ".join(sides), 8.0 * elements
