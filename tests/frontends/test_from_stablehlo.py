"""``from_stablehlo``: every form in which StableHLO comes, and input that is broken or cannot be sharded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from toast_lab import _jaxlib
from toast_lab.errors import FrontendError, RunFailed
from toast_lab.frontends import from_jax, from_stablehlo

S = jax.ShapeDtypeStruct

TEXT = """
module @small {
  func.func public @main(%x: tensor<8x4xf32> loc("x"), %w: tensor<4x6xf32>)
      -> (tensor<8x6xf32> {jax.result_info = "y"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.tanh %0 : tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
"""


def fn(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def bytecode() -> bytes:
    context = _jaxlib.make_context()
    buffer = io.BytesIO()
    _jaxlib.parse_module(context, TEXT).operation.write_bytecode(buffer)
    return buffer.getvalue()


def portable_artifact() -> bytes:
    """What jax.export keeps."""
    args = S((8, 4), jnp.float32), S((4, 6), jnp.float32)
    return bytes(jax.export.export(jax.jit(fn))(*args).mlir_module_serialized)


def kinds(model: Any) -> list[str]:
    return [model.program.kind[op] for op in model.program.ops()]


@pytest.mark.parametrize("form", ["text", "utf-8 bytes", "bytecode", "portable artifact", "jax text"])
def test_every_form_reads_alike(form: str) -> None:
    args = S((8, 4), jnp.float32), S((4, 6), jnp.float32)
    source: Any = {
        "text": lambda: TEXT,
        "utf-8 bytes": lambda: TEXT.encode(),
        "bytecode": bytecode,
        "portable artifact": portable_artifact,
        "jax text": lambda: jax.jit(fn).lower(*args).as_text(),
    }[form]()
    model = from_stablehlo(source)
    assert kinds(model) == ["dot_general", "tanh"]
    assert [model.program.dims(a) for a in range(2)] == [(8, 4), (4, 6)]
    # The same program as the one traced: the rules, the flops, everything that decides an analysis.
    same = from_jax(fn, *args).program
    assert (model.program.factor_size == same.factor_size).all()
    assert (model.program.use_dim_factor == same.use_dim_factor).all()
    assert model.program.flops.sum() == same.flops.sum() > 0


def test_bytes_are_what_they_should_be() -> None:
    assert bytecode().startswith(b"ML\xefR")
    assert portable_artifact().startswith(b"ML\xefR\rStableHLO")


@pytest.mark.parametrize("as_text", [True, False])
def test_files(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / ("net.mlir" if as_text else "net.mlirbc")
    path.write_text(TEXT) if as_text else path.write_bytes(bytecode())
    for source in (path, str(path)):
        model = from_stablehlo(source)
        assert model.name == "net"
        assert model.source == str(path)
        assert kinds(model) == ["dot_general", "tanh"]


def test_names_come_from_the_module() -> None:
    program = from_stablehlo(TEXT, name="my net").program
    assert program.value_name[:2] == ("x", "arg1")
    assert program.output_paths == ("y",)
    assert program.name == "my_net"


def test_donated_arguments_come_from_the_module() -> None:
    text = TEXT.replace('loc("x")', '{tf.aliasing_output = 0 : i32} loc("x")')
    assert from_stablehlo(text).program.donated.tolist() == [True, False]
    assert from_stablehlo(TEXT).program.donated.tolist() == [False, False]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"cannot read .*gone\.mlir: No such file"):
        from_stablehlo(tmp_path / "gone.mlir")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match="cannot read"):
        from_stablehlo(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"\x00\xff\xfe\x80" * 20, "neither StableHLO text nor MLIR bytecode"),
        (b"module {\n  this is not mlir\n}", "not well-formed StableHLO"),
        (b"ML\xefR", "not well-formed StableHLO"),
        (b"ML\xefR" + b"\x07" * 100, "not well-formed StableHLO"),
    ],
)
def test_garbage_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad.mlir"
    path.write_bytes(data)
    with pytest.raises(FrontendError, match=said):
        from_stablehlo(path)


@pytest.mark.parametrize("form", ["text", "bytecode", "portable artifact"])
@pytest.mark.parametrize("share", [0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
def test_a_file_that_was_cut_off(tmp_path: Path, form: str, share: float) -> None:
    whole = {"text": TEXT.encode, "bytecode": bytecode, "portable artifact": portable_artifact}[form]()
    path = tmp_path / "cut"
    path.write_bytes(whole[: int(len(whole) * share)])
    # A parser may die of it (RunFailed names the crash), but only in the child.
    with pytest.raises((FrontendError, RunFailed)) as caught:
        from_stablehlo(path)
    assert "cut" in str(caught.value) or "StableHLO" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_dynamic_shapes_are_refused() -> None:
    text = TEXT.replace("8x", "?x")
    with pytest.raises(FrontendError, match=r"dynamic shapes: tensor<\?x4xf32>, tensor<\?x6xf32>\. Export"):
        from_stablehlo(text)


def test_one_public_function_stands_in_for_main() -> None:
    assert kinds(from_stablehlo(TEXT.replace("@main", "@forward"))) == ["dot_general", "tanh"]


def test_no_main_among_several() -> None:
    function = "func.func public @{0}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n return %x : tensor<4xf32>\n }}\n"
    text = "module {\n" + function.format("init") + function.format("step") + "}\n"
    with pytest.raises(FrontendError, match=r"no function @main and 2 public functions \(init, step\)"):
        from_stablehlo(text)


def test_an_empty_module() -> None:
    with pytest.raises(FrontendError, match="no function @main and 0 public functions"):
        from_stablehlo("module {\n}\n")


def test_recursion_is_refused() -> None:
    text = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = func.call @again(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @again(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = func.call @again(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
    with pytest.raises(FrontendError, match="@again calls itself"):
        from_stablehlo(text)


def test_the_time_limit_holds() -> None:
    with pytest.raises(RunFailed, match=r"reading StableHLO input: no result within 0\.01 s"):
        from_stablehlo(TEXT, time_limit_s=0.01)
