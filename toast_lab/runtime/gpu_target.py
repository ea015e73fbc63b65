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
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from toast_lab import records
from toast_lab.errors import InvalidProblem, did_you_mean, join_offenders
from toast_lab.records import ABOVE_ZERO, PART, Demand

FOLDER = Path(__file__).parent / "gpu_targets"
#: Known GPUs, in the order in which lists show them.
NAMES = ("h100", "a100", "p100", "h200", "b200")
#: Part of a GPU's memory that JAX's allocator takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says
#: otherwise.
DEFAULT_MEMORY_SHARE = 0.75
#: A description is about a page long; a larger file is not one.
LARGEST_BYTES = 2**20

_ONE_LINE = Demand(
    "must be one line of text", lambda value: isinstance(value, str) and value.isprintable()
)
_CAPABILITY = Demand(
    'write it as a text, such as "9.0"',
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"\d{1,2}\.\d", value)),
)

# The first compute capability with arithmetic on bfloat16 (Ampere).
_FIRST_WITH_BFLOAT16 = (8, 0)


@dataclasses.dataclass(frozen=True)
class GpuTarget:
    """One kind of GPU; shared memory, threads and registers are those of one multiprocessor."""

    name: Annotated[str, _ONE_LINE]  #: of a known GPU, or the path of its file
    compute_capability: Annotated[str, _CAPABILITY]  #: "9.0"
    multiprocessors: Annotated[int, ABOVE_ZERO]
    fp32_lanes: Annotated[int, ABOVE_ZERO]  #: of one multiprocessor
    clock_hz: Annotated[float, ABOVE_ZERO]
    memory_bytes: Annotated[int, ABOVE_ZERO]
    memory_bytes_per_s: Annotated[float, ABOVE_ZERO]
    l2_bytes: Annotated[int, ABOVE_ZERO]
    shared_memory_bytes: Annotated[int, ABOVE_ZERO]
    shared_memory_per_block_bytes: Annotated[int, ABOVE_ZERO]
    title: Annotated[str, _ONE_LINE] = ""  #: what the device calls itself
    #: name of the machine that plans are priced on, "" if the file names none
    machine: Annotated[str, _ONE_LINE] = ""
    threads: Annotated[int, ABOVE_ZERO] = 2048
    registers: Annotated[int, ABOVE_ZERO] = 65536
    #: share of ``memory_bytes_per_s`` that kernels reach
    memory_sustained: Annotated[float, PART] = 1.0
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def offences(self) -> Iterator[str]:
        """What is wrong about several fields together."""
        if self.shared_memory_per_block_bytes > self.shared_memory_bytes:
            yield (
                f"shared_memory_per_block_bytes = {self.shared_memory_per_block_bytes} is more "
                f"than the {self.shared_memory_bytes} of the multiprocessor"
            )

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability as numbers, (9, 0)."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    @property
    def has_bfloat16(self) -> bool:
        """Does the GPU support bfloat16? If not, XLA widens every such value to float32."""
        return self.capability >= _FIRST_WITH_BFLOAT16

    @property
    def architecture(self) -> str:
        """The compiler's name for the generation, "sm_90"."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def xla_name(self) -> str:
        """The device name that the compiler is given.

        If an architecture has several measured tables, XLA chooses one by a word of this name.
        """
        if self.capability == (10, 0):
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
        major, minor = self.capability
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
    advice = f". The known ones ({', '.join(NAMES)}) in {FOLDER} are examples"
    data = records.load(path, "the description of a GPU", LARGEST_BYTES, advice)
    mistakes: list[str] = []
    fields = records.read({"name": Path(path).stem, **data}, GpuTarget, mistakes)
    if not mistakes:
        title = fields.get("title") or fields["name"]
        gpu = GpuTarget(**{**fields, "name": name or str(path), "title": title})
        mistakes += gpu.offences()
    if mistakes:
        raise InvalidProblem(
            f"{path}: mistakes in this description of a GPU:\n{join_offenders(mistakes)}"
        )
    return gpu
