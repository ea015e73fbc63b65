"""For which platforms JAX lowers a traced function to the same program, and its other programs.

JAX lowers most primitives alike for every platform. For the others it has a rule for each, such as
``ragged_dot``, linear algebra, hand-written kernels and ``lax.platform_dependent``. ``alike`` walks
a jaxpr for them. Where rules differ, it lowers that one equation for each platform and compares the
texts, so that it need not know what a rule depends on.

All private names of JAX that tracing needs are in this file, but for those of
``partitioned_functions``. Without them every program counts as that of one platform, and is lowered
again for the others.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from toast_lab.errors import FrontendError
from toast_lab.frontends import partitioned_functions, user_code, wrapped_kernels
from toast_lab.frontends.traced_keys import jaxprs_in
from toast_lab.ir.kernel_rules import WRAPPED
from toast_lab.ir.platform_names import PLATFORMS

#: JAX's names of the platforms.
_JAX_NAMES = {"cpu": "cpu", "tpu": "tpu", "gpu": "cuda"}
_KERNELS = ("pallas_call", "mpmd_map")
# Their rules differ in nothing that a plan reads (collectives of regions; callbacks, which are
# dropped or refused), or are made of ops that are lowered alike.
_SAME_EVERYWHERE = (
    "all_gather",
    "debug_",
    "pbroadcast",
    "psend",
    "precv",
    "logistic",
    "argm",
    "conj",
)


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


def lower(traced: Any, platform: str) -> Any:
    """Lower a trace for a platform that need not be attached. Raises what JAX raises.

    CPUs have no kernels of their own: those of other platforms are interpreted on them, block by
    block.
    """
    platforms = (name_in_jax(platform),)
    has_own = has_kernels(traced.jaxpr)
    is_interpreted = platform == "cpu" and has_own
    try:
        with _facts_of_accelerators() if has_own else contextlib.nullcontext():
            return lower_own(traced, platforms)
    except Exception:
        if not is_interpreted:
            raise
        return lower_own(traced, platforms, interpreted=True)


@contextlib.contextmanager
def _facts_of_accelerators() -> Iterator[None]:
    """Let Pallas lower kernels on a host without their accelerator.

    For some kernels it asks the host's device for the sizes of its units or its version, and takes
    those that are registered for its kind. Then this is a TPU v5e and an H100.
    """
    added: list[tuple[dict[str, Any], str]] = []
    for find in (_tpu_facts, _gpu_facts):
        try:
            registry, kind, facts = find()
        except (ImportError, AttributeError, TypeError):
            continue  # this version of JAX does not ask
        if facts is not None and kind not in registry:
            registry[kind] = lambda facts=facts: facts
            added.append((registry, kind))
    try:
        yield
    finally:
        for registry, kind in added:
            del registry[kind]


def _tpu_facts() -> tuple[dict[str, Any], str, Any]:
    """(what is registered by kind, the kind of this host, facts for it; None if it is known)."""
    from jax._src.pallas.mosaic import tpu_info

    kind = tpu_info.get_device_kind()
    if tpu_info.chip_version_from_device_kind(kind) is not None:
        return tpu_info.registry, kind, None
    facts = tpu_info._get_tpu_info_impl(tpu_info.ChipVersion.TPU_V5E, 1)
    return tpu_info.registry, kind, facts


def _gpu_facts() -> tuple[dict[str, Any], str, Any]:
    """``_tpu_facts`` for GPUs."""
    gpu_info: Any = importlib.import_module("jax._src.pallas.triton.gpu_info")
    kind = gpu_info.get_device_kind()
    if gpu_info.gpu_version_from_device_kind(kind) is not None:
        return gpu_info.registry, kind, None
    return gpu_info.registry, kind, gpu_info._get_gpu_info_impl(gpu_info.GpuVersion.H100)


def lower_own(traced: Any, platforms: tuple[str, ...] | None, *, interpreted: bool = False) -> Any:
    """``traced.lower`` with wrapped kernels as one op, and all others interpreted if asked."""
    rules = _interpreting() if interpreted else []
    rules = [*rules, *partitioned_functions.rules(_equations(traced.jaxpr))]
    if any(eqn.primitive.name == WRAPPED for eqn in _equations(traced.jaxpr)):
        rules = [*rules, (wrapped_kernels.primitive(), wrapped_kernels.lower_as_one)]
    if not rules:
        return traced.lower(lowering_platforms=platforms)
    from jax._src.interpreters import mlir

    parameters = mlir.LoweringParameters(override_lowering_rules=tuple(rules))
    return traced.lower(lowering_platforms=platforms, _private_parameters=parameters)


def offenders(jaxpr: Any, platform: str) -> list[str]:
    """Primitives that JAX cannot lower for a platform, and kernels, with the user's lines."""
    rules, jax_name = _rules(), name_in_jax(platform)
    if rules is None:
        return []
    texts = []
    for eqn, callers in _called_equations(jaxpr):
        is_kernel = eqn.primitive.name in _KERNELS and not eqn.params.get("interpret")
        if rules(eqn.primitive, jax_name) is None or is_kernel:
            texts.append(f"{eqn.primitive.name}{_line(eqn, callers)}")
    return list(dict.fromkeys(texts))


