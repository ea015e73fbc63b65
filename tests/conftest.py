"""Settings for all tests: marks by folder, the devices that JAX may use, how XLA compiles."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from evaluation.xla_flags import QUICK_COMPILES
from tests import sampling

# A first call compiles kernels and is slow, which says nothing about the property under test.
settings.register_profile("toast", deadline=None)
settings.load_profile("toast")

HERE = Path(__file__).parent


def pytest_report_header() -> str:
    return (
        f"sample: {sampling.begin()} ({sampling.VARIABLE}={sampling.begin()} draws it again, "
        f"{sampling.VARIABLE}={sampling.ALL} runs everything); "
        f"looked at more closely: {', '.join(sorted(sampling.changes()[1])) or 'nothing'}"
    )


def pytest_configure(config: pytest.Config) -> None:
    sampling.begin()
    # Options of this run, not of those that exported tests and notebooks start
    os.environ.pop("PYTEST_ADDOPTS", None)
    mark_expression = config.getoption("markexpr", "") or ""
    if "accelerator" not in mark_expression or "not accelerator" in mark_expression:
        # Set before anything imports jax. Without it jax would search for accelerators, and two
        # runs on one GPU would compete for its memory. A value set by the caller wins.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        # Child processes, servers and notebook kernels inherit both.
        os.environ.setdefault("XLA_FLAGS", QUICK_COMPILES)
    # Rows that a test keeps do not belong in the user's own files
    if "TOAST_LAB_TESTS_DATA" not in os.environ:
        os.environ["TOAST_LAB_TESTS_DATA"] = tempfile.mkdtemp(prefix="toast-lab-tests-")
        atexit.register(shutil.rmtree, os.environ["TOAST_LAB_TESTS_DATA"], ignore_errors=True)
    data = Path(os.environ["TOAST_LAB_TESTS_DATA"])
    os.environ["TOAST_LAB_RUNS"] = str(data / "runs.sqlite")
    os.environ["TOAST_LAB_COMPILED"] = str(data / "compiled.sqlite")


def pytest_collection_finish() -> None:
    # An eighth of the time went into garbage collection among objects that stay: modules, collected
    # tests and JAX's caches of traced programs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    for item in items:
        if (HERE / "browser") in item.path.parents:
            item.add_marker(pytest.mark.browser)
    yield  # what -m leaves out is no part of the sample
    sampling.thin(items, config)
