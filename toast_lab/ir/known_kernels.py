"""Rules of kernels that everybody uses, by their names and shapes: attention, products, norms.

Attention kernels can be cut along the batch and the heads, with paged keys too. Their sequences
stay whole, since masks count positions from the first. Products of groups (megablox) can be cut
along the features that they do not sum over, norms along all dims but those of the weight.

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
_PAGED = re.compile(r"paged_flash_attention_kernel.*")
_NORM = re.compile(r"(layer|rms|group)_?norm.*(forward|fwd)?", re.I)


def known_rule(name: str, operands: Shapes, results: Shapes) -> KnownRule | None:
    """The rule of the well-known kernel called ``name`` with these shapes, or None."""
    for pattern, product_count, heads_third in _ATTENTION:
        if pattern.fullmatch(name):
            return _attention(operands, results, product_count, heads_third=heads_third)
    if name in ("gmm", "tgmm"):
        return _grouped_product(operands, results, is_transposed=name == "tgmm")
    if _PAGED.fullmatch(name):
        return _paged_attention(operands, results)
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


def _paged_attention(operands: Shapes, results: Shapes) -> KnownRule | None:
    """One query an example; its keys are in pages that all examples share, a list for each.

    Operands are lengths, the lists, two more scalars, the query [batch, heads, (1,) features], and
    pages [key heads, pages, rows, features] of keys and values, each perhaps with scales. FLOPs are
    those of full lists: lengths are not known in advance.
    """
    if len(operands) not in (7, 9) or len(operands[4]) < 3 or len(operands[5]) != 4:
        return None
    (batch, heads, *_), (shared, _, page_rows, _) = operands[4], operands[5]
    (listed,) = operands[1]
    if not shared or heads % shared or not batch or listed % batch:
        return None
    heads_text = "(k g)" if heads != shared else "k"

    def query(shape: tuple[int, ...]) -> str:
        return " ".join(["b", heads_text, *["_"] * (len(shape) - 2)])

    pages = ["k _ _ _"] * (len(operands) - 5)
    lists = "(b p)" if listed != batch else "b"
    sides = ["b", lists, "*", "*", query(operands[4]), *pages], [query(shape) for shape in results]
    flops = 2.0 * 2 * listed * page_rows * heads * operands[4][-1]
    return " -> ".join(", ".join(side) for side in sides), flops


def _grouped_product(operands: Shapes, results: Shapes, *, is_transposed: bool) -> KnownRule | None:
    """megablox: rows [m, k] times the matrix of their group; transposed, a product for each group.

    Groups start anywhere, so rows and groups stay whole. What comes before are tables of groups.
    """
    first = next((i for i, shape in enumerate(operands) if len(shape) == 2), None)
    if first is None or first + 1 >= len(operands) or len(results) != 1:
        return None
    (rows, summed), right, (result,) = operands[first], operands[first + 1], results
    if is_transposed:
        right_text, result_text, left_text, columns = "_ n", "_ k n", "_ k", right[-1]
        if len(right) != 2 or result[1:] != (summed, columns):
            return None
    else:
        # A square matrix may be transposed: its shape does not tell which dim is summed over.
        if len(right) != 3 or len(result) != 2 or right[1] == right[2]:
            return None
        columns = result[1]
        right_text = "_ _ n" if right[1:] == (summed, columns) else "_ n _"
        left_text, result_text = "_ _", "_ n"
    others = operands[first + 2 :]  # a result to add to
    if any(shape != result for shape in others):
        return None
    tensors = ["*"] * first + [left_text, right_text] + [result_text] * len(others)
    return f"{', '.join(tensors)} -> {result_text}", 2.0 * rows * summed * columns


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