def _line(eqn: Any, callers: tuple[Any, ...]) -> str:
    return user_code.line_of(
        (frame.file_name, frame.line_num)
        for nested in (eqn, *callers)
        for frame in getattr(nested.source_info.traceback, "frames", ())
    )


def notes(jaxpr: Any) -> list[str]:
    """What is not as the user may expect of the functions that partition themselves."""
    return partitioned_functions.notes(
        (eqn, _line(eqn, callers)) for eqn, callers in _called_equations(jaxpr)
    )


def has_kernels(jaxpr: Any) -> bool:
    """Does a jaxpr call kernels that are not interpreted?"""
    return any(
        eqn.primitive.name == "pallas_call" and not eqn.params.get("interpret")
        for eqn in _equations(jaxpr)
    )


def _interpreting() -> list[Any]:
    """Lowering rules by which kernels are interpreted; none if JAX has no such mode."""
    try:
        from jax._src.pallas import pallas_call

        primitive, lowering = pallas_call.pallas_call_p, pallas_call._pallas_call_lowering
    except (ImportError, AttributeError):
        return []

    def interpreted(context: Any, *operands: Any, interpret: Any, **params: Any) -> Any:
        return lowering(context, *operands, interpret=interpret or True, **params)

    return [(primitive, interpreted)]


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """Let functions that use cuDNN be traced where there is none.

    JAX asks for its version and for the GPU during the trace. They are answered as for a Hopper
    with a recent cuDNN if there is no GPU.
    """
    try:
        from jax._src.cudnn import fused_attention_stablehlo as attention

        asked = {name: getattr(attention, name) for name in _ANSWERS}
        is_installed = attention.cuda_versions is not None
    except (ImportError, AttributeError):
        yield
        return
    if is_installed and of_host() == "gpu":
        yield
        return
    try:
        for name, answer in _ANSWERS.items():
            setattr(attention, name, answer)
        yield
    finally:
        for name, function in asked.items():
            setattr(attention, name, function)


_ANSWERS: dict[str, Callable[..., Any]] = {
    "check_cudnn_version": lambda: 91100,
    "check_compute_capability": lambda capability: float(capability) <= 9.0,
    "is_cuda_compute_capability_equal": lambda capability: capability == "9.0",
}


def alike(jaxpr: Any, platform: str) -> frozenset[str]:
    """The platforms for which ``jaxpr`` is lowered to the same program as for ``platform``."""
    rules = _rules()
    if rules is None:
        return frozenset({platform})
    remaining, compared = set(PLATFORMS), set[Any]()
    for eqn in _equations(jaxpr):
        if len(remaining) == 1:
            break
        if partitioned_functions.has_rule(eqn):
            continue
        if eqn.primitive.name in _GROUPS:
            remaining &= _group(_GROUPS[eqn.primitive.name](eqn), platform)
            continue
        rule_of = {name: rules(eqn.primitive, jax_name) for name, jax_name in _JAX_NAMES.items()}
        is_one_rule = len(set(map(id, rule_of.values()))) == 1
        if (is_one_rule and not _calls_others(eqn, rule_of["cpu"])) or _is_same_everywhere(eqn):
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
        entry = specific.get(jax_name, {}).get(primitive, general.get(primitive))
        return getattr(entry, "rule", entry)

    return rule


def _group(key_of: Mapping[str, Any], platform: str) -> set[str]:
    """The platforms whose keys equal that of ``platform``."""
    return {name for name, key in key_of.items() if key == key_of[platform]}


def _calls_others(eqn: Any, rule: Any) -> bool:
    """May the rule of an equation lower other primitives, which its jaxprs do not show?"""
    if eqn.primitive.name.startswith("random_"):  # typed keys, down to the bits of their kind
        return True
    if "lower_fun" not in getattr(rule, "__qualname__", ""):
        return False
    return not any(jaxprs_in(eqn))


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
    WRAPPED: lambda eqn: dict.fromkeys(PLATFORMS, "one op"),
    "pallas_call": _of_kernel,
    "mpmd_map": _of_kernel,
    "platform_index": _of_index,
    "device_put": _of_transfer,
}


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those nested in it, but for the inside of kernels."""
    return (eqn for eqn, _ in _called_equations(jaxpr))


def _called_equations(jaxpr: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """``_equations``, each with the equations that it is nested in, innermost first."""
    pending: collections.deque[tuple[Any, tuple[Any, ...]]] = collections.deque([(jaxpr, ())])
    visited = set[int]()
    while pending:
        current, callers = pending.popleft()
        current = getattr(current, "jaxpr", current)
        if id(current) in visited:
            continue
        visited.add(id(current))
        for eqn in current.eqns:
            yield eqn, callers
            is_kernel = eqn.primitive.name in _KERNELS and not eqn.params.get("interpret")
            if is_kernel or partitioned_functions.has_rule(eqn):
                continue
            pending.extend((inner, (eqn, *callers)) for inner in jaxprs_in(eqn))
