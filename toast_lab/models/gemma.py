"""The paper's two Gemma 1 Transformers, T2B and T7B.

Reference: TOAST section 5.1, Gemma (arXiv:2403.08295) table 1.

The paper's table gives d_model, layers, hidden, heads, key size and vocabulary.  Its hidden dims,
32768 and 49152, count the gate and the up projection of GeGLU together; ``hidden`` here is the
width of one of them, 16384 and 24576, as in Gemma's published weights.  Key/value heads, batch and
element type are not in the paper: 2B is multi-query and 7B has as many as query heads, as
published; the rest is a choice.

Parameters, the embedding counted once since it is tied to the output layer:

=====================  ===================================  ===================================
part                   T2B                                  T7B
=====================  ===================================  ===================================
embedding              256128 x 2048 =          524,550,144  256128 x 3072 =          786,825,216
wq and wo, a layer     2 x 2048 x 8 x 256 =       8,388,608  2 x 3072 x 16 x 256 =     25,165,824
wk and wv, a layer     2 x 2048 x 1 x 256 =       1,048,576  2 x 3072 x 16 x 256 =     25,165,824
gate, up, down         3 x 2048 x 16384 =       100,663,296  3 x 3072 x 24576 =       226,492,416
two norms, a layer     2 x 2048 =                     4,096  2 x 3072 =                     6,144
all layers             18 x 110,104,576 =     1,981,882,368  28 x 276,830,208 =     7,751,245,824
final norm                                            2,048                                 3,072
**together**                                  2,506,434,560                         8,538,074,112
=====================  ===================================  ===================================

So "2B" and "7B" are the published names: they count what is not embedding (2.0 and 7.8 billion).
Were the paper's hidden dims the width of one projection, the layers would have 3 x 2048 x 16384 x
18 = 1,811,939,328 parameters more in T2B (4.3 billion in all) and 6,341,787,648 more in T7B (14.9
billion).
"""

from __future__ import annotations

from typing import Any

from toast_lab.models.model_sizes import T2bSizes, T7bSizes
from toast_lab.models.registry import Example
from toast_lab.models.transformer import build


def t2b(**sizes: Any) -> Example:
    """Gemma 1 2B; sizes as in ``T2bSizes``."""
    return build(T2bSizes(**sizes))


def t7b(**sizes: Any) -> Example:
    """Gemma 1 7B; sizes as in ``T7bSizes``."""
    return build(T7bSizes(**sizes))
