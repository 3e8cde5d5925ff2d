"""The accelerator's gauges: from the driver where it tells, nothing on a CPU."""

from __future__ import annotations

import pytest
import torch
from rap_contract import metrics
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.step.device_meter import DeviceMeter

GPU = torch.device("cuda", 0)
NAMES = (metrics.DEVICE_BUSY_RATIO.name, metrics.DEVICE_MEMORY_BYTES.name)


def values(store: MetricStore) -> dict[str, float]:
    samples = [sample for family in store.collect() for sample in family.samples]
    return {sample.name: sample.value for sample in samples if sample.name in NAMES}


def test_a_gpu_tells_its_share_of_busy_time_and_its_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 5e9)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87)
    store = MetricStore(metrics.TRAINER)
    DeviceMeter(store).report(GPU)
    assert values(store) == {NAMES[0]: 0.87, NAMES[1]: 5e9}


def test_without_nvml_the_memory_is_told_and_the_driver_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def refuse(device: torch.device) -> int:
        asked.append(device)
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1e9)
    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    store = MetricStore(metrics.TRAINER)
    meter = DeviceMeter(store)
    meter.report(GPU)
    meter.report(GPU)
    assert values(store) == {NAMES[1]: 1e9}
    assert asked == [GPU]


def test_a_cpu_has_neither() -> None:
    store = MetricStore(metrics.TRAINER)
    DeviceMeter(store).report(torch.device("cpu"))
    assert values(store) == {}
