"""Why an attempt is over: what its pods and its Job say, and what the job's rules make of it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rap_contract.operations import RestartRule
from rap_contract.pod import ExitCode
from rap_contract.status import EndClass

from rap_operator.views import JobView, PodView

# Peers of a lost pod often fail before its loss shows: so long is the cause waited for. A kubelet reports a
# container's end within about a second; a lost node shows after 40 s, which would be too long to stand still.
PEER_LOST_WAIT_S = 10.0
MAX_EXIT_CODE = 255  # of a process; what a pod says beyond it is not believed

REASONS = {
    ExitCode.INVALID: "InvalidJob",
    ExitCode.DATA_BUDGET: "DataBudgetExceeded",
    ExitCode.CHECKPOINT: "CheckpointUnusable",
    ExitCode.DIVERGED: "ModelDiverged",
    ExitCode.PEER_LOST: "PeerLost",
    ExitCode.TERMINATED: "Terminated",
    134: "Aborted",
    137: "Killed",
    139: "SegmentationFault",
}
"""Reasons by exit code; rules match them as well as the codes."""

HOPELESS = ("InvalidJob", "DataBudgetExceeded", "ModelDiverged")
"""Reasons for which a restart does not help: the job fails unless a rule of its own says otherwise."""

DISRUPTIONS = {"Preempting", "Shutdown", "NodeShutdown", "NodeLost", "NodeAffinity", "UnexpectedAdmissionError"}
"""Reasons of a failed pod that are the cluster's doing even without the condition DisruptionTarget."""

_TORCHRUN_EXIT = re.compile(r"Root Cause.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_JOB_EXIT = re.compile(r"failed with exit code (\d+)")


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of an attempt."""

    end_class: EndClass
    reason: str
    message: str = ""
    exit_code: int | None = None
    at_s: float | None = None
    """When it happened, as far as known."""
    is_final: bool = False

    def by_rules(self, rules: Sequence[RestartRule]) -> End:
        """The end as the job's rules see it: the first rule that matches decides."""
        if self.end_class is not EndClass.FAILURE:
            return self
        for rule in rules:
            if self._matches(rule):
                return self._with(rule.action)
        return self._with("Fail" if self.reason in HOPELESS else "Restart")

    def _with(self, action: Literal["Restart", "Ignore", "Fail"]) -> End:
        if action == "Fail":
            return replace(self, is_final=True)
        return replace(self, end_class=EndClass.IGNORED) if action == "Ignore" else self

    def _matches(self, rule: RestartRule) -> bool:
        by_code = not rule.exit_codes or self.exit_code in rule.exit_codes
        return by_code and (not rule.reasons or self.reason in rule.reasons)


def find_end(job: JobView, pods: Sequence[PodView], *, now_s: float) -> End | None:
    """How an attempt that was not asked to stop has ended; None while it has not, or its cause is waited for."""
    if job.complete is not None:
        return End(end_class=EndClass.COMPLETED, reason="Completed", message=job.complete)
    found = _without_consequences([end for pod in pods if (end := _of_pod(pod, now_s=now_s))], now_s=now_s)
    causes = [end for end in found if end.reason != "PeerLost"]
    if causes:
        return min(causes, key=lambda end: (end.at_s or now_s, end.end_class is EndClass.FAILURE))
    if found:
        first = min(found, key=lambda end: end.at_s or now_s)
        if now_s - (first.at_s or now_s) < PEER_LOST_WAIT_S:
            return None
        message = f"{first.message}; no pod of its own fault was found: a peer vanished"
        return replace(first, end_class=EndClass.DISRUPTION, message=message)
    if job.meta.is_deleting:
        return End(end_class=EndClass.DISRUPTION, reason="JobDeleted", message=f"Job {job.meta.name} was deleted")
    return _of_job(job)


def is_waiting_for_cause(job: JobView, pods: Sequence[PodView], *, now_s: float) -> bool:
    """Whether pods have failed for want of a peer whose own end does not show yet."""
    return any(_of_pod(pod, now_s=now_s) for pod in pods) and find_end(job, pods, now_s=now_s) is None


def _without_consequences(ends: list[End], *, now_s: float) -> list[End]:
    """The Job controller deletes the other pods once one has failed: that is no cause."""
    failed_s = min((end.at_s or now_s for end in ends if end.end_class is EndClass.FAILURE), default=float("inf"))
    return [end for end in ends if end.reason != "PodDeleted" or (end.at_s or 0.0) < failed_s]


def _of_pod(pod: PodView, *, now_s: float) -> End | None:
    where = f"pod {pod.meta.name}" + (f" on node {pod.node}" if pod.node else "")
    if pod.disruption:
        reason, message, at_s = pod.disruption
        return _disrupted(reason or "Disrupted", f"{where}: {message or reason}", at_s)
    if pod.deletion_asked_s is not None:
        return _disrupted("PodDeleted", f"{where} is being deleted", pod.deletion_asked_s)
    if pod.phase != "Failed" and not pod.exit_code:
        return None
    if pod.reason in DISRUPTIONS or "node shutdown" in pod.message:
        return _disrupted(pod.reason or "NodeShutdown", f"{where}: {pod.message}", pod.finished_s or now_s)
    code, said = exit_code(pod)
    if code == ExitCode.TERMINATED:  # a trainer says so only when it was asked to stop, and not by us
        return _disrupted("Terminated", f"{where} was asked to stop: {said}", pod.finished_s or now_s)
    reason = pod.exit_reason if pod.exit_reason == "OOMKilled" else REASONS.get(code or 0, pod.reason or "Error")
    message = f"{where} ended with exit code {code}" + (f": {said}" if said else "")
    return End(end_class=EndClass.FAILURE, reason=reason, message=message, exit_code=code, at_s=pod.finished_s or now_s)


def _disrupted(reason: str, message: str, at_s: float) -> End:
    return End(end_class=EndClass.DISRUPTION, reason=reason, message=message, at_s=at_s)


def exit_code(pod: PodView) -> tuple[int | None, str]:
    """A rank's own exit code with what it said; torchrun ends with 1 whatever its ranks did."""
    text = pod.exit_message.strip()
    if text.startswith("{"):
        try:
            said = json.loads(text)
            code = int(said["exitCode"])
            if 0 <= code <= MAX_EXIT_CODE:
                return code, str(said.get("message", ""))[:512]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # a pod may write what it likes
    if pod.exit_code == 1 and (match := _TORCHRUN_EXIT.search(text)):
        code = int(match.group(1))
        return (128 - code if code < 0 else code), "reported by torchrun"
    return pod.exit_code, "" if "\n" in text else text[:512]


def _of_job(job: JobView) -> End | None:
    """The Job's own word, for when its pods are gone already."""
    if job.failed is None:
        return None
    reason, message = job.failed
    if "DisruptionTarget" in message:
        return _disrupted("Disrupted", message, 0.0)
    match = _JOB_EXIT.search(message)
    if match is None:
        return _disrupted("PodsLost", f"{reason}: {message}", 0.0)
    code = int(match.group(1))
    return End(
        end_class=EndClass.FAILURE, reason=REASONS.get(code, "Error"), message=message, exit_code=code, at_s=None
    )
