"""TensorFlow, for the tests that need it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow; the test is skipped where it is not installed."""
    return pytest.importorskip("tensorflow")
