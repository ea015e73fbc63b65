"""The file of a trace: a zip of plain arrays and one JSON header, read without trusting any of it.

Nothing is unpickled. The length that each array claims is compared with the size of its part of the
zip before memory is allocated, and the unpacked size of a file is bounded by the file's own length,
so that a small file never takes much memory. A checksum detects a file that was damaged in
transit; ``trace_check`` checks the numbers themselves, whatever the checksum says.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MOST_PARTS = 200  #: most arrays of a trace; a trace with all that a method keeps has about eighty
MOST_BYTES = 4 * 2**30  #: most bytes that a trace may unpack to
MOST_HEADER_BYTES = 256 * 2**20
SMALL_BYTES = 64 * 2**20  #: bytes that any file may unpack to
MOST_RATIO = 100  #: unpacked size over file length that is allowed above ``SMALL_BYTES``
_START_BYTES = 12_000  # read first of each array; no array header is longer


class Damaged(ValueError):
    """A file is damaged; the message does not name the file, which the caller adds."""


def read(path: str | os.PathLike[str]) -> tuple[Any, dict[str, np.ndarray]]:
    """(JSON header, arrays by name) of a file, its checksum verified if it has one.

    Raises:
        Damaged: the file is not a trace, was cut off or changed, or unpacks to too much.
        OSError: the file cannot be opened.
    """
    with Path(path).open("rb") as handle:
        length = os.fstat(handle.fileno()).st_size
        try:
            with zipfile.ZipFile(handle) as file:
                parts = _parts(file, length)
                shapes = {name: _announced(file, part) for name, part in parts.items()}
                arrays = {name: _array(file, part, *shapes[name]) for name, part in parts.items()}
        except (Damaged, OSError):
            raise
        except Exception as error:
            # Damaged bytes make zipfile, zlib and numpy's header parser fail with a dozen kinds of
            # errors; the cause of all of them is the file.
            raise Damaged(
                f"it is not a zip file of arrays, or was cut off or changed ({_cause(error)})"
            ) from None
    header = _header(arrays)
    if isinstance(header, dict) and (stored := header.pop("checksum", None)) is not None:
        actual = checksum(header, arrays)
        if stored != actual:
            raise Damaged(
                f"it says checksum {str(stored)[:40]}, but its contents have checksum {actual}: it "
                "was changed or damaged"
            )
    return header, arrays


def checksum(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """The checksum of a header and all arrays: 32 hexadecimal digits."""
    hasher = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        hasher.update(f"{name} {array.dtype.str} {array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def _parts(file: zipfile.ZipFile, length: int) -> dict[str, zipfile.ZipInfo]:
    """The parts of a zip by the names of their arrays, their number and unpacked size checked."""
    infos = file.infolist()
    if len(infos) > MOST_PARTS:
        raise Damaged(f"it holds {len(infos)} arrays, but a search trace has at most {MOST_PARTS}")
    parts: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name, dot, suffix = info.filename.rpartition(".")
        if not dot or suffix != "npy":
            raise Damaged(f"it holds {_short(info.filename)}, which is not an array")
        if name in parts:
            raise Damaged(f"it holds {_short(name)} twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Damaged(f"{_short(name)} is compressed in a way that numpy does not write")
        parts[name] = info
    total = sum(info.file_size for info in infos)
    most = min(MOST_BYTES, max(SMALL_BYTES, MOST_RATIO * length))
    if total > most:
        raise Damaged(
            f"it unpacks to {total / 2**20:.0f} MiB, but at most {most / 2**20:.0f} MiB are read "
            f"from a file of {length / 2**20:.1f} MiB"
        )
    return parts


def _announced(
    file: zipfile.ZipFile, part: zipfile.ZipInfo
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """(dtype, shape, is in Fortran order, offset of the numbers) as an array's header claims.

    Raises Damaged if the numbers in the part are fewer or more than that.
    """
    name = _short(part.filename.removesuffix(".npy"))
    with file.open(part) as stream:
        header = io.BytesIO(stream.read(min(_START_BYTES, part.file_size)))
    version = np.lib.format.read_magic(header)
    if version != (1, 0):
        raise Damaged(f"{name} is an array of format {version}, which no search trace has")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(header)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise Damaged(f"{name} is an array of {dtype}, not of numbers")
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise Damaged(f"{name} has shape {shape}")
    expected, held = dtype.itemsize * math.prod(shape), part.file_size - header.tell()
    if expected != held:
        raise Damaged(
            f"{name} says that it has shape {shape} of {dtype}, {expected} bytes, but holds {held}"
        )
    return dtype, tuple(shape), is_fortran, header.tell()


def _array(
    file: zipfile.ZipFile,
    part: zipfile.ZipInfo,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    is_fortran: bool,
    begin: int,
) -> np.ndarray:
    with file.open(part) as stream:
        # Reads at most the part's ``file_size``, and verifies its CRC at the end.
        data = stream.read()
    numbers = np.frombuffer(data, dtype, offset=begin) if len(data) > begin else np.zeros(0, dtype)
    return (numbers.reshape(shape[::-1]).T if is_fortran else numbers.reshape(shape)).copy()


def _header(arrays: dict[str, np.ndarray]) -> Any:
    raw = arrays.pop("header", None)
    if raw is None:
        raise Damaged("it has no array called header")
    if raw.dtype != np.uint8 or raw.ndim != 1 or len(raw) > MOST_HEADER_BYTES:
        raise Damaged(f"its header is an array of {raw.dtype} of shape {raw.shape}, not a text")
    try:
        return json.loads(raw.tobytes(), parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its header is not JSON ({_cause(error)})") from None


def _constant(text: str) -> float:
    if text == "Infinity":  # stands for no memory limit
        return float(text)
    raise ValueError(f"{text} is not a number that a trace can hold")


def _cause(error: BaseException) -> str:
    return (
        f"{type(error).__name__}: {_short(str(error), 160)}" if str(error) else type(error).__name__
    )


def _short(text: str, most_characters: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most_characters else text[: most_characters - 3] + "..."
