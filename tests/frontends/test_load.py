"""``load`` finds built-in models by name, and runs the user's ``module:make``.

The latter runs in a child process, which may fail in any way.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from toast_lab.errors import FrontendError, RunFailed, ToastError
from toast_lab.frontends import load

NUMBER = itertools.count()
HEAD = """
from __future__ import annotations
import os, signal, time
import jax
import jax.numpy as jnp

def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)

def net(params, x):
    return jnp.tanh(x @ params["w"])
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A function that writes a module of given code and gives its name; the child can import it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def writer(code: str) -> str:
        name = f"user_module_{next(NUMBER)}"
        (tmp_path / f"{name}.py").write_text(HEAD + code)
        return name

    return writer


def test_a_users_module(write: Callable[[str], str]) -> None:
    name = write("def make(width=8):\n    return net, ({'w': shape(4, width)}, shape(2, 4))\n")
    model = load(f"{name}:make", width=6)
    assert model.program.value_name[:2] == ("params['w']", "x")
    assert model.program.dims(0) == (4, 6)
    assert model.trees is not None
    assert model.source == f"{name}:make"
    assert name not in sys.modules, "user code must stay in the child"


def test_a_file_of_a_folder_that_is_not_on_the_path(tmp_path: Path) -> None:
    file = tmp_path / "my_net.py"
    file.write_text(HEAD + "def make():\n    return net, ({'w': shape(4, 8)}, shape(2, 4))\n")
    assert load(f"{file}:make").program.dims(0) == (4, 8)
    (tmp_path / "json.py").write_text(file.read_text())
    with pytest.raises(FrontendError, match=r"another module is called json, too .*rename"):
        load(f"{tmp_path / 'json.py'}:make")
    with pytest.raises(FrontendError, match=r"there is no file .*gone\.py"):
        load(f"{tmp_path / 'gone.py'}:make")


def test_sizes_are_known_by_the_names_that_the_user_gave_them(write: Callable[[str], str]) -> None:
    name = write(
        "def make(batch=2, *, width=8, rate=0.1, bias=True):\n"
        "    return net, ({'w': shape(4, width)}, shape(batch, 4))\n"
        "class Maker:\n"
        "    def __call__(self, *sizes, **more):\n"
        "        return net, ({'w': shape(4, 8)}, shape(2, 4))\n"
        "maker = Maker()\n"
    )
    assert load(f"{name}:make", width=6).sizes == {
        "batch": 2,
        "width": 6,
        "rate": 0.1,
        "bias": True,
    }
    assert load(f"{name}:maker").sizes == {}


def test_options(write: Callable[[str], str]) -> None:
    options = (
        "{'donate_argnums': (1,), 'dim_names': {'w': ('in', 'out')}, 'parameter_count': 16,"
        " 'expert_plans': {'megatron': (('out', 'model'),)}}"
    )
    name = write(f"def make():\n    return net, ({{'w': shape(4, 4)}}, shape(4, 4)), {options}\n")
    model = load(f"{name}:make")
    assert model.program.donated.tolist() == [False, True]
    assert dict(model.dim_names) == {"w": ("in", "out")}
    assert model.expert_plans == {"megatron": (("out", "model"),)}
    assert model.parameter_count == 16
    assert str(model).endswith(", 16 parameters")


def test_options_of_an_example(write: Callable[[str], str]) -> None:
    name = write(
        "from toast_lab.models.registry import Example\n"
        "def make():\n"
        "    plans = {'fsdp': (('w', 'data'),)}\n"
        "    return Example(jnp.sin, (shape(4),), (), {'x': ('w',)}, plans, 4)\n"
    )
    model = load(f"{name}:make")
    assert (model.dim_names, model.expert_plans) == ({"x": ("w",)}, {"fsdp": (("w", "data"),)})
    assert model.parameter_count == 4


def test_options_may_be_left_out(write: Callable[[str], str]) -> None:
    name = write("def make():\n    return net, ({'w': shape(4, 4)}, shape(4, 4))\n")
    model = load(f"{name}:make")
    assert (model.dim_names, model.expert_plans, model.parameter_count) == ({}, {}, None)
    assert "parameters" not in str(model)


