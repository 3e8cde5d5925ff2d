"""Every metric of both planes as data: the only place that names one.

Names follow Prometheus: snake_case, base units, `_total` for counters, `_info` for facts in labels, `_ratio` for shares.
The trainer serves TRAINER on each rank's port: counters of that rank, gauges of the whole job on rank 0 where the help
says so. The operator serves OPERATOR. No label holds a feature, a row or a time: the number of series stays bounded. A
job's label is `rapjob`, for `job` is what Prometheus calls the thing it scraped.
Not here: how a value is measured, stored or served. A golden file freezes this page; changing it is a breaking change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric as declared: its series exist only with exactly these labels."""

    name: str
    kind: Kind
    unit: str
    """Base unit: seconds, bytes, ratio, rows, records, ...; empty for facts and plain numbers."""
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, ascending, without +Inf."""


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, unit=unit, help=text, labels=labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, help=text, labels=labels)


def _seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, unit="seconds", help=text, labels=labels, buckets=buckets)


_STEP_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONG_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_API_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
FRESHNESS_S = tuple(2.0**i for i in range(-4, 20))
"""62.5 ms to 6 days, doubling: a row finds its bucket by one logarithm instead of a search."""

# Trainer: throughput and the step
ROWS_TRAINED = _counter("rap_rows_trained_total", "rows", "Rows of this rank whose optimizer step is done.")
STEPS = _counter("rap_steps_total", "steps", "Optimizer steps of this attempt.")
STEP = _gauge("rap_step", "steps", "Optimizer steps in the job's whole life.")
ROWS_PER_SECOND = _gauge("rap_rows_per_second", "rows", "Rows of all ranks trained per second lately (rank 0).")
STEP_SECONDS = _seconds("rap_step_seconds", "Time of a training step of this rank.", _STEP_S)
STEP_PART_SECONDS = _counter("rap_step_part_seconds_total", "seconds", "Time of the training step by part.", "part")
EXPOSED_SECONDS = _counter(
    "rap_preprocessing_exposed_seconds_total", "seconds", "Time the training step waited for preprocessing."
)
EXPOSED_RATIO = _gauge(
    "rap_preprocessing_exposed_ratio", "ratio", "Share of the step that waited for preprocessing lately."
)
STARVED_SECONDS = _counter("rap_starved_seconds_total", "seconds", "Time without enough rows for a step.")
PARTIAL_BATCHES = _counter("rap_partial_batches_total", "steps", "Steps trained on less than a full batch.")
DEVICE_BUSY_RATIO = _gauge("rap_device_busy_ratio", "ratio", "Share of the time the accelerator was busy lately.")
DEVICE_MEMORY_BYTES = _gauge("rap_device_memory_bytes", "bytes", "Peak memory of the accelerator in use.")
HOST_MEMORY_BYTES = _gauge("rap_host_memory_bytes", "bytes", "Resident memory of the training process.")

# Trainer: quality; `span` is window or life
LOSS = _gauge("rap_training_loss", "nats", "Mean training loss lately (rank 0).")
NORMALIZED_ENTROPY = _gauge(
    "rap_evaluation_normalized_entropy",
    "ratio",
    "Log loss before learning over the entropy of the click rate (rank 0).",
    "span",
)
AUC = _gauge("rap_evaluation_auc", "ratio", "Area under the ROC curve before learning (rank 0).", "span")
CALIBRATION = _gauge(
    "rap_evaluation_calibration_ratio", "ratio", "Sum of predictions over sum of labels (rank 0).", "span"
)
DIVERGENCES = _counter("rap_divergences_total", "events", "Times the divergence guard fired.", "reason")

# Trainer: freshness and lag, with the names of Flink's FLIP-33 where it has one. Files: topic is the directory's name,
# partition is empty.
FRESHNESS_SECONDS = _seconds("rap_freshness_seconds", "Event time to optimizer step of a row.", FRESHNESS_S)
PENDING_RECORDS = _gauge(
    "rap_source_pending_records",
    "records",
    "Lag in records: produced but not yet trained (FLIP-33 pendingRecords).",
    *("topic", "partition"),
)
LAG_SECONDS = _gauge(
    "rap_source_lag_seconds",
    "seconds",
    "Lag in time: age of the oldest record not yet trained; 0 without one.",
    *("topic", "partition"),
)
EMIT_EVENT_TIME_LAG_SECONDS = _gauge(
    "rap_source_emit_event_time_lag_seconds",
    "seconds",
    "Event time to the hand-over to training, newest batch (FLIP-33 currentEmitEventTimeLag).",
)
FETCH_EVENT_TIME_LAG_SECONDS = _gauge(
    "rap_source_fetch_event_time_lag_seconds",
    "seconds",
    "Event time to the fetch, newest record (FLIP-33 currentFetchEventTimeLag).",
)
WATERMARK_LAG_SECONDS = _gauge(
    "rap_source_watermark_lag_seconds",
    "seconds",
    "Now minus the event time up to which all partitions are trained (FLIP-33 watermarkLag).",
)
SOURCE_IDLE_SECONDS = _gauge(
    "rap_source_idle_seconds", "seconds", "Time since the source delivered a record (FLIP-33 sourceIdleTime)."
)
CURRENT_OFFSET = _gauge(
    "rap_source_current_offset", "records", "Next offset to train (FLIP-33 currentOffset).", "topic", "partition"
)
COMMITTED_OFFSET = _gauge(
    "rap_source_committed_offset", "records", "Next offset in the newest checkpoint.", "topic", "partition"
)
ARRIVAL_RATE = _gauge("rap_source_arrival_records_per_second", "records", "Records produced per second lately.")
CONSUMPTION_RATE = _gauge("rap_source_consumed_records_per_second", "records", "Records consumed per second lately.")
CATCH_UP_SECONDS = _gauge(
    "rap_source_catch_up_seconds", "seconds", "Time until the lag is gone at these rates; +Inf if it grows."
)
SOURCE_RECORDS = _counter("rap_source_records_total", "records", "Records read (FLIP-33 numRecordsIn).")
SOURCE_BYTES = _counter("rap_source_bytes_total", "bytes", "Bytes read (FLIP-33 numBytesIn).")

# Trainer: damaged data
BAD_RECORDS = _counter("rap_bad_records_total", "records", "Records that could not be read.", "reason")
BAD_RECORDS_RATIO = _gauge("rap_bad_records_ratio", "ratio", "Share of bad records in the error budget's window.")
ERROR_BUDGET_RATIO = _gauge("rap_error_budget_ratio", "ratio", "Share of bad records at which the job stops.")
DEAD_LETTERS = _counter("rap_dead_letters_total", "records", "Bad records kept as dead letters.", "destination")
DEAD_LETTER_FAILURES = _counter("rap_dead_letter_failures_total", "records", "Dead letters that could not be written.")
QUARANTINED_FILES = _counter("rap_quarantined_files_total", "files", "Files set aside as unreadable.", "reason")
LOST_RECORDS = _counter("rap_lost_records_total", "records", "Records deleted by retention before they were read.")
SCHEMA_CHANGES = _counter("rap_schema_changes_total", "events", "Times the schema fingerprint of the events changed.")
SCHEMA_INFO = _gauge(
    "rap_schema_info",
    "",
    "Names and types of the columns read, as a fingerprint of the newest message: 1.",
    "fingerprint",
)
ANOMALIES = _counter(
    "rap_preprocessing_anomalies_total", "values", "Odd values an op met, such as bucketize_nan.", "kind"
)

# Trainer: checkpoints and published models
CHECKPOINTS = _counter("rap_checkpoints_total", "checkpoints", "Complete checkpoints written by this attempt.")
CHECKPOINT_FAILURES = _counter("rap_checkpoint_failures_total", "checkpoints", "Checkpoints that failed.", "reason")
CHECKPOINT_FALLBACKS = _counter("rap_checkpoint_fallbacks_total", "checkpoints", "Damaged checkpoints passed over.")
CHECKPOINT_AGE_SECONDS = _gauge("rap_checkpoint_age_seconds", "seconds", "Time since the newest complete checkpoint.")
CHECKPOINT_TIME_SECONDS = _gauge(
    "rap_checkpoint_timestamp_seconds", "seconds", "Unix time of the newest complete checkpoint."
)
CHECKPOINT_STEP = _gauge("rap_checkpoint_step", "steps", "Step of the newest complete checkpoint.")
CHECKPOINT_BYTES = _gauge("rap_checkpoint_bytes", "bytes", "Size of the newest complete checkpoint (rank 0).")
CHECKPOINT_SECONDS = _seconds("rap_checkpoint_seconds", "Time from snapshot to complete checkpoint.", _LONG_S)
CHECKPOINT_STALL_SECONDS = _counter(
    "rap_checkpoint_stall_seconds_total", "seconds", "Time training stood still for checkpoints."
)
PUBLISHED = _counter("rap_published_models_total", "models", "Serving models published.")
PUBLISH_FAILURES = _counter("rap_publish_failures_total", "models", "Serving models that could not be published.")
PUBLISHED_TIME_SECONDS = _gauge("rap_published_timestamp_seconds", "seconds", "Unix time of the newest serving model.")

# Trainer: attempt, plan, workload
TRAINER_INFO = _gauge("rap_trainer_info", "", "Who this is: 1.", "rapjob", "rank", "device", "runtime", "version")
ATTEMPT = _gauge("rap_attempt", "attempts", "Number of the attempt.")
WORLD_SIZE = _gauge("rap_world_size", "ranks", "Ranks of the attempt.")
PLAN_INFO = _gauge("rap_plan_info", "", "The plan in force: 1.", "plan")
PLAN_SWITCHES = _counter("rap_plan_switches_total", "switches", "Plan switches by outcome.", "outcome")
PLAN_SWITCH_SECONDS = _seconds("rap_plan_switch_seconds", "Time of a plan switch, preparation included.", _LONG_S)
PLAN_SWITCH_STALL_SECONDS = _counter(
    "rap_plan_switch_stall_seconds_total", "seconds", "Time training stood still for plan switches."
)
PLAN_REFUSED_INFO = _gauge("rap_plan_refused_info", "", "The last plan that a rank could not run: 1.", "plan", "reason")
PREDICTED_STEP_SECONDS = _gauge(
    "rap_plan_predicted_step_seconds", "seconds", "Step time the plan predicts, by part.", "part"
)
MEASURED_STEP_SECONDS = _gauge(
    "rap_plan_measured_step_seconds", "seconds", "Step time measured over the last window, by part.", "part"
)
PLAN_ERROR_RATIO = _gauge(
    "rap_plan_measured_over_predicted_ratio",
    "ratio",
    "Measured over predicted time of a step, median of the last windows of steps, by part.",
    "part",
)
PLAN_DRIFT_SECONDS = _gauge(
    "rap_plan_list_length_drift_seconds",
    "seconds",
    "What a step's preprocessing costs more than planned because lists have grown since the plan's first window.",
)
WINDOW_CAPACITY_SECONDS = _gauge(
    "rap_window_capacity_seconds", "seconds", "Co-run capacity left in a window of the step.", "window"
)
MEAN_LIST_LENGTH = _gauge("rap_workload_mean_list_length", "ids", "Mean list length lately, by feature group.", "group")
NULL_RATIO = _gauge("rap_workload_null_ratio", "ratio", "Share of null rows lately, by feature group.", "group")

# Operator
RECONCILES = _counter("rap_operator_reconciles_total", "passes", "Reconcile passes by outcome.", "outcome")
RECONCILE_SECONDS = _seconds("rap_operator_reconcile_seconds", "Time of a reconcile pass.", _API_S)
RECONCILE_ERRORS = _counter("rap_operator_reconcile_errors_total", "passes", "Passes that failed.", "reason")
QUEUE_DEPTH = _gauge("rap_operator_queue_depth", "jobs", "Jobs waiting for a pass.")
QUEUE_WAIT_SECONDS = _seconds("rap_operator_queue_wait_seconds", "Time a job waited for its pass.", _API_S)
QUEUE_RETRIES = _counter("rap_operator_queue_retries_total", "passes", "Passes queued again after an error.")
WATCH_RESTARTS = _counter("rap_operator_watch_restarts_total", "watches", "Watches begun anew.", "resource", "reason")
WATCH_IDLE_SECONDS = _gauge(
    "rap_operator_watch_idle_seconds", "seconds", "Time since a watch made progress.", "resource"
)
CACHED_OBJECTS = _gauge("rap_operator_cached_objects", "objects", "Objects held in memory.", "resource")
API_REQUESTS = _counter("rap_operator_api_requests_total", "requests", "Requests to the API server.", "verb", "code")
API_REQUEST_SECONDS = _seconds("rap_operator_api_request_seconds", "Time of a request.", _API_S, "verb")
LEADER = _gauge("rap_operator_leader", "", "1 on the replica that holds the lease, else 0.")
LEADER_CHANGES = _counter("rap_operator_leader_changes_total", "events", "Times this replica won or lost the lease.")
JOBS = _gauge("rap_operator_jobs", "jobs", "RAPJobs by phase.", "phase")
JOB_CONDITION = _gauge(
    "rap_operator_job_condition", "", "1 while a condition of a RAPJob is True, else 0.", "namespace", "rapjob", "type"
)
RESTARTS = _counter("rap_operator_restarts_total", "attempts", "Attempts begun again.", "reason")
REPLANS = _counter("rap_operator_replans_total", "decisions", "Replanning decisions.", "outcome", "reason")
REPLANS_RUNNING = _gauge("rap_operator_replans_running", "plans", "Plans being searched or switched to.")
SCRAPES = _counter("rap_operator_scrapes_total", "scrapes", "Scrapes of trainers' metrics.", "outcome")
OPERATOR_INFO = _gauge("rap_operator_info", "", "Who this is: 1.", "version")

_DECLARED = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
OPERATOR = tuple(metric for metric in _DECLARED if metric.name.startswith("rap_operator_"))
TRAINER = tuple(metric for metric in _DECLARED if not metric.name.startswith("rap_operator_"))


def as_data() -> dict[str, list[dict[str, object]]]:
    """All metrics as plain JSON data, by plane: what the golden file and the docs are made from."""
    return {"trainer": [asdict(m) for m in TRAINER], "operator": [asdict(m) for m in OPERATOR]}
