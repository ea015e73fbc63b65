"""``CallForm``: how a user's function takes its arguments, as plain data.

An export writes calls of the function from it, also where the function itself is in another
process.
"""

from __future__ import annotations

from typing import NamedTuple

#: Libraries whose functions need their own way of jitting.
JAX, NNX, EQUINOX = "jax", "flax.nnx", "equinox"


class CallForm(NamedTuple):
    """The arguments and results of a function as its caller sees them."""

    library: str  #: whose jit the function needs: JAX, NNX or EQUINOX
    names: tuple[str, ...]  #: of the arguments; those that are passed by keyword are the last
    keyword_count: int  #: how many are passed by keyword
    counts: tuple[int, ...]  #: number of arrays in each argument
    modules: tuple[int, ...]  #: positions of arguments that are modules of nnx
    #: positions of arguments that have modules of nnx inside
    around_modules: tuple[int, ...]
    static: tuple[int, ...]  #: positions of arguments that are no arrays
    #: positions of arguments with arrays and other leaves
    partly_static: tuple[int, ...]
    donated: tuple[int, ...]  #: positions
    #: whether keys of its pytrees end in ``.value``, which names of arguments leave out
    has_value_keys: bool
    is_sharded: bool  #: whether the function's own jit has shardings of arguments or results
    #: number of elements of the tuple that it returns, -1: it returns something else
    result_count: int = -1
    #: (element of the result or -1 for all of it, argument whose structure and shapes it has)
    returned: tuple[tuple[int, int], ...] = ()
