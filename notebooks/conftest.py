"""Leaves out a notebook whose packages are not installed, and says which."""

import importlib.util

import pytest

NEEDS = {"02_shard_your_model.ipynb": ("flax", "timesfm", "einshape")}


def pytest_collection_modifyitems(items):
    """Skip the notebooks that lack a package."""
    for item in items:
        lacking = [
            name for name in NEEDS.get(item.path.name, ()) if importlib.util.find_spec(name) is None
        ]
        if lacking:
            reason = f'{", ".join(lacking)} not installed: pip install "toast-lab[examples]"'
            item.add_marker(pytest.mark.skip(reason=reason))
