"""The page of a plan with three thousand ops: what it holds, and that a browser draws it."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
import yaml
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument
from rap_trainer.plan_command import add_arguments, run
from rap_trainer.plans import plan_job

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to draw the page with")
MIN_OPS = 3000
SIZE = (1200, 1600)
BROWSER_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of plan 4 on two GPUs, its page, and a history to measure it by."""
    folder = tmp_path_factory.mktemp("page")
    document = plan_job(4)
    document["spec"]["trainer"]["gpusPerNode"] = 2
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    parts = {"preprocess": 0.25, "forward": 1.0, "backward": 2.0, "update": 0.5, "other": 0.1}
    (folder / "history.jsonl").write_text(json.dumps({"type": "progress", "parts_ms": parts}) + "\n")
    planned(folder, "--html", folder / "plan.html", "--measured", folder / "history.jsonl", "--mean-length", 20)
    return folder


def planned(folder: Path, *arguments: object) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args([str(folder / "job.yaml"), *(str(argument) for argument in arguments)])) == 0


def test_the_page_shows_every_kernel_feature_and_measured_part_and_needs_no_other_file(folder: Path) -> None:
    graph, _ = compile_features(RAPJob.model_validate(yaml.safe_load((folder / "job.yaml").read_text())).spec)
    assert graph is not None
    assert len(graph.ops) >= MIN_OPS
    text = (folder / "plan.html").read_text()
    for feature in graph.features:
        assert re.search(rf"\b{re.escape(feature.name)}\b", text)
    for word in ("training, predicted", "preprocessing, predicted", "step, measured", "backward: measured", "rejected"):
        assert word in text or word.capitalize() in text
    assert not re.search(r"(src|href)=", text)
    assert len(text) < 2_000_000


@BROWSER
def test_a_browser_draws_the_page_with_its_bars(folder: Path) -> None:
    picture = folder / "plan.png"
    browse(folder, f"--screenshot={picture}", f"--window-size={SIZE[0]},{SIZE[1]}")
    width, height, colours = size_and_colours(picture)
    assert (width, height) == SIZE
    assert colours > 16
    dom = browse(folder, "--dump-dom")
    assert dom.count("<rect") >= 6 + 10
    assert dom.count("<tr data-names") > 20


def browse(folder: Path, *options: str) -> str:
    assert CHROMIUM is not None
    common = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    page = (folder / "plan.html").as_uri()
    ended = subprocess.run(
        [CHROMIUM, *common, *options, page], capture_output=True, text=True, timeout=BROWSER_S, check=True
    )
    return ended.stdout


def size_and_colours(picture: Path) -> tuple[int, int, int]:
    """Width, height and number of different byte triples in a PNG's filtered rows: a blank page has hardly any."""
    data = picture.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    at, packed = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    return width, height, len({raw[place : place + 3] for place in range(0, len(raw) - 3, 97)})


def test_a_history_that_is_none_is_refused_with_a_hint(folder: Path) -> None:
    bad = folder / "bad.jsonl"
    for text, words in (("no json\n", "not a line of JSON"), ('{"a": 1}\n', "no report with parts of a step")):
        bad.write_text(text)
        with pytest.raises(InvalidDocument, match=words):
            planned(folder, "--html", folder / "other.html", "--measured", bad)


def test_a_sharding_is_an_input_and_a_wrong_one_is_named(folder: Path) -> None:
    owners = folder / "owners.json"
    for content, words in (({"ids_0": 7}, "ids_0: no such table or no rank of 0 to 1"), ([1], "not a mapping")):
        owners.write_text(json.dumps(content))
        with pytest.raises(InvalidDocument, match=words):
            planned(folder, "--owners", owners)
