"""Host memory: kept out of a device's peak, with figures of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl

BYTES = 64 * 64 * 4
LARGE = jax.ShapeDtypeStruct((64, 64), "float32")


def on_host(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    return jax.ShapeDtypeStruct(shape, "float32", sharding=device)


def step(p: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    s = jax.device_put(s, jax.memory.Space.Device)
    return p - s, jax.device_put(jnp.sin(s), jax.memory.Space.Host)


def passed_on(p: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    return p + 1, s


def problem_of(fn: object, *args: object, machine: str = "h100") -> tl.Problem:
    return tl.Problem(tl.analyse(tl.from_jax(fn, *args)), {"data": 4}, machine=machine)


@pytest.mark.parametrize("machine", ["h100", "tpu-v5e", "cpu"])
def test_host_memory_has_figures_of_its_own(machine: str) -> None:
    problem = problem_of(step, LARGE, on_host((64, 64)), machine=machine)
    whole = tl.price(problem, tl.replicated(problem))
    assert whole.host.held_bytes == 2 * BYTES  # the state that comes and the one that goes
    assert whole.host.sent_bytes == 2 * BYTES
    rows = tl.price(problem, tl.Plan.from_actions(problem, ["p_rows->data"]))
    assert rows.host.held_bytes == rows.host.sent_bytes == BYTES / 2
    if machine == "h100":
        assert rows.host.sent_s == pytest.approx(BYTES / 2 / 64e9)
        assert "over the host link (0.000 ms)" in str(rows)
    else:
        assert rows.host.sent_s is None
        assert "over the host link (not priced)" in str(rows)


def test_what_the_device_never_holds_is_not_in_its_peak() -> None:
    device = problem_of(passed_on, LARGE, LARGE)
    host = problem_of(passed_on, LARGE, on_host((64, 64)))
    prices = [tl.price(problem, tl.replicated(problem)) for problem in (device, host)]
    assert prices[0].peak_bytes - prices[1].peak_bytes == BYTES
    assert prices[0].host.held_bytes == prices[0].host.sent_bytes == 0
    assert prices[1].host.sent_bytes == 0  # it stays where it is


def test_states_of_every_round_are_sent_in_pieces() -> None:
    def layers(x: jax.Array, states: jax.Array) -> jax.Array:
        def layer(x: jax.Array, state: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x + jax.device_put(state, jax.memory.Space.Device)), None

        return jax.lax.scan(layer, x, states)[0]

    problem = problem_of(layers, LARGE, on_host((8, 64, 64)))
    cost = tl.price(problem, tl.replicated(problem))
    assert cost.host.held_bytes == 8 * BYTES
    assert cost.host.sent_bytes == 8 * BYTES
    assert cost.peak_bytes < 8 * BYTES


def test_the_model_says_what_is_in_host_memory() -> None:
    model = tl.from_jax(step, LARGE, on_host((64, 64)))
    (note,) = model.notes
    assert "in host memory" in note
    assert "s, result[1]" in note
    assert model.program.host.arguments == (1,)
    assert model.program.host.results == (1,)
    assert not tl.from_jax(step, LARGE, LARGE).program.host.arguments
    assert model.program.digest() != tl.from_jax(step, LARGE, LARGE).program.digest()
