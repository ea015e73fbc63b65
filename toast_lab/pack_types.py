"""The Numba type of packs (see ``toast_lab.packs``).

For Numba a pack is a pointer, whose fields are read where they are used.

Loads from the buffer are marked as invariant, so that the compiler moves them out of loops. Arrays
made from them belong to Python, and their references are not counted.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)
from numba.np.arrayobj import populate_array

from toast_lab.packs import ArrayType, Field, Pack, fields


def array_type(array: ArrayType) -> Any:
    """The Numba type of an array in a pack."""
    return numba.types.Array(numba.from_dtype(np.dtype(array.dtype)), array.ndim, "C")


class PackType(numba.types.Type):
    """The type of a packed class, identified by the module and name of the class."""

    def __init__(self, pack: type) -> None:
        self.pack = pack
        super().__init__(name=f"Pack({pack.__module__}.{pack.__qualname__})")

    def field(self, name: str) -> Field | None:
        """The field of this name, None if there is none."""
        return next((field for field in fields(self.pack) if field.name == name), None)


def field_type(field: Field) -> Any:
    """The Numba type of a field."""
    if field.pack is not None:
        return PackType(field.pack)
    return (
        getattr(numba.types, str(field.scalar)) if field.array is None else array_type(field.array)
    )


@typeof_impl.register(Pack)
def _typeof(value: Any, context: Any) -> PackType:
    return PackType(type(value))


@register_model(PackType)
class _Model(models.OpaqueModel):  # type: ignore[misc]
    """An untyped pointer."""


@infer_getattr
class _Attributes(AttributeTemplate):  # type: ignore[misc]
    key = PackType

    def generic_resolve(self, pack: PackType, name: str) -> Any:  # type: ignore[override]
        field = pack.field(name)
        return None if field is None else field_type(field)


@unbox(PackType)
def _unbox(_: PackType, value: Any, context: Any) -> NativeValue:
    address = context.pyapi.object_getattr_string(value, "_address_")
    is_null = cgutils.is_null(context.builder, address)
    pointer = cgutils.alloca_once(context.builder, cgutils.voidptr_t, zfill=True)
    with context.builder.if_then(context.builder.not_(is_null), likely=True):
        context.builder.store(context.pyapi.long_as_voidptr(address), pointer)
        context.pyapi.decref(address)
    return NativeValue(context.builder.load(pointer), is_error=is_null)


@lower_getattr_generic(PackType)
def _read(context: Any, builder: Any, pack: PackType, value: Any, name: str) -> Any:
    field = pack.field(name)
    assert field is not None
    numba_type = field_type(field)
    slots = builder.bitcast(value, ir.IntType(64).as_pointer())

    def slot(offset: int) -> Any:
        return builder.gep(slots, [ir.IntType(64)(field.slot + offset)], inbounds=True)

    def load(pointer: Any) -> Any:
        loaded = builder.load(pointer)
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if field.pack is not None:
        return builder.bitcast(slot(0), cgutils.voidptr_t)
    if field.array is None:
        value_type = context.get_value_type(numba_type)
        if isinstance(numba_type, numba.types.Boolean):
            return builder.icmp_unsigned("!=", load(slot(0)), ir.IntType(64)(0))
        return load(builder.bitcast(slot(0), value_type.as_pointer()))
    array = context.make_array(numba_type)(context, builder)
    element = context.get_data_type(numba_type.dtype)
    item_bytes = context.get_abi_sizeof(element)
    shape = [load(slot(1 + dim)) for dim in range(numba_type.ndim)]
    strides: list[Any] = []
    stride = ir.IntType(64)(item_bytes)
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride = builder.mul(stride, extent)
    populate_array(
        array,
        data=load(builder.bitcast(slot(0), element.as_pointer().as_pointer())),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=ir.IntType(64)(item_bytes),
        meminfo=None,
    )
    return impl_ret_borrowed(context, builder, numba_type, array._getvalue())
