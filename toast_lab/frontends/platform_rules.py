"""For which platforms JAX lowers a traced function to the same program, and its other programs.

JAX lowers most primitives alike for every platform. For the others it has a rule for each, such as
``ragged_dot``, linear algebra, hand-written kernels and ``lax.platform_dependent``. ``alike`` walks
a jaxpr for them. Where rules differ, it lowers that one equation for each platform and compares the
texts, so that it need not know what a rule depends on.

All private names of JAX that tracing needs are in this file. Without them every program counts as
that of one platform, and is lowered again for the others.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from toast_lab.errors import FrontendError
from toast_lab.ir.platforms import PLATFORMS

#: JAX's names of the platforms.
_JAX_NAMES = {"cpu": "cpu", "tpu": "tpu", "gpu": "cuda"}
# Their rules differ in nothing that a plan reads: collectives of regions, and callbacks, which are
# dropped or refused.
_SAME_EVERYWHERE = ("all_gather", "debug_", "pbroadcast", "psend", "precv")


def name_in_jax(platform: str) -> str:
    """JAX's name of a platform: "cuda" for "gpu". Raises FrontendError if there is no such one."""
    if platform not in _JAX_NAMES:
        raise FrontendError(
            f"platform {platform!r}: JAX programs are lowered for one of {', '.join(PLATFORMS)}"
        )
    return _JAX_NAMES[platform]


def of_host() -> str:
    """The platform for which JAX lowers by default in this process."""
    backend = jax.default_backend()
    return backend if backend in PLATFORMS else "gpu" if backend in ("cuda", "rocm") else "cpu"


def alike(jaxpr: Any, platform: str) -> frozenset[str]:
    """The platforms for which ``jaxpr`` is lowered to the same program as for ``platform``."""
    rules = _rules()
    if rules is None:
        return frozenset({platform})
    remaining, compared = set(PLATFORMS), set[Any]()
    for eqn in _equations(jaxpr):
        if len(remaining) == 1:
            break
        if eqn.primitive.name in _GROUPS:
            remaining &= _group(_GROUPS[eqn.primitive.name](eqn), platform)
            continue
        rule_of = {name: rules(eqn.primitive, jax_name) for name, jax_name in _JAX_NAMES.items()}
        if len(set(map(id, rule_of.values()))) == 1 or _is_same_everywhere(eqn):
            continue
        key = (eqn.primitive, *(str(variable.aval) for variable in eqn.invars), str(eqn.params))
        if key not in compared:
            compared.add(key)
            remaining &= _group(_lowered_alone(eqn), platform)
    return frozenset(remaining)


def _rules() -> Callable[[Any, str], Any] | None:
    """(primitive, JAX's name of a platform) -> its lowering rule; None if JAX does not tell."""
    try:
        from jax._src.interpreters import mlir

        specific, general = mlir._platform_specific_lowerings, mlir._lowerings
    except (ImportError, AttributeError):
        return None

    def rule(primitive: Any, jax_name: str) -> Any:
        return specific.get(jax_name, {}).get(primitive, general.get(primitive))

    return rule


def _group(key_of: Mapping[str, Any], platform: str) -> set[str]:
    """The platforms whose keys equal that of ``platform``."""
    return {name for name, key in key_of.items() if key == key_of[platform]}


def _is_same_everywhere(eqn: Any) -> bool:
    """Is an equation lowered alike although the rules of its primitive differ?"""
    name = eqn.primitive.name
    if name == "dot_general":
        # The rules differ in their casts of operands of different types, and in what CPUs refuse.
        left, right = (variable.aval.dtype for variable in eqn.invars)
        precision = eqn.params.get("precision")
        return left == right and (
            precision is None or type(precision).__name__ in ("tuple", "Precision")
        )
    if name == "conv_general_dilated":
        return not jax.numpy.issubdtype(eqn.invars[0].aval.dtype, jax.numpy.complexfloating)
    if name in ("scatter-add", "scatter-sub"):
        return str(eqn.invars[0].aval.dtype) != "complex128"
    return name.startswith(_SAME_EVERYWHERE)


def _lowered_alone(eqn: Any) -> dict[str, str]:
    """The program of one equation by platform; the name of the platform where there is none."""
    shapes = [
        jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in eqn.invars
    ]
    texts = {}
    for platform, jax_name in _JAX_NAMES.items():
        try:
            traced = jax.jit(lambda *given: eqn.primitive.bind(*given, **eqn.params)).trace(*shapes)
            texts[platform] = traced.lower(lowering_platforms=(jax_name,)).as_text()
        except Exception:
            texts[platform] = platform
    return texts


def _of_kernel(eqn: Any) -> dict[str, Any]:
    """A kernel is compiled for one platform, unless it is interpreted."""
    if eqn.params.get("interpret"):
        return dict.fromkeys(PLATFORMS, "interpreted")
    return {name: name for name in PLATFORMS}


def _of_index(eqn: Any) -> dict[str, Any]:
    """The branch that ``lax.platform_dependent`` takes on each platform."""
    branches = eqn.params["platforms"]
    return {
        platform: next(
            (i for i, names in enumerate(branches) if names is None or jax_name in names), -1
        )
        for platform, jax_name in _JAX_NAMES.items()
    }


def _of_transfer(eqn: Any) -> dict[str, Any]:
    """Only CPUs leave out transfers between the memory of a device and that of its host."""
    moves = any(
        device is not None and getattr(device, "memory_kind", type(device).__name__) is not None
        for device in eqn.params.get("devices", ())
    )
    return {name: moves and name != "cpu" for name in PLATFORMS}


# Primitives whose equations tell how platforms differ, better than their rules do
_GROUPS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "pallas_call": _of_kernel,
    "mpmd_map": _of_kernel,
    "platform_index": _of_index,
    "device_put": _of_transfer,
}


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those nested in it, but for the inside of kernels."""
    from jax.extend import core

    pending, visited = collections.deque([jaxpr]), set[int]()
    while pending:
        current = pending.popleft()
        current = getattr(current, "jaxpr", current)
        if id(current) in visited:
            continue
        visited.add(id(current))
        for eqn in current.eqns:
            yield eqn
            if eqn.primitive.name in ("pallas_call", "mpmd_map") and not eqn.params.get(
                "interpret"
            ):
                continue
            parameters = list(eqn.params.values())
            while parameters:
                parameter = parameters.pop()
                if isinstance(parameter, core.Jaxpr | core.ClosedJaxpr):
                    pending.append(parameter)
                elif isinstance(parameter, tuple | list):
                    parameters.extend(parameter)
