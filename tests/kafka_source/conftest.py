"""Settings and fixtures of the Kafka source's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from train.forge import Forge


def pytest_configure(config: pytest.Config) -> None:
    """torch 2.11 warns its caller that ShardedTensor goes; TorchRec 1.6 knows nothing else yet."""
    config.addinivalue_line("filterwarnings", "ignore:Please use DTensor:FutureWarning")


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Starts `rap run` with several ranks, without importing TorchRec each time."""
    made = Forge(tmp_path_factory.mktemp("forge"))
    yield made
    made.close()
