"""``from_torch`` computes what torch computes.

Names and lines of the torch module survive in the StableHLO.
"""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import toast_lab as tl
from toast_lab.errors import FrontendError

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchax") is None:
    pytest.skip("torchax is not installed", allow_module_level=True)
nn = torch.nn
functional = torch.nn.functional

TOLERANCE = 1e-5


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 8)])
        self.norm = nn.LayerNorm(32)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: Any) -> Any:
        h = self.norm(functional.gelu(self.layers[0](x)))
        return {"y": self.layers[1](h) * self.scale + torch.tensor([1.0] * 8)}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)

    def forward(self, tokens: Any, mask: Any) -> Any:
        return self.block(self.embed(tokens), src_key_padding_mask=mask)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(16, 8)

    def forward(self, image: Any) -> Any:
        return self.head(self.body(image))


def make_mlp() -> Any:
    torch.manual_seed(0)
    return Mlp().eval(), (torch.randn(8, 16),)


def make_encoder() -> Any:
    torch.manual_seed(0)
    mask = torch.zeros(8, 16, dtype=torch.bool)
    mask[:, 12:] = True
    return Encoder().eval(), (torch.randint(0, 64, (8, 16)), mask)


def make_conv() -> Any:
    torch.manual_seed(0)
    net = Conv().eval()
    net.body[1].running_mean += 0.3
    return net, (torch.randn(8, 3, 16, 16),)


def arguments(model: tl.Model) -> list[str]:
    return list(model.program.value_name[: model.program.n_arguments])


