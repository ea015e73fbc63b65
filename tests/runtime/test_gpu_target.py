"""Known GPUs and users' own ones can be compiled for, and errors in a description are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import MACHINES
from toast_lab.runtime import gpu_target
from toast_lab.runtime.gpu_target import FOLDER, NAMES, find


def described(folder: Path, **changes: str) -> str:
    """Write a description like the H100's, with changed lines; "" removes a line."""
    lines = (FOLDER / "h100.toml").read_text().splitlines()
    for key, value in changes.items():
        old = next((i for i, line in enumerate(lines) if line.startswith(f"{key} = ")), None)
        new = [f"{key} = {value}"] if value else []
        lines = [*new, *lines] if old is None else [*lines[:old], *new, *lines[old + 1 :]]
    path = folder / "my_gpu.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def field(proto: str, name: str) -> str:
    (value,) = re.findall(rf"\b{name}: (\S+)", proto)
    return value


def test_every_known_gpu_is_a_file_and_every_file_is_listed() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{n}.toml" for n in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_known_gpu_agrees_with_the_machine_that_its_plans_are_priced_on(name: str) -> None:
    gpu, machine = find(name), MACHINES[find(name).machine]
    assert (gpu.memory_bytes, gpu.memory_bytes_per_s) == (
        machine.memory_bytes,
        machine.memory_bytes_per_s,
    )
    assert machine.compiler == "gpu"
    assert {"memory", "multiprocessors", "shared_memory"} <= set(gpu.sources)
    assert all(len(text) > 30 for text in gpu.sources.values())


@pytest.mark.parametrize(
    ("name", "tera_flops"),
    [("p100", 10.6), ("a100", 19.5), ("h100", 67), ("h200", 67), ("b200", 75)],
)
def test_clock_and_lanes_give_the_float32_rate_of_the_data_sheet(
    name: str, tera_flops: float
) -> None:
    gpu = find(name)
    rate = 2 * gpu.multiprocessors * gpu.fp32_lanes * gpu.clock_hz
    assert rate == pytest.approx(tera_flops * 1e12, rel=0.01)


def test_the_text_for_the_compiler_has_the_numbers_of_the_file() -> None:
    proto = find("p100").proto_text()
    assert "cuda_compute_capability { major: 6 minor: 0 }" in proto
    wanted = {
        "core_count": "56",
        "fpus_per_core": "64",
        "clock_rate_ghz": "1.48",
        "device_memory_size": "16000000000",
        "memory_bandwidth": "732000000000",
        "l2_cache_size": "4194304",
        "shared_memory_per_core": "65536",
        "shared_memory_per_block": "49152",
        "shared_memory_per_block_optin": "49152",
        "threads_per_core_limit": "2048",
        "registers_per_core_limit": "65536",
        "platform_name": '"CUDA"',
    }
    assert {name: field(proto, name) for name in wanted} == wanted
    assert 'device_description_str: "NVIDIA Tesla P100 SXM2 16 GB"' in proto
    assert proto.count("{") == proto.count("}")


def test_blackwell_is_called_what_its_tables_are_found_by(tmp_path: Path) -> None:
    """The compiler finds its tables by the GPU's name, and takes "180 GB" for a Grace GPU."""
    assert 'device_description_str: "NVIDIA B200"' in find("b200").proto_text()
    other = described(tmp_path, compute_capability='"10.0"', title='"GB200 of ours"')
    assert 'device_description_str: "NVIDIA GB200"' in find(other).proto_text()


def test_an_own_gpu_is_read_from_a_file(tmp_path: Path) -> None:
    path = described(tmp_path, memory_bytes="40e9", title=r'"ours \"A\""', machine="")
    gpu = find(path)
    assert (gpu.name, gpu.memory_bytes, gpu.machine) == (path, 40_000_000_000, "")
    assert gpu.default_memory_bytes == 30e9
    assert r'device_description_str: "ours \"A\""' in gpu.proto_text()
    assert (gpu.architecture, gpu.has_bfloat16, find("p100").has_bfloat16) == ("sm_90", True, False)


def test_an_unknown_gpu_says_how_to_describe_one() -> None:
    with pytest.raises(InvalidProblem) as error:
        find("h101")
    for word in ('did you mean "h100"', *NAMES, "gpu:./my_gpu.toml:8", "h100.toml"):
        assert word in str(error.value), word


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"multiprocessors": ""}, ["multiprocessors is missing"]),
        ({"multiprocessors": "0"}, ["multiprocessors = 0 (must be above 0)"]),
        ({"multiprocessors": "1.5"}, ["multiprocessors = 1.5 is not a whole number"]),
        ({"multiprocessors": "true"}, ["multiprocessors = True is not a whole number"]),
        ({"memory_bytes": "inf", "l2_bytes": "-1"}, ["memory_bytes = inf", "l2_bytes = -1"]),
        ({"memory_bytes_per_s": '"fast"'}, ["memory_bytes_per_s = 'fast' is not a number"]),
        ({"compute_capability": "9.0"}, ["compute_capability = 9.0", 'such as "9.0"']),
        ({"compute_capability": ""}, ["compute_capability is missing"]),
        ({"clock_ghz": "1.9"}, ["clock_ghz: no such key", 'did you mean "clock_hz"']),
        ({"title": '"a\\nb"'}, ["title = 'a\\nb' (must be one line of text)"]),
        ({"sources": "5"}, ["this is not TOML"]),
        ({"shared_memory_per_block_bytes": "999999"}, ["999999 is more than the 233472"]),
        ({"l2_bytes": "1e300"}, ["l2_bytes = 1e+300 is not a whole number"]),
    ],
)
def test_everything_that_is_wrong_with_a_description_is_said(
    tmp_path: Path, changes: dict[str, str], words: list[str]
) -> None:
    path = described(tmp_path, **changes)
    with pytest.raises(InvalidProblem) as error:
        find(path)
    for word in (path, *words):
        assert word in str(error.value), word


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match=r"none\.toml: cannot read .* No such file"):
        find(str(tmp_path / "none.toml"))
    (tmp_path / "large.toml").write_bytes(b"#" * (gpu_target.LARGEST_BYTES + 1))
    with pytest.raises(InvalidProblem, match="too many for the description of a GPU"):
        find(str(tmp_path / "large.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidProblem, match="this is not TOML"):
        find(str(tmp_path / "binary.toml"))
