"""Input that is broken, foreign or has side effects gives one error that names every offender.

The session goes on afterwards.
"""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from tests.frontends.test_from_stablehlo import TEXT, bytecode, portable_artifact
from toast_lab.errors import FrontendError, RunFailed
from toast_lab.frontends import from_jax, from_stablehlo

S = jax.ShapeDtypeStruct
X = S((8, 4), jnp.float32)
HERE = Path(__file__).name
ROOT = Path(__file__).parents[2]


def artifact() -> bytes:
    pytest.importorskip("flatbuffers")
    args = X, S((4, 6), jnp.float32)
    return bytes(jax.export.export(jax.jit(lambda x, w: jnp.tanh(x @ w)))(*args).serialize())


def body(*lines: str) -> str:
    inner = "\n".join(f"    {line}" for line in lines)
    return (
        "module {\n  func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {\n"
        f"{inner}\n    return %x : tensor<8x4xf32>\n  }}\n}}\n"
    )


# -- ops that cannot be sharded --------------------------------------------------------------------


def test_dynamic_shapes_are_all_named_with_their_lines(tmp_path: Path) -> None:
    text = """module {
  func.func public @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
    %0 = stablehlo.tanh %x : tensor<?x4xf32>
    %1 = stablehlo.negate %0 : tensor<?x4xf32>
    return %1 : tensor<?x4xf32>
  }
}
"""
    path = tmp_path / "dynamic.mlir"
    path.write_text(text)
    with pytest.raises(FrontendError) as caught:
        from_stablehlo(path)
    for part in (
        "3 ops that cannot be sharded",
        "func.func @main (dynamic.mlir:2): dynamic shape tensor<?x4xf32>",
        "stablehlo.tanh (dynamic.mlir:3)",
        "stablehlo.negate (dynamic.mlir:4)",
        "export the model with fixed sizes",
    ):
        assert part in str(caught.value)


def test_symbolic_sizes_of_jax_export_are_named() -> None:
    pytest.importorskip("flatbuffers")
    shape = jax.export.symbolic_shape("batch, 4")
    exported = jax.export.export(jax.jit(lambda x: x + 1))(S(shape, jnp.float32))
    with pytest.raises(
        FrontendError, match=r"exported with symbolic sizes:\n  args\[0\]: float32\[batch,4\]"
    ):
        from_stablehlo(bytes(exported.serialize()))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            (
                '%0 = "tosa.abs"(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>',
                '%1 = "mhlo.tanh"(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>',
            ),
            (
                "2 ops",
                "tosa.abs (line 3): the dialect tosa",
                "mhlo.tanh (line 4)",
                "convert the module to StableHLO",
            ),
        ),
        (
            (
                "%0 = tosa.abs %x : (tensor<8x4xf32>) -> tensor<8x4xf32>",
                "%1 = mhlo.tanh %0 : tensor<8x4xf32>",
                "%2 = mhlo.tanh %1 : tensor<8x4xf32>",
            ),
            ("tosa.abs (line 3)", "mhlo.tanh (lines 4, 5)", "Convert the module to StableHLO"),
        ),
        (
            ("%0 = arith.addf %x, %x : tensor<8x4xf32>", "%1 = math.tanh %0 : tensor<8x4xf32>"),
            ("arith.addf (line 3)", "math.tanh (line 4)"),
        ),
    ],
    ids=["generic form", "pretty form", "known to the parser"],
)
def test_foreign_dialects(lines: tuple[str, ...], said: tuple[str, ...]) -> None:
    with pytest.raises(FrontendError) as caught:
        from_stablehlo(body(*lines))
    for part in said:
        assert part in str(caught.value)


