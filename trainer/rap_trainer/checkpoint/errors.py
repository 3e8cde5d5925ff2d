"""What can be wrong with checkpoints, each with the exit code it leads to."""

from __future__ import annotations

from rap_contract.pod import ExitCode


class CheckpointError(RuntimeError):
    """No usable checkpoint, or it cannot be written. The message names the place and what to do."""

    exit_code = ExitCode.CHECKPOINT
    reason = "unusable"
    """A label of the metric."""


class Damaged(CheckpointError):
    """A checkpoint is incomplete or its bytes have changed."""

    reason = "damaged"


class OtherJob(CheckpointError):
    """The directory belongs to another job."""

    reason = "other_job"


class Incompatible(CheckpointError):
    """The job has changed so that a tensor of its model cannot be loaded."""

    reason = "incompatible"


class Fenced(CheckpointError):
    """A newer attempt owns the directory; this one must not write."""

    reason = "fenced"


class WriteFailed(CheckpointError):
    """The file system refused: full, read-only, gone. The checkpoints before stay good."""

    reason = "write"


class Poisoned(CheckpointError):
    """The state to be saved holds NaN or Inf; it was not saved."""

    exit_code = ExitCode.DIVERGED
    reason = "nonfinite"
