"""Parts of a job's feature graph, so that its kernels can be measured at other widths. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rap_contract.graph import FeatureGraph, FeatureSpec

NARROWEST = 1
"""Features of a group that a part keeps at least: every chain stays, so the same compiled kernels serve all parts."""


def subgraph(graph: FeatureGraph, names: Collection[str]) -> FeatureGraph:
    """The graph of some features, with only the nodes they need; columns stay declared."""
    features = [feature for feature in graph.features if feature.name in names]
    needed = sorted({node.index for feature in features for node in graph.chain(feature)})
    place = {old: new for new, old in enumerate(needed)}
    return FeatureGraph(
        nodes=tuple(
            replace(graph.nodes[old], index=place[old], inputs=tuple(place[each] for each in graph.nodes[old].inputs))
            for old in needed
        ),
        features=tuple(replace(feature, node=place[feature.node]) for feature in features),
        columns=graph.columns,
        label=graph.label,
    )


def parts(graph: FeatureGraph, *, number: int, seed: int = 0) -> Iterator[FeatureGraph]:
    """The whole graph, then parts of it: of each group of alike features a random share, at least one."""
    yield graph
    draw, groups = random.Random(seed), _groups(graph)
    for _ in range(number - 1):
        share = draw.choice([0.0, 0.1, 0.25, 0.5, 0.75])
        names: set[str] = set()
        for members in groups:
            most = max(NARROWEST, round(len(members) * share * draw.uniform(0.5, 1.5)))
            names.update(feature.name for feature in members[: min(most, len(members))])
        yield subgraph(graph, names)


def _groups(graph: FeatureGraph) -> Sequence[Sequence[FeatureSpec]]:
    """Features of one group and one chain of ops, together."""
    found: dict[tuple[object, ...], list[FeatureSpec]] = {}
    for feature in graph.features:
        stems = tuple(node.op.stem for node in graph.chain(feature) if node.op is not None)
        found.setdefault((feature.path[:3], stems), []).append(feature)
    return list(found.values())
