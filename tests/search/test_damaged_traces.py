"""A damaged trace is refused with the field, the numbers and what to do, or it is one that a search can go on from."""

from __future__ import annotations

import collections

import pytest

from tests.search import mutations
from toast_lab import isolate

SHORT, FULL = 24, 500
GIB = 2**30


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The file of each case's trace, made when first asked for."""
    made: dict[str, bytes] = {}

    def trace_of(name: str) -> bytes:
        if name not in made:
            path = tmp_path_factory.mktemp("traces") / "trace.npz"
            mutations.searched(name).trace.save(path)
            made[name] = path.read_bytes()
        return made[name]

    return trace_of


def outcomes_of(name: str, data: bytes, n: int) -> collections.Counter[str]:
    """What became of ``n`` mutations of a trace; what broke is in the message of the failure."""
    events: list[object] = []
    isolate.run_in_child(
        "tests.search.mutations:try_all", name, data, list(range(n)), time_limit_s=120 + n, on_event=events.append,
        memory_limit_bytes=8 * GIB, env={"JAX_PLATFORMS": "cpu"}, what=f"mutations of the trace of {name}",
    )  # fmt: skip
    outcomes = [e for e in events if isinstance(e, mutations.Outcome)]
    assert len(outcomes) == n
    bad = [o for o in outcomes if o.kind not in ("refused", "works")]
    assert not bad, "\n".join(f"{o.number}: {o.kind}: {o.message}" for o in bad[:10])
    return collections.Counter(o.kind for o in outcomes)


@pytest.mark.parametrize("name", mutations.CASES)
def test_a_damaged_trace_is_refused_or_gone_on_from(name, traces):
    found = outcomes_of(name, traces(name), SHORT)
    assert found["refused"] >= SHORT // 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", mutations.CASES)
def test_five_hundred_damaged_traces_are_refused_or_gone_on_from(name, traces):
    found = outcomes_of(name, traces(name), FULL)
    print(f"{name}: {dict(found)}")
    assert found["refused"] >= FULL // 3
