"""Descriptions of GPUs to compile for that need not be attached.

Each known GPU is a file in ``gpu_targets/``, with every number from a public data sheet. Users can
describe another GPU in the same way:

    name = "my-gpu"
    compute_capability = "9.0"
    multiprocessors = 132
    fp32_lanes = 128                       # of one multiprocessor
    clock_hz = 1.98e9
    memory_bytes = 80e9
    memory_bytes_per_s = 3.35e12
    l2_bytes = 52428800
    shared_memory_bytes = 233472           # of one multiprocessor
    shared_memory_per_block_bytes = 232448 # the most that one block can have
    title = "My GPU"                       # optional: what the device calls itself
    machine = "h100"                       # optional: the machine that plans for it are priced on
    memory_sustained = 0.9                 # optional, 1 by default: share of the rate in kernels
    threads = 2048                         # optional: of one multiprocessor
    registers = 65536                      # optional: of one multiprocessor
    [sources]                              # optional texts: where the numbers come from

``proto_text`` writes such a GPU in XLA's own format. It adds the numbers that all NVIDIA GPUs share
(blocks of at most 1024 threads, 48 KiB of shared memory without opting in, limits of a grid).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toast_lab.errors import InvalidProblem, did_you_mean, join_offenders

FOLDER = Path(__file__).parent / "gpu_targets"
#: Known GPUs, in the order in which lists show them.
NAMES = ("h100", "a100", "p100", "h200", "b200")
#: Part of a GPU's memory that JAX's allocator takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says
#: otherwise.
DEFAULT_MEMORY_SHARE = 0.75
#: A description is about a page long; a larger file is not one.
LARGEST_BYTES = 2**20

_POSITIVE = (
    "multiprocessors",
    "fp32_lanes",
    "clock_hz",
    "memory_bytes",
    "memory_bytes_per_s",
    "l2_bytes",
    "shared_memory_bytes",
    "shared_memory_per_block_bytes",
    "threads",
    "registers",
    "memory_sustained",
)
_WHOLE = {*_POSITIVE} - {"clock_hz", "memory_bytes_per_s", "memory_sustained"}
_OPTIONAL = ("threads", "registers", "memory_sustained")
_TEXTS = ("name", "title", "machine")
_LARGEST = 2**62  # the fields of XLA's description are 64 bits wide

# The first compute capability with arithmetic on bfloat16 (Ampere).
_FIRST_WITH_BFLOAT16 = (8, 0)


@dataclasses.dataclass(frozen=True)
class GpuTarget:
    """One kind of GPU; shared memory, threads and registers are those of one multiprocessor."""

    name: str  #: of a known GPU, or the path of its file
    compute_capability: tuple[int, int]  #: (9, 0)
    multiprocessors: int
    fp32_lanes: int  #: of one multiprocessor
    clock_hz: float
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    shared_memory_bytes: int
    shared_memory_per_block_bytes: int
    title: str = ""  #: what the device calls itself
    machine: str = ""  #: name of the machine that plans are priced on, "" if the file names none
    threads: int = 2048
    registers: int = 65536
    memory_sustained: float = 1.0  #: share of ``memory_bytes_per_s`` that kernels reach, at most 1
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def has_bfloat16(self) -> bool:
        """Does the GPU support bfloat16? If not, XLA widens every such value to float32."""
        return self.compute_capability >= _FIRST_WITH_BFLOAT16

    @property
    def architecture(self) -> str:
        """The compiler's name for the generation, "sm_90"."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    @property
    def xla_name(self) -> str:
        """The device name that the compiler is given.

        If an architecture has several measured tables, XLA chooses one by a word of this name.
        """
        if self.compute_capability == (10, 0):
            return "NVIDIA GB200" if "gb200" in self.title.lower() else "NVIDIA B200"
        return self.title

    @property
    def reached_bytes_per_s(self) -> float:
        """The rate of memory traffic that kernels reach.

        XLA is given this rate, because its cost model assumes that kernels reach it.
        """
        return self.memory_sustained * self.memory_bytes_per_s

    @property
    def default_memory_bytes(self) -> float:
        """Bytes that JAX's allocator takes by default."""
        return self.memory_bytes * DEFAULT_MEMORY_SHARE

    def proto_text(self) -> str:
        """The GPU as a text of XLA's ``GpuTargetConfigProto``."""
        major, minor = self.compute_capability
        name = self.xla_name.replace("\\", "\\\\").replace('"', '\\"')
        return f"""gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {self.multiprocessors}
  fpus_per_core: {self.fp32_lanes}
  clock_rate_ghz: {self.clock_hz / 1e9:.9g}
  device_memory_size: {self.memory_bytes}
  memory_bandwidth: {round(self.reached_bytes_per_s)}
  l2_cache_size: {self.l2_bytes}
  shared_memory_per_core: {self.shared_memory_bytes}
  shared_memory_per_block: {min(49152, self.shared_memory_per_block_bytes)}
  shared_memory_per_block_optin: {self.shared_memory_per_block_bytes}
  threads_per_core_limit: {self.threads}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  registers_per_core_limit: {self.registers}
  registers_per_block_limit: {min(65536, self.registers)}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 9 patch: 0 }}
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""


def find(which: str) -> GpuTarget:
    """A known GPU by name, or the GPU that a file describes (a name that ends in ``.toml``).

    Raises:
        InvalidProblem: there is no such GPU (the message says how to describe one), or the file is
            wrong (the message lists all mistakes).
    """
    if which.lower().endswith(".toml"):
        return read(which)
    if which.lower() in NAMES:
        return _known(which.lower())
    raise InvalidProblem(
        f"no GPU is known as {which!r}{did_you_mean(which.lower(), NAMES)}. Known are "
        f'{", ".join(NAMES)}. Describe another one in a file, as in "gpu:./my_gpu.toml:8": '
        f"copy {FOLDER / 'h100.toml'} and change its numbers to those of the data sheet"
    )


@functools.cache
def _known(name: str) -> GpuTarget:
    return read(FOLDER / f"{name}.toml", name)


def read(path: str | Path, name: str = "") -> GpuTarget:
    """The GPU that a file describes; ``name`` is its name, by default the path.

    Raises:
        InvalidProblem: the file is missing, not TOML or wrong; every offending key is listed.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise InvalidProblem(
                f"{file}: {file.stat().st_size} bytes are too many for the description of a GPU"
            )
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidProblem(
            f"{file}: cannot read this description of a GPU: {error.strerror}. The known ones "
            f"({', '.join(NAMES)}) in {FOLDER} are examples"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidProblem(f"{file}: this is not TOML: {error}") from None
    return parse(data, str(file), name or str(path))


def parse(data: Mapping[str, Any], file: str, name: str) -> GpuTarget:
    """The GPU that parsed TOML data describes.

    Raises:
        InvalidProblem: as for ``read``.
    """
    mistakes: list[str] = []
    known_keys = [*_TEXTS, "compute_capability", *_POSITIVE, "sources"]
    for key in data:
        if key not in known_keys:
            mistakes.append(f"{key}: no such key{did_you_mean(key, known_keys)}")
    fields: dict[str, Any] = {"name": name}
    for key in _TEXTS:
        value = data.get(key, "")
        if not isinstance(value, str) or any(ord(character) < 32 for character in value):
            mistakes.append(f"{key} = {value!r} is not one line of text")
        elif key != "name":
            fields[key] = value
    fields["title"] = fields.get("title") or str(data.get("name") or Path(file).stem)
    fields["compute_capability"] = _capability(data.get("compute_capability"), mistakes)
    for key in _POSITIVE:
        if key in data:
            fields[key] = _number(key, data[key], mistakes)
        elif key not in _OPTIONAL:
            mistakes.append(f"{key} is missing")
    sources = data.get("sources", {})
    if isinstance(sources, dict):
        fields["sources"] = {key: str(source) for key, source in sources.items()}
    else:
        mistakes.append(f"sources = {sources!r} is not a table")
    if not mistakes and fields["shared_memory_per_block_bytes"] > fields["shared_memory_bytes"]:
        mistakes.append(
            f"shared_memory_per_block_bytes = {fields['shared_memory_per_block_bytes']} is more "
            f"than the {fields['shared_memory_bytes']} of the multiprocessor"
        )
    if not mistakes and fields.get("memory_sustained", 1.0) > 1.0:
        mistakes.append(
            f"memory_sustained = {fields['memory_sustained']} is above 1, the whole rate"
        )
    if mistakes:
        raise InvalidProblem(
            f"{file}: mistakes in this description of a GPU:\n{join_offenders(mistakes)}"
        )
    return GpuTarget(**fields)


def _capability(value: Any, mistakes: list[str]) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", value) if isinstance(value, str) else None
    if not match:
        problem = "is missing" if value is None else f"= {value!r}"
        mistakes.append(f'compute_capability {problem}: write it as a text, such as "9.0"')
        return 0, 0
    return int(match.group(1)), int(match.group(2))


def _number(key: str, value: Any, mistakes: list[str]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        mistakes.append(f"{key} = {value!r} is not a number")
    elif not (0 < value < _LARGEST and math.isfinite(value)):
        mistakes.append(f"{key} = {value!r} is not a positive number")
    elif key in _WHOLE and value != int(value):
        mistakes.append(f"{key} = {value!r} is not a whole number")
    else:
        return int(value) if key in _WHOLE else float(value)
    return 1