def test_tokens_and_host_communication_are_all_listed() -> None:
    text = body(
        "%0 = stablehlo.create_token : !stablehlo.token",
        "%1 = stablehlo.after_all %0, %0 : !stablehlo.token",
        '%2:2 = "stablehlo.infeed"(%1) {infeed_config = ""} : (!stablehlo.token) -> '
        "(tensor<8xf32>, !stablehlo.token)",
        '%3 = "stablehlo.outfeed"(%2#0, %2#1) {outfeed_config = ""} : (tensor<8xf32>, '
        "!stablehlo.token) "
        "-> !stablehlo.token",
        '%4 = "stablehlo.send"(%x, %3) {channel_handle = #stablehlo.channel_handle<handle = 1, '
        "type = 2>, "
        "is_host_transfer = true} : (tensor<8x4xf32>, !stablehlo.token) -> !stablehlo.token",
        '%5:2 = "stablehlo.recv"(%4) {channel_handle = #stablehlo.channel_handle<handle = 2, '
        "type = 3>, "
        "is_host_transfer = true} : (!stablehlo.token) -> (tensor<8xf32>, !stablehlo.token)",
    )
    with pytest.raises(FrontendError) as caught:
        from_stablehlo(text)
    message = str(caught.value)
    assert "6 ops that cannot be sharded" in message
    for line, name in enumerate(
        ("create_token", "after_all", "infeed", "outfeed", "send", "recv"), 3
    ):
        assert f"stablehlo.{name} (line {line})" in message


def test_a_token_that_nobody_takes_is_harmless() -> None:
    program = from_stablehlo(body("%0 = stablehlo.create_token : !stablehlo.token")).program
    assert list(program.ops()) == []


# -- callbacks -------------------------------------------------------------------------------------


def test_prints_are_dropped_with_a_note() -> None:
    def fn(x: jax.Array) -> jax.Array:
        jax.debug.print("x is {}", x)
        jax.debug.callback(lambda value: None, x)
        return jnp.tanh(x)

    first = inspect.getsourcelines(fn)[1]
    model = from_jax(fn, X)
    assert [model.program.kind[op] for op in model.program.ops()] == ["tanh"]
    assert f"dropped debug_print ({HERE}:{first + 1}): it only prints" in model.notes
    assert f"dropped debug_callback ({HERE}:{first + 2}): it only prints" in model.notes
    assert "callback" not in model.stablehlo
    assert "sdy.mesh" not in model.stablehlo
    # the same program read from a file
    again = from_stablehlo(jax.jit(fn).lower(X).as_text(debug_info=True))
    assert again.program.digest() == model.program.digest()
    assert len(again.notes) == 2


def test_a_print_within_a_loop_is_dropped_too() -> None:
    def fn(x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, _: None) -> Any:
            jax.debug.print("{}", carry)
            return carry * 2, None

        return jax.lax.scan(step, x, None, length=3)[0]

    model = from_jax(fn, X)
    assert "callback" not in model.stablehlo
    assert len(model.notes) == 1


def test_callbacks_are_all_refused_with_the_users_lines() -> None:
    def fn(x: jax.Array) -> jax.Array:
        y = jax.pure_callback(lambda a: a, X, x)
        io_callback(lambda a: None, None, x)
        return jnp.tanh(y)

    first = inspect.getsourcelines(fn)[1]
    with pytest.raises(FrontendError) as caught:
        from_jax(fn, X)
    for part in (
        "2 ops that cannot be sharded",
        f"({HERE}:{first + 1}): pure_callback runs Python code on the host",
        f"({HERE}:{first + 2}): io_callback runs Python code on the host",
        "take it out of the function",
    ):
        assert part in str(caught.value)


def test_ordered_effects_are_refused() -> None:
    def prints(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x, ordered=True)
        return x + 1

    with pytest.raises(
        FrontendError, match=r"(?s)its order is part of the program.*leave out ordered=True"
    ):
        from_jax(prints, X)

    def writes(x: jax.Array) -> jax.Array:
        io_callback(lambda a: None, None, x, ordered=True)
        return x + 1

    with pytest.raises(FrontendError, match="io_callback runs Python code on the host"):
        from_jax(writes, X)


# -- damaged and disguised files -------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8, 0.97])
def test_an_artifact_that_was_cut_off(tmp_path: Path, share: float) -> None:
    whole = artifact()
    path = tmp_path / "cut.jaxexport"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises((FrontendError, RunFailed)) as caught:
        from_stablehlo(path)
    assert "cut.jaxexport" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("form", [bytecode, portable_artifact, artifact])