def test_progress_is_reported(write: Callable[[str], str]) -> None:
    events: list[object] = []
    load(
        f"{write('def make():' + chr(10) + '    return jnp.sin, (shape(4),)')}:make",
        on_event=events.append,
    )
    assert events == ["tracing", "lowering", "reading"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def make():\n    raise ValueError('sizes clash')\n",
            r"raised ValueError: sizes clash .*\.py:\d+: raise ValueError",
        ),
        (
            "def make():\n    return 3\n",
            r"must return \(fn, args\) or \(fn, args, options\), got int",
        ),
        ("def make():\n    return ('fn', ())\n", r"must return \(fn, args\)"),
        (
            "def make():\n    return net, {'w': shape(4, 4)}, shape(4, 4)\n",
            r"got 3 values \(function, dict, ShapeDtypeStruct\).*return net, \(\.\.\.\)",
        ),
        (
            "def make():\n    return net, {'w': shape(4, 4)}, shape(4, 4), shape(4, 4)\n",
            r"got 4 values \(function, dict, ShapeDtypeStruct, ShapeDtypeStruct\)",
        ),
        (
            "def make():\n    return net, (), {'dim_name': {}, 'lr': 1.0}\n",
            r"'dim_name' \(did you mean \"dim_names\"\?\), 'lr'.*The options are donate_argnums",
        ),
        (
            "def make():\n    return net, ({'w': shape(4, 4)}, 'text')\n",
            r"net cannot be traced.*bound, because they are not arrays: x = 'text'",
        ),
        (
            "def make():\n    return net, ({'w': shape(4, 4)}, shape(5, 5))\n",
            r"net cannot be traced.*\.py:\d+: return jnp.tanh",
        ),
        ("def other():\n    pass\n", r"has no make"),
        ("1 / 0\n", r"importing user_module_\d+ raised ZeroDivisionError"),
        ("import surely_not_installed\n", r"No module named 'surely_not_installed'"),
        ("make = 3\n", r"make"),
    ],
)
def test_what_went_wrong_is_said(write: Callable[[str], str], code: str, said: str) -> None:
    with pytest.raises(FrontendError, match=said) as caught:
        load(f"{write(code)}:make")
    assert "Traceback" not in str(caught.value)


def test_a_missing_module() -> None:
    with pytest.raises(FrontendError, match=r"cannot import surely_not_there.*Is it on the path"):
        load("surely_not_there:make")


def test_an_unknown_size_is_named(write: Callable[[str], str]) -> None:
    with pytest.raises(FrontendError, match="unexpected keyword argument 'depth'"):
        load(
            f"{write('def make(width=8):' + chr(10) + '    return jnp.sin, (shape(width),)')}:make",
            depth=3,
        )


def test_a_make_that_never_returns(write: Callable[[str], str]) -> None:
    name = write("def make():\n    time.sleep(60)\n")
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"no result within 4 s"):
        load(f"{name}:make", time_limit_s=4)
    assert time.monotonic() - started < 30


def test_a_make_that_crashes(write: Callable[[str], str]) -> None:
    name = write(
        "def make():\n    print('about to die', flush=True)\n    os.kill(os.getpid(), "
        "signal.SIGSEGV)\n"
    )
    with pytest.raises(RunFailed, match=r"crashed \(SIGSEGV\).*about to die"):
        load(f"{name}:make")


def test_a_make_that_exits(write: Callable[[str], str]) -> None:
    with pytest.raises(ToastError) as caught:
        load(f"{write('def make():' + chr(10) + '    raise SystemExit(3)')}:make")
    assert "SystemExit" in str(caught.value) or "exit status 3" in str(caught.value)


def test_loading_can_be_cancelled(write: Callable[[str], str]) -> None:
    name = write("def make():\n    time.sleep(60)\n")
    started = time.monotonic()
    with pytest.raises(ToastError, match="cancelled"):
        load(f"{name}:make", cancel=lambda: time.monotonic() - started > 0.5)
    assert time.monotonic() - started < 20


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(FrontendError, match=r"did you mean \"attention\"\?.*built in: mlp"):
        load("atention")


def test_a_builtin_model_is_traced_here() -> None:
    model = load("mlp", batch=64)
    assert model.name == "mlp"
    assert model.source == "built-in model mlp"
    assert model.program.dims(0) == (64, 32)
