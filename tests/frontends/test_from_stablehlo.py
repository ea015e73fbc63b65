"""``from_stablehlo`` reads every form of StableHLO.

Input that is broken or cannot be sharded is refused with a clear error.
"""

from __future__ import annotations

import inspect
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
    """The module bytes inside a jax.export artifact."""
    args = S((8, 4), jnp.float32), S((4, 6), jnp.float32)
    return bytes(jax.export.export(jax.jit(fn))(*args).mlir_module_serialized)


def kinds(model: Any) -> list[str]:
    return [model.program.kind[op] for op in model.program.ops()]


@pytest.mark.parametrize(
    "form", ["text", "utf-8 bytes", "bytecode", "portable artifact", "jax text"]
)
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
    # It is the same as the traced program: rules, FLOPs, everything that determines an analysis.
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
    whole = {"text": TEXT.encode, "bytecode": bytecode, "portable artifact": portable_artifact}[
        form
    ]()
    path = tmp_path / "cut"
    path.write_bytes(whole[: int(len(whole) * share)])
    # A parser may crash (RunFailed names the crash), but only in the child.
    with pytest.raises((FrontendError, RunFailed)) as caught:
        from_stablehlo(path)
    assert "cut" in str(caught.value) or "StableHLO" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_dynamic_shapes_are_refused() -> None:
    text = TEXT.replace("8x", "?x")
    with pytest.raises(
        FrontendError, match=r"dot_general \(line 5\): dynamic shape tensor<\?x6xf32>"
    ):
        from_stablehlo(text)


def test_one_public_function_stands_in_for_main() -> None:
    assert kinds(from_stablehlo(TEXT.replace("@main", "@forward"))) == ["dot_general", "tanh"]


def test_no_main_among_several() -> None:
    function = (
        "func.func public @{0}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n return %x : "
        "tensor<4xf32>\n }}\n"
    )
    text = "module {\n" + function.format("init") + function.format("step") + "}\n"
    with pytest.raises(
        FrontendError, match=r"no function @main and 2 public functions \(init, step\)"
    ):
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
    with pytest.raises(RunFailed, match=r"reading StableHLO input: no result within 0\.001 s"):
        from_stablehlo(TEXT, time_limit_s=0.001)


# -- jax.export artifacts, and what survives in them -----------------------------------------------


def exported(fn: Any, *args: Any, **options: Any) -> bytes:
    pytest.importorskip("flatbuffers")
    return bytes(jax.export.export(jax.jit(fn, **options))(*args).serialize())


def net(params: Any, x: jax.Array) -> Any:
    hidden = jnp.tanh(x @ params["layers"][0])
    return {"y": hidden @ params["layers"][1], "mean": hidden.mean()}


PARAMS = {
    "layers": [S((4, 6), jnp.float32), S((6, 2), jnp.float32)],
    "unused": S((3,), jnp.float32),
}


@pytest.mark.parametrize("as_file", [True, False])
def test_an_export_artifact_keeps_paths_and_lines(tmp_path: Path, as_file: bool) -> None:
    data: Any = exported(net, PARAMS, S((8, 4), jnp.float32))
    if as_file:
        (tmp_path / "net.jaxexport").write_bytes(data)
        data = tmp_path / "net.jaxexport"
    model = from_stablehlo(data)
    same = from_jax(net, PARAMS, S((8, 4), jnp.float32)).program
    # jax.export leaves out unused arguments
    assert model.program.value_name[:3] == ("params['layers'][0]", "params['layers'][1]", "x")
    assert model.program.output_paths == same.output_paths == ("result['mean']", "result['y']")
    assert sorted(kinds(model)) == sorted(same.kind[op] for op in same.ops())
    first = inspect.getsourcelines(net)[1]
    dot = next(op for op in model.program.ops() if model.program.kind[op] == "dot_general")
    assert model.program.locations[int(model.program.location[dot])].startswith(
        f"{__file__}:{first + 1}"
    )
    assert model.program.name_stack[dot] == "jit(net)/dot_general"
    assert "hidden" in model.program.value_name, "the variable that a line assigns to"


def test_an_export_artifact_keeps_its_trees_where_all_is_used() -> None:
    model = from_stablehlo(exported(fn, S((8, 4), jnp.float32), S((4, 6), jnp.float32)))
    arguments, results = model.trees
    assert arguments.unflatten([1, 2]) == (1, 2)
    assert results.unflatten([3]) == 3


def test_an_export_artifact_for_several_platforms() -> None:
    pytest.importorskip("flatbuffers")
    made = jax.export.export(jax.jit(fn), platforms=("cpu", "tpu"))(
        S((8, 4), jnp.float32), S((4, 6), jnp.float32)
    )
    names = from_stablehlo(bytes(made.serialize())).program.value_name[:3]
    assert names == ("platform_index", "x", "w")


def test_donation_survives_export() -> None:
    model = from_stablehlo(
        exported(lambda x, y: x + y, S((8,), "float32"), S((8,), "float32"), donate_argnums=0)
    )
    assert model.program.donated.tolist() == [True, False]


@pytest.mark.parametrize("form", ["text", "bytecode", "portable artifact"])
def test_names_and_lines_survive_every_form(form: str) -> None:
    lowered = jax.jit(fn).lower(S((8, 4), jnp.float32), S((4, 6), jnp.float32))
    text = lowered.as_text(debug_info=True)
    source: Any = text
    if form == "bytecode":
        buffer = io.BytesIO()
        _jaxlib.parse_module(_jaxlib.make_context(), text).operation.write_bytecode(buffer)
        source = buffer.getvalue()
    elif form == "portable artifact":
        source = portable_artifact()
    program = from_stablehlo(source).program
    line = inspect.getsourcelines(fn)[1] + 1
    assert program.value_name[:2] == ("x", "w")
    assert [
        program.locations[int(program.location[op])].split(" < ")[0] for op in program.ops()
    ] == [f"{__file__}:{line}"] * 2
    assert [program.name_stack[op] for op in program.ops()] == [
        "jit(fn)/dot_general",
        "jit(fn)/tanh",
    ]


def test_a_file_without_locations_gives_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "net.mlir"
    path.write_text(TEXT)
    program = from_stablehlo(path).program
    assert [program.locations[int(program.location[op])] for op in program.ops()] == [
        f"{path}:5",
        f"{path}:7",
    ]
