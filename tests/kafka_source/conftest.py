"""Settings of the Kafka source's tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """torch 2.11 warns its caller that ShardedTensor goes; TorchRec 1.6 knows nothing else yet."""
    config.addinivalue_line("filterwarnings", "ignore:Please use DTensor:FutureWarning")
