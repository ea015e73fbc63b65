"""``written.to_padding()``: a file of plain JAX that pads a function as a plan's program is padded.

    from step_padding import padded_step
    from step_sharding import place, shard

    step = padded_step(train_step, params, tokens)
    run = shard(step, *step.pad(params, tokens))
    params, tokens = place(*step.pad(params, tokens))
    params, loss = step.cut(run(params, tokens))

It is the source of ``frontends.padded_function``, which needs JAX alone, and the sizes.
"""

from __future__ import annotations

import inspect

from toast_lab import syntax
from toast_lab._version import __version__
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import padded_function
from toast_lab.ir.call_form import JAX
from toast_lab.ir.model import Model


def to_padding(model: Model) -> str:
    """A Python file whose ``padded_step`` pads the function of ``model``.

    Raises:
        InvalidPlan: the model is not padded, or its function is not called with pytrees of arrays
            by position alone.
    """
    padding, form = model.padding, model.call_form
    if padding is None:
        raise InvalidPlan(f"{model.name} is not padded, so that there is nothing to write down")
    if form is None or form.library != JAX or form.static or form.partly_static:
        raise InvalidPlan(
            "padding is exported for functions that jax.jit takes, of arrays alone; bind the rest "
            "with functools.partial"
        )
    if form.keyword_count:
        names = ", ".join(form.names[-form.keyword_count :])
        raise InvalidPlan(f"padding is exported for arguments by position; {names} are keywords")
    rows = "\n".join(
        f"    ({argument}, {dim}, {size}, {padded}),  # {path}"
        for argument, dim, size, padded in padding.starts
        for path in [model.program.value_name[argument]]
    )
    text = f"""{inspect.getsource(padded_function)}

# -- {model.name}, {padding} ({__version__} of TOAST Lab) --

#: (leaf of the arguments, dim, size, padded size): what has this size and comes from there
STARTS = (
{rows}
)


def padded_step(fn: Callable[..., Any], *arguments: Any) -> PaddedStep:
    \"\"\"``fn`` on padded arrays; ``arguments`` are arrays or shapes as ``fn`` takes them.

    ``step.pad(*arguments)`` pads them, ``step.cut(results)`` cuts what ``step`` gives.
    \"\"\"
    return PaddedStep(fn, arguments, STARTS)
"""
    syntax.parse(text)
    return text