def values(model: tl.Model, module: Any, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    """Arrays for the arguments, found by name or taken from the inputs."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = iter(inputs)
    arrays = [
        (state[name] if name in state else next(given)).detach().numpy()
        for name in arguments(model)
    ]
    return [a.astype(np.int32) if a.dtype == np.int64 else a for a in arrays]


def outputs(module: Any, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    with torch.no_grad():
        return [t.numpy() for t in torch.utils._pytree.tree_leaves(module(*inputs))]


def execute(model: tl.Model, arrays: list[np.ndarray]) -> list[np.ndarray]:
    from toast_lab.runtime import _jax_private

    executable = _jax_private.compile_module(model.stablehlo, jax.devices()[:1])
    parts = _jax_private.execute(executable, [jax.device_put(a) for a in arrays])
    return [np.asarray(p[0]) for p in parts]


@pytest.mark.parametrize(
    "make", [make_mlp, make_encoder, make_conv], ids=["mlp", "encoder", "conv"]
)
def test_a_module_computes_what_torch_computes(make: Any) -> None:
    from toast_lab.runtime.child import relative_error

    module, inputs = make()
    model = tl.from_torch(module, *inputs)
    arrays = values(model, module, inputs)
    for found, expected in zip(execute(model, arrays), outputs(module, inputs), strict=True):
        assert relative_error(found, expected) < TOLERANCE
    assert model.program.missing_rules == ()
    analysis = tl.analyse(model)
    # A model this small runs fastest on one device, so a low memory limit enforces a real plan.
    _, peak = tl.Problem(analysis, mesh={"one": 1}, machine="tpu-v5e").baseline
    problem = tl.Problem(
        analysis, mesh={"data": 2, "model": 4}, machine="tpu-v5e", memory_limit_bytes=peak / 3
    )
    result = tl.search(problem, method="mcts", seed=0, budget=tl.Budget(seconds=3))
    assert result.plan.actions, "an empty plan would prove nothing"
    run = tl.run(model, result.plan, devices="cpu:8", inputs=arrays, repeats=1, warmup=0)
    assert run.max_relative_error is not None
    assert run.max_relative_error < TOLERANCE


def test_names_are_those_of_torch() -> None:
    model = tl.from_torch(*_flat(make_mlp()))
    assert arguments(model) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
        "norm.weight",
        "norm.bias",
        "scale",
        "x",
    ]
    assert model.program.output_paths == ("result['y']",)
    assert model.name == "Mlp"


def _flat(made: Any) -> Any:
    return (made[0], *made[1])


def test_lines_and_modules_survive() -> None:
    program = tl.from_torch(*_flat(make_mlp())).program
    lines, first = inspect.getsourcelines(Mlp.forward)
    here = Path(__file__).name
    gelu = first + next(i for i, text in enumerate(lines) if "gelu" in text)
    dots = [op for op in program.ops() if program.kind[op] == "dot_general"]
    assert len(dots) == 2
    assert f"{here}:{gelu}" in program.locations[int(program.location[dots[0]])]
    assert "layers.0" in program.name_stack[dots[0]]
    assert "layers.1" in program.name_stack[dots[1]]
    assert not [text for text in program.locations if "toast_lab/frontends/" in text]


def test_an_exported_program() -> None:
    module, inputs = make_mlp()
    exported = torch.export.export(module, inputs)
    assert (
        tl.from_torch(exported).program.digest() == tl.from_torch(module, *inputs).program.digest()
    )
    with pytest.raises(FrontendError, match="pass it alone"):
        tl.from_torch(exported, *inputs)


def test_meta_modules_are_never_materialised() -> None:
    with torch.device("meta"):
        module = nn.Linear(2**20, 2**20)
        model = tl.from_torch(module, torch.empty(8, 2**20))
    assert model.program.nbytes(0) == 4 * 2**40


def test_changed_buffers_are_results() -> None:
    model = tl.from_torch(nn.BatchNorm1d(16), torch.randn(8, 16))
    assert {"running_mean", "running_var", "num_batches_tracked", "result"} == set(
        model.program.output_paths
    )
    assert "training mode" in " ".join(model.notes)


def test_64_bit_inputs_are_narrowed_with_a_note() -> None:
    module, inputs = make_encoder()
    model = tl.from_torch(module, *inputs)
    assert model.program.value_dtype[arguments(model).index("tokens")] == "i32"
    assert "64-bit arguments become 32-bit" in " ".join(model.notes)


def test_dynamic_shapes_are_refused() -> None:
    module, inputs = make_mlp()
    exported = torch.export.export(
        module, inputs, dynamic_shapes={"x": {0: torch.export.Dim("rows")}}
    )
    with pytest.raises(FrontendError, match=r"dynamic shapes:\n  x: \[.*, 16\]"):
        tl.from_torch(exported)


def test_what_torch_cannot_export_names_the_line() -> None:
    class Branching(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(
        FrontendError,
        match=r"torch.export of Branching failed.*test_from_torch\.py:\d+: return x \+ 1",
    ):
        tl.from_torch(Branching(), torch.randn(4))


def test_ops_that_torchax_does_not_know_are_all_listed() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.airy_ai(x) + torch.special.scaled_modified_bessel_k0(x.abs() + 1)

    with pytest.raises(FrontendError) as caught:
        tl.from_torch(Odd(), torch.randn(4))
    text = str(caught.value)
    for part in (
        "cannot translate these ops to JAX",
        "special_airy_ai",
        "special_scaled_modified_bessel_k0",
        "test_from_torch.py:",
    ):
        assert part in text


def test_something_else_is_refused() -> None:
    with pytest.raises(
        FrontendError, match=r"takes a torch.nn.Module or an ExportedProgram, got function"
    ):
        tl.from_torch(lambda x: x, torch.randn(3))


def test_make_may_return_a_torch_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "torch_user_module.py").write_text(
        "import torch\ndef make(width=8):\n    return torch.nn.Linear(width, 4), (torch.randn(2, "
        "width),)\n"
    )
    model = tl.load("torch_user_module:make", width=6)
    assert arguments(model) == ["weight", "bias", "input"]
    assert model.name == "Linear"
    assert model.program.dims(0) == (4, 6)
    # an exported program comes with its inputs
    (tmp_path / "torch_user_export.py").write_text(
        "import torch\ndef make():\n    return torch.export.export(torch.nn.Linear(8, 4), "
        "(torch.randn(2, 8),)), ()\n"
    )
    assert arguments(tl.load("torch_user_export:make")) == ["weight", "bias", "input"]
