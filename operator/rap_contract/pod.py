"""What a trainer pod and the operator agree on: environment, mounts, exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why `rap run` ended."""

    DONE = 0
    INVALID = 2
    """Usage or an invalid job; a restart does not help."""
    DATA_BUDGET = 3
    """More bad records than the error budget allows."""
    CHECKPOINT = 4
    """No usable checkpoint, or it cannot be written."""
    DIVERGED = 5
    """NaN, Inf or normalized entropy above the limit."""
    PEER_LOST = 6
    """Another rank is gone; a restart helps."""
    TERMINATED = 143
    """Asked to stop; a checkpoint was written."""


ENV_ATTEMPT = "RAP_ATTEMPT"
"""Number of the attempt; fences checkpoint writes of an earlier one."""
ENV_JOB_FILE = "RAP_JOB_FILE"
"""Path of the job's YAML in the pod."""
ENV_PLAN_FILE = "RAP_PLAN_FILE"
"""Path of the plan's JSON in the pod."""
ENV_PROFILE_FILE = "RAP_PROFILE_FILE"
"""Path of the profile's JSON; without it `profile.json` beside the checkpoints is taken, if it is there."""
PLANNING_PATH = "/planning"
"""Beside /metrics on the first rank: what a search for a plan needs to know, as JSON."""
JOB_MOUNT = "/etc/rap/job"
PLAN_MOUNT = "/etc/rap/plan"
SECRET_MOUNT = "/etc/rap/secrets"
METRICS_SECRET_MOUNT = "/etc/rap/metrics"
"""Certificate, key and token of the metrics, if `trainer.metricsSecretName` says so."""
ENV_METRICS_SECRET = "RAP_METRICS_SECRET"
"""Folder of the same files on a machine that is no pod."""
ENV_MODEL_FACTORIES = "RAP_MODEL_FACTORIES"
"""The factories a trainer may import, comma-separated; `ads.models:*` is all that begin so. Unset: any."""
PORT_RENDEZVOUS = 29400
ENV_FENCE = "RAP_FENCE"
"""Milliseconds since the epoch at which the attempt was recorded; grows also over jobs of one name."""
ENV_JOB_NAME = "RAP_JOB_NAME"
ENV_JOB_UID = "RAP_JOB_UID"
ENV_NAMESPACE = "RAP_NAMESPACE"
JOB_FILE = f"{JOB_MOUNT}/job.yaml"
PLAN_FILE = f"{PLAN_MOUNT}/plan.json"
SHM_MOUNT = "/dev/shm"  # noqa: S108  # where NCCL, gloo and the stream's ring buffers want it
CONTAINER = "trainer"
"""Name of the container that trains; `podTemplate` overlays it by this name."""
TERMINATION_FILE = "/dev/termination-log"
"""A rank may leave `{"exitCode": 3, "message": "..."}` here: torchrun itself hides its ranks' exit codes."""
ENV_NODES = "RAP_NODES"
"""Number of pods of the attempt; without it the ranks of one machine are all there are."""
ENV_NODE_INDEX = "RAP_NODE_INDEX"
"""Index of this pod, from 0."""
ENV_RENDEZVOUS = "RAP_RENDEZVOUS"
"""`host:port` at pod 0 where all ranks meet."""
