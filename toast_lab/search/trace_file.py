"""The file of a trace: a zip of plain arrays and one JSON header, read without trusting any of it.

Nothing is unpickled.  The length that each array says it has is compared with what its part of the
zip holds before memory is taken for it, and what a file may unpack to is bounded by the file's own
length, so that a small file never asks for much memory.  A checksum tells a file that was damaged
on its way; ``trace_check`` looks at the numbers themselves, whatever the checksum says.
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

MOST_PARTS = 200  #: arrays of a trace; a search with all that it keeps has about eighty
MOST_BYTES = 4 * 2**30  #: that a trace unpacks to
MOST_HEADER_BYTES = 256 * 2**20
SMALL_BYTES = 64 * 2**20  #: that any file may unpack to ...
MOST_RATIO = 100  #: ... and what a larger trace may unpack to, in lengths of its file
_START_BYTES = 12_000  # of an array's part: its own header is never longer


class Damaged(ValueError):
    """What is wrong with a file, without its name, which the caller adds."""


def read(path: str | os.PathLike[str]) -> tuple[Any, dict[str, np.ndarray]]:
    """(JSON header, arrays by name) of a file, its checksum verified if it has one.

    Raises:
        Damaged: it is not such a file, was cut off or changed, or unpacks to too much.
        OSError: it cannot be opened.
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
            # Damaged bytes make zip, zlib, numpy's header and its parser of literals fail with a
            # dozen kinds of errors; the cause of all of them is the file.
            raise Damaged(
                f"it is no zip of arrays, or was cut off or changed ({_cause(error)})"
            ) from None
    header = _header(arrays)
    if isinstance(header, dict) and (given := header.pop("checksum", None)) is not None:
        actual = checksum(header, arrays)
        if given != actual:
            raise Damaged(
                f"its contents have checksum {actual}, it says {str(given)[:40]}: it was changed "
                "or damaged"
            )
    return header, arrays


def checksum(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Checksum of everything in a file: 32 hexadecimal digits."""
    total = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} {array.dtype.str} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _parts(file: zipfile.ZipFile, length: int) -> dict[str, zipfile.ZipInfo]:
    """The parts of a zip by the names of their arrays; they unpack to no more than a trace may."""
    infos = file.infolist()
    if len(infos) > MOST_PARTS:
        raise Damaged(f"it holds {len(infos)} arrays, a search trace has at most {MOST_PARTS}")
    parts: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name, dot, suffix = info.filename.rpartition(".")
        if not dot or suffix != "npy":
            raise Damaged(f"it holds {_short(info.filename)}, which is no array")
        if name in parts:
            raise Damaged(f"it holds {_short(name)} twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Damaged(f"{_short(name)} is compressed in a way that numpy does not write")
        parts[name] = info
    total = sum(i.file_size for i in infos)
    most = min(MOST_BYTES, max(SMALL_BYTES, MOST_RATIO * length))
    if total > most:
        raise Damaged(
            f"it unpacks to {total / 2**20:.0f} MiB, at most {most / 2**20:.0f} MiB are read from "
            "a file of "
            f"{length / 2**20:.1f} MiB"
        )
    return parts


def _announced(
    file: zipfile.ZipFile, part: zipfile.ZipInfo
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """(dtype, shape, in Fortran's order, where the numbers begin) of an array, all there."""
    name = _short(part.filename.removesuffix(".npy"))
    with file.open(part) as stream:
        start = io.BytesIO(stream.read(min(_START_BYTES, part.file_size)))
    version = np.lib.format.read_magic(start)
    if version != (1, 0):
        raise Damaged(f"{name} is an array of format {version}, which no search trace has")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(start)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise Damaged(f"{name} is an array of {dtype}, not of numbers")
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise Damaged(f"{name} has shape {shape}")
    expected, held = dtype.itemsize * math.prod(shape), part.file_size - start.tell()
    if expected != held:
        raise Damaged(
            f"{name} says that it has shape {shape} of {dtype}, {expected} bytes, and holds {held}"
        )
    return dtype, tuple(shape), fortran, start.tell()


def _array(
    file: zipfile.ZipFile,
    part: zipfile.ZipInfo,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    fortran: bool,
    begin: int,
) -> np.ndarray:
    with file.open(part) as stream:
        # never more than the part's ``file_size``; at the end its CRC is verified
        data = stream.read()
    numbers = np.frombuffer(data, dtype, offset=begin) if len(data) > begin else np.zeros(0, dtype)
    return (numbers.reshape(shape[::-1]).T if fortran else numbers.reshape(shape)).copy()


def _header(arrays: dict[str, np.ndarray]) -> Any:
    raw = arrays.pop("header", None)
    if raw is None:
        raise Damaged("it has no array called header")
    if raw.dtype != np.uint8 or raw.ndim != 1 or len(raw) > MOST_HEADER_BYTES:
        raise Damaged(f"its header is an array of {raw.dtype} of shape {raw.shape}, not a text")
    try:
        return json.loads(raw.tobytes(), parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its header is no JSON ({_cause(error)})") from None


def _constant(text: str) -> float:
    if text == "Infinity":  # a memory limit may be none
        return float(text)
    raise ValueError(f"{text} is no number of a trace")


def _cause(error: BaseException) -> str:
    return (
        f"{type(error).__name__}: {_short(str(error), 160)}" if str(error) else type(error).__name__
    )


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."
