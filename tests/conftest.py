"""Fixtures that all tests can ask for."""

import os
from pathlib import Path

import pytest

# Without a GPU, Triton's kernels run in its interpreter; it is chosen before anything imports triton.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

# Test runners share the cores already: with more OpenMP threads, barriers on a busy machine cost 25 times the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["servers.plugin", "node_agent.plugin"]


class NamesFailuresAtOnce:
    """Writes each failure when it happens, so that a run that is cut off has told what it found."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)  # behind the letter of the test
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")


@pytest.hookimpl(trylast=True)  # the terminal's own registers it
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(NamesFailuresAtOnce(terminal))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU say so where there is none, however pytest was called."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and none is visible; see `make test-gpu`"))


def _has_gpu() -> bool:
    if not Path("/dev/nvidiactl").exists():
        return False
    import torch  # only where a driver is: it takes seconds

    return torch.cuda.is_available()
