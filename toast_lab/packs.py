"""Packs: named tuples of arrays that compiled code takes as one pointer.

Kernels read dozens of arrays. Numba passes a named tuple by value, so that every array becomes
seven or more arguments of every function that the tuple is passed to, with references counted at
every call: compiling that took most of a minute, and running it several times as long as the work
itself. A class decorated with ``packed`` is still a named tuple for Python. For compiled code it is
the address of a buffer that holds the address and the shape of each array, and each number; fields
are accessed by name, as in Python.

    @packed
    class Rows(NamedTuple):
        begin: Int64Array
        item: Int32Array

The annotations are enforced: a pack with an array of another type is refused, so that every kernel
is compiled for one set of types, which is known before anything runs (see ``toast_lab.kernels``).
Arrays must be C-contiguous. Fields may be packs themselves; their buffers are part of the outer
buffer.

This module does not import Numba, which takes long.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from toast_lab import kernel_files


class ArrayType(NamedTuple):
    """Element type and rank of an array, as an annotation states them."""

    dtype: str
    ndim: int


BoolArray = Annotated[np.ndarray, ArrayType("bool", 1)]
BoolMatrix = Annotated[np.ndarray, ArrayType("bool", 2)]
Int8Array = Annotated[np.ndarray, ArrayType("int8", 1)]
Int8Matrix = Annotated[np.ndarray, ArrayType("int8", 2)]
Int8Cube = Annotated[np.ndarray, ArrayType("int8", 3)]
Int16Array = Annotated[np.ndarray, ArrayType("int16", 1)]
Int32Array = Annotated[np.ndarray, ArrayType("int32", 1)]
Int32Matrix = Annotated[np.ndarray, ArrayType("int32", 2)]
Int32Cube = Annotated[np.ndarray, ArrayType("int32", 3)]
Int64Array = Annotated[np.ndarray, ArrayType("int64", 1)]
Int64Matrix = Annotated[np.ndarray, ArrayType("int64", 2)]
Int64Cube = Annotated[np.ndarray, ArrayType("int64", 3)]
UInt64 = Annotated[np.uint64, np.uint64]
UInt64Array = Annotated[np.ndarray, ArrayType("uint64", 1)]
UInt64Matrix = Annotated[np.ndarray, ArrayType("uint64", 2)]
Float64Array = Annotated[np.ndarray, ArrayType("float64", 1)]
Float64Matrix = Annotated[np.ndarray, ArrayType("float64", 2)]

_SCALARS = {bool: "bool", int: "int64", float: "float64", np.uint64: "uint64"}


class Field(NamedTuple):
    """A field of a pack, and its position in the pack's buffer."""

    name: str = ""
    slot: int = 0  #: first of its 8-byte slots
    array: ArrayType | None = None
    scalar: str | None = None  #: dtype of a number
    pack: type | None = None  #: class of an inner pack


@functools.cache
def fields(pack: type) -> tuple[Field, ...]:
    """The fields of a packed class, in order.

    An array takes 1 + rank slots, a number one, and a pack as many as its fields take.
    """
    packed_fields, next_slot = [], 0
    for name, hint in get_type_hints(pack, include_extras=True).items():
        field = field_of(hint)
        if field is None:
            raise TypeError(
                f"{pack.__name__}.{name}: {hint} must be an array of a known type, a number or a "
                "pack"
            )
        packed_fields.append(field._replace(name=name, slot=next_slot))
        next_slot += _slots(field)
    return tuple(packed_fields)


def dtypes(pack: type) -> dict[str, str]:
    """Element types of the arrays of a packed class, by field."""
    return {field.name: field.array.dtype for field in fields(pack) if field.array is not None}