def test_flipped_bytes(tmp_path: Path, form: Any) -> None:
    """A damaged file gives an error that names it, or a program and no crash.

    A program may come out if only a name is damaged.
    """
    path, refused = tmp_path / "flipped", []
    for seed in range(4):
        whole = bytearray(form())
        rng = random.Random(f"{form.__name__} {seed}")
        for _ in range(12):
            whole[rng.randrange(len(whole) // 4, len(whole))] ^= 0xFF
        path.write_bytes(bytes(whole))
        try:
            assert from_stablehlo(path, time_limit_s=60).program.n_ops > 0
        except (FrontendError, RunFailed) as error:
            refused.append(str(error))
    assert refused
    assert all("flipped" in message for message in refused)
    # and the session goes on
    assert from_stablehlo(TEXT).program.n_arguments == 2


@pytest.mark.parametrize("size", [1, 4, 100, 5000])
def test_random_bytes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "noise.mlirbc"
    path.write_bytes(random.Random(size).randbytes(size))
    with pytest.raises(FrontendError, match=r"noise\.mlirbc"):
        from_stablehlo(path)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"PK\x03\x04", "a zip archive; if torch.export saved it"),
        (b"\x1f\x8b", "compressed; unpack it first"),
        (b"HloModule jit_f\n", "HLO text, which XLA makes from StableHLO"),
    ],
)
def test_other_formats_are_recognised(tmp_path: Path, start: bytes, said: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(start + b" and so on")
    with pytest.raises(FrontendError, match=said):
        from_stablehlo(path)


def test_a_device_is_no_file() -> None:
    with pytest.raises(FrontendError, match="not a regular file"):
        from_stablehlo(Path("/dev/zero"))


def test_a_path_may_hold_the_word_module(tmp_path: Path) -> None:
    path = tmp_path / "my_module.mlir"
    path.write_text(TEXT)
    assert from_stablehlo(str(path)).name == "my_module"


# -- large files -----------------------------------------------------------------------------------


FRESH = """
import resource, sys, time
from toast_lab.errors import FrontendError
from toast_lab.frontends import from_stablehlo
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, started = peak(), time.monotonic()
try:
    print(from_stablehlo(sys.argv[1]).program.n_arguments)
except FrontendError as error:
    print(error)
print(peak() - before, time.monotonic() - started)
"""


def read_in_a_fresh_process(path: Path) -> tuple[str, int, float]:
    """(output of reading, kilobytes by which the reader's peak grew, seconds)."""
    # A fresh process, since the peak of an earlier test would hide anything below it.
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said, numbers = done.stdout.rstrip().rsplit("\n", 1)
    grown, seconds = numbers.split()
    return said, int(grown), float(seconds)


def test_half_a_gigabyte_of_text_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.mlir"
    with path.open("w") as file:
        file.write(TEXT)
        file.truncate(500_000_000)
    said, grown, seconds = read_in_a_fresh_process(path)
    for part in (
        "large.mlir has 500 MB",
        "the limit is 268 MB",
        "parameters as arguments",
        "max_bytes",
    ):
        assert part in said
    assert seconds < 5, "nothing was read"
    assert grown < 10_000


def test_a_large_text_is_read_in_the_child_only(tmp_path: Path) -> None:
    path = tmp_path / "long.mlir"
    comment = "// " + "x" * 997 + "\n"
    with path.open("w") as file:
        file.writelines(comment for _ in range(100_000))
        file.write(TEXT)
    assert path.stat().st_size > 100_000_000
    said, grown, _ = read_in_a_fresh_process(path)
    assert said == "2"
    assert grown < 60_000, "100 MB of comments must not pass through this process"


def test_max_bytes_is_the_users_to_set(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"StableHLO input has 0 MB; the limit is 0 MB"):
        from_stablehlo(TEXT, max_bytes=100)
    path = tmp_path / "net.mlir"
    path.write_text(TEXT)
    assert from_stablehlo(path, max_bytes=len(TEXT)).program.n_arguments == 2
