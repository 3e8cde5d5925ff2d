"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from train.forge import Forge


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Starts `rap run` with several ranks, without importing TorchRec each time."""
    made = Forge(tmp_path_factory.mktemp("forge"))
    yield made
    made.close()
