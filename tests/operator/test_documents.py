"""Documents of the API server are read however deep they are; what is too deep is refused, alone."""

from __future__ import annotations

import json
import threading

import pytest
from operator_world.fake_cluster import FakeCluster
from operator_world.world import rapjob
from rap_operator.cache import Cache
from rap_operator.documents import MAX_DEPTH, TOO_DEEP, parsed
from rap_operator.observe import judge
from rap_operator.resources import RAPJOBS
from rap_operator.watch import Reflector, Timing


def nested(levels: int, *, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * levels + "1" + closing * levels


def depth(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.5, null, true, "é\\n\\u00e9\\"}]"], "b": {}}',
        "[]",
        '"x"',
        "18446744073709551616",
        "-0.0",
        '{"": 1e308}',
    ],
)
def test_a_document_is_what_json_says(text: str) -> None:
    assert parsed(text.encode()) == json.loads(text)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 200, 1_000, 10_000])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]"), ('[{"]}":', "}]")])
def test_what_is_too_deep_is_left_out_and_the_rest_is_there(levels: int, opening: str, closing: str) -> None:
    deep = nested(levels, opening=opening, closing=closing)
    found = parsed(f'{{"before": "[{{\\"", "deep": {deep}, "after": [2, {{"b": {deep}}}, 3]}}'.encode())
    assert (found["before"], found["after"][0], found["after"][2]) == ('[{"', 2, 3)
    if levels > 200:
        assert TOO_DEEP in json.dumps(found)
        assert depth(found) == MAX_DEPTH


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}}', "nonsense", nested(300)[:-1], '{"a": "'])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(text.encode())


def test_a_job_that_is_too_deep_is_refused_and_the_jobs_beside_it_are_seen() -> None:
    deep, other = rapjob(trainer={"podTemplate": "@"}), rapjob()
    deep["metadata"]["name"], other["metadata"]["name"] = "deep", "other"
    api, stopping = FakeCluster(), threading.Event()
    for job in (deep, other):
        api.create(RAPJOBS, "jobs", job)
    listed = json.dumps(api.list(RAPJOBS, None, query={})).replace('"@"', nested(3_000))

    class AsSent(FakeCluster):
        def list(self, *_: object, **__: object) -> dict[str, object]:
            stopping.set()
            page: dict[str, object] = parsed(listed.encode())
            return page

    cache = Cache(lambda key: None)
    Reflector(AsSent(), cache, RAPJOBS, None, stopping=stopping, timing=Timing()).run()
    views = {view.meta.name: judge(view.item) for view in cache.rapjobs()}
    assert views["other"].spec is not None
    assert views["deep"].problems == ("spec: nested deeper than 150 levels: no part of a job needs that",)
