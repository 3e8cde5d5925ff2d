"""What is there of RAPJobs' children, and what of it would be a fault: counted from their labels alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rap_operator.naming import LABEL_ATTEMPT, LABEL_JOB_UID
from rap_operator.resources import JOBS, PODS, Resource

Labels = Mapping[str, str]


def counted(children: Mapping[Resource, Sequence[Labels]], uids: Collection[str]) -> dict[str, float]:
    """Children by kind, those of no RAPJob of these UIDs, RAPJobs with two Jobs, and those with pods of two attempts."""
    found: dict[str, float] = {kind.plural: len(labels) for kind, labels in children.items()}
    found["of_nobody"] = sum(label[LABEL_JOB_UID] not in uids for labels in children.values() for label in labels)
    num_jobs = Counter(label[LABEL_JOB_UID] for label in children[JOBS])
    found["jobs_with_two"] = sum(number > 1 for number in num_jobs.values())
    attempts: dict[str, set[str]] = {}
    for label in children[PODS]:
        attempts.setdefault(label[LABEL_JOB_UID], set()).add(label[LABEL_ATTEMPT])
    found["pods_of_two_attempts"] = sum(len(numbers) > 1 for numbers in attempts.values())
    return found