def zeros(pack: type, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Arrays of zeros for fields of a packed class, with the element types that it declares."""
    return {name: np.zeros(shape, dtypes(pack)[name]) for name, shape in shapes.items()}


def size(pack: type) -> int:
    """Number of 8-byte slots of a pack."""
    return sum(map(_slots, fields(pack)))


def field_of(hint: Any) -> Field | None:
    """The field that an annotation describes, without name and slot; None if it suits no pack."""
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, ArrayType):
            return Field(array=extra)
        return Field(scalar=np.dtype(extra).name)
    if hint in _SCALARS:
        return Field(scalar=_SCALARS[hint])
    return Field(pack=hint) if isinstance(hint, type) and issubclass(hint, Pack) else None


def _slots(field: Field) -> int:
    if field.array is not None:
        return 1 + field.array.ndim
    return 1 if field.pack is None else size(field.pack)


Class = TypeVar("Class", bound=type)


def packed(plain: Class) -> Class:
    """Decorate a named tuple so that compiled code takes its instances as one pointer."""
    kernel_files.remember(getattr(sys.modules[plain.__module__], "__file__", None))
    attributes = {key: getattr(plain, key) for key in ("__module__", "__qualname__", "__doc__")}
    return type(plain.__name__, (Pack, plain), attributes)  # type: ignore[return-value]


class Pack:
    """Base of the classes that ``packed`` makes."""

    # Cached so that the interpreter finds it without a call, since kernels read it at every call.
    @functools.cached_property
    def _address_(self) -> int:
        """Address of the buffer, which is made at the first use.

        The instance keeps the buffer and the arrays alive.
        """
        buffer = np.zeros(size(type(self)), np.int64)
        _write(self, type(self), buffer, 0)
        # Threads that run this at the same time must agree on one buffer: the other would be freed
        # while a kernel uses it.
        return int(self.__dict__.setdefault("_buffer_", buffer).ctypes.data)

    def __getstate__(self) -> None:
        """Pickle no addresses, which mean nothing in other processes; a tuple's fields are kept."""


class PackMaker:
    """Makes packs of one class, with arrays of zeros in the shapes of an example's arrays.

    A whole pack occupies one piece of memory, with its buffer first. Reading the address of an
    array takes Python as long as some kernels run, and this way only one address has to be read.
    Numbers are those of the example.
    """

    def __init__(self, example: Any) -> None:
        n_slots = size(type(example))
        self._head = np.zeros(n_slots, np.int64)
        _write(example, type(example), self._head, 0)
        self._slots: list[int] = []
        self._begins: list[int] = []
        self._n_bytes = 8 * n_slots
        self._make = self._maker(example, type(example), 0)
        self._places = np.array(self._slots, np.int64)
        self._offsets = np.array(self._begins, np.int64)

    def __call__(self) -> Any:
        """A new pack."""
        memory = np.zeros(-(-self._n_bytes // 8), np.int64)
        address = int(memory.ctypes.data)
        memory[: len(self._head)] = self._head
        memory[self._places] = self._offsets + address
        pack = self._make(memory)
        pack.__dict__.update(_buffer_=memory, _address_=address)
        return pack

    def _maker(self, values: Any, pack: type, first_slot: int) -> Callable[[np.ndarray], Any]:
        makers: list[Callable[..., Any]] = []
        for field, value in zip(fields(pack), values, strict=True):
            if field.pack is not None:
                makers.append(self._maker(value, field.pack, first_slot + field.slot))
            elif field.array is not None:
                shape, dtype, offset = value.shape, value.dtype, self._n_bytes
                view: Any = np.ndarray
                makers.append(functools.partial(view, shape, dtype, offset=offset))
                self._slots.append(first_slot + field.slot)
                self._begins.append(offset)
                self._n_bytes += -(-value.nbytes // 8) * 8
            else:
                makers.append(lambda _, value=value: value)
        return lambda memory: pack(*[make(memory) for make in makers])


def _write(values: Any, pack: type, buffer: np.ndarray, first_slot: int) -> None:
    for field, value in zip(fields(pack), values, strict=True):
        slot = first_slot + field.slot
        if field.pack is not None:
            _write(value, field.pack, buffer, slot)
        elif field.array is not None:
            if (
                value.dtype != field.array.dtype
                or value.ndim != field.array.ndim
                or not value.flags.c_contiguous
            ):
                raise TypeError(
                    f"{pack.__name__}.{field.name} is {value.dtype} of shape {value.shape}"
                    f"{'' if value.flags.c_contiguous else ', not contiguous'}; kernels are "
                    "compiled for "
                    f"contiguous {field.array.dtype} of rank {field.array.ndim}"
                )
            buffer[slot] = value.ctypes.data
            buffer[slot + 1 : slot + 1 + value.ndim] = value.shape
        elif field.scalar == "float64":
            buffer[slot] = struct.unpack("q", struct.pack("d", value))[0]
        elif field.scalar == "uint64":
            buffer[slot] = np.uint64(value).astype(np.int64)
        else:
            buffer[slot] = int(value)
