"""A program's launches in parts, as a plan may ask for: each part works for some of the features, on rows of the same tables.

The kernels stay those of the whole launch, so nothing compiles anew. Not here: which parts are worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rap_trainer.fusion.groups import Groups, Launch

Part = tuple[str, Sequence[str]]
"""Stage and features of a kernel."""


def in_parts(groups: Groups, parts: Sequence[Part]) -> Groups:
    """The same work in these kernels, in order. Raises ValueError if they are not the launches or parts of them."""
    if len(parts) < len(groups.launches):
        raise ValueError(f"the plan places {len(parts)} launches, the program has {len(groups.launches)}")
    launches: list[Launch] = []
    rest = list(parts)
    for launch in groups.launches:
        mine = [rest.pop(0)] if rest else []
        while rest and sum(len(names) for _, names in mine) < len(launch.features):
            mine.append(rest.pop(0))
        if [name for _, names in mine for name in names] != list(launch.features) or any(
            stage != launch.kernel for stage, _ in mine
        ):
            found = f"{mine[0][0]} of {len(mine[0][1])} features" if mine else "nothing"
            raise ValueError(
                f"launch {len(launches)} is {found} in the plan, {launch.kernel} of {len(launch.features)} in the program"
            )
        launches += [launch] if len(mine) == 1 else _cut(groups, launch, [names for _, names in mine])
    if rest:
        raise ValueError(f"the plan places {len(parts)} launches, the program has {len(launches)} and parts of them")
    return replace(groups, launches=tuple(launches))


def _cut(groups: Groups, launch: Launch, parts: Sequence[Sequence[str]]) -> list[Launch]:
    entries = _entries(groups, launch)
    found: list[Launch] = []
    at = launch.first
    for names in parts:
        mine = set(names)
        end = at
        while end < launch.end and entries[end - launch.first] in mine:
            end += 1
        if end == at:
            raise ValueError(f"no part of {launch.kernel} works for {names[0]} alone")
        found.append(_part(launch, at, end, tuple(names)))
        at = end
    if at != launch.end:
        raise ValueError(f"features of {launch.kernel} are worked on in turns and have no parts of their own")
    return found


def _part(launch: Launch, first: int, end: int, features: tuple[str, ...]) -> Launch:
    """These table rows of a launch. Bundles come before other lanes, so a part that begins within one has none."""
    within = any(bundle.start < first < bundle.stop for bundle in launch.bundles)
    mine = [n for n, bundle in enumerate(launch.bundles) if first <= bundle.start and bundle.stop <= end and not within]
    return replace(
        launch,
        first=first,
        end=end,
        features=features,
        bundles=tuple(launch.bundles[n] for n in mine),
        first_bundle=launch.first_bundle + min(mine, default=0),
    )


def _entries(groups: Groups, launch: Launch) -> list[str]:
    """The feature of each table row of a launch."""
    if launch.kernel == "lanes":
        return [lane.feature for lane in groups.lanes[launch.first : launch.end]]
    if launch.kernel == "values":
        skipped = len(groups.raw_lists)
        return [stage.feature for stage in groups.stages[launch.first - skipped : launch.end - skipped]]
    raise ValueError(f"{launch.kernel} has no parts; only lanes and values have")
