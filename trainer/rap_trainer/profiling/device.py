"""What a profile was measured on: device, driver, software."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rap_contract.profile import Device

PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "triton", "rap")
DRIVER_FILE = Path("/proc/driver/nvidia/version")
CPU_INFO = Path("/proc/cpuinfo")


def device_of(device: torch.device) -> Device:
    """This rank's device."""
    versions = {name: found for name in PACKAGES for found in (_version(name),) if found is not None}
    versions["python"] = platform.python_version()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        versions["cuda"] = str(torch.version.cuda)
        return Device(name=properties.name, memory_bytes=properties.total_memory, driver=_driver(), versions=versions)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(name=_cpu_name(), memory_bytes=memory_bytes, driver=platform.release(), versions=versions)


def name_of_device(*, gpu: bool) -> str | None:
    """The name a profile of this machine's device carries; None for a GPU where there is none."""
    if not gpu:
        return _cpu_name()
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver() -> str:
    try:
        found = re.search(r"Module\D*?\s(\d+\.[\d.]+)", re.sub(r"x86_64|aarch64", "", DRIVER_FILE.read_text()))
    except OSError:
        found = None
    return found.group(1) if found else "unknown"


def _cpu_name() -> str:
    """Model and number of CPUs this process may use."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"{found.group(1) if found else platform.machine()} x {len(os.sched_getaffinity(0))}"
