"""Fixtures that all tests can ask for."""

pytest_plugins = ["servers.plugin"]
