"""The board of one RAPJob: is it fresh, is it fast, is it right, and what did RAP do."""

from __future__ import annotations

from rap_contract import metrics as m

from boards.panels import Board, Form, Panel, Query, Row, Unit, Variable, below, events, gauge, quantile, rate

JOB = 'namespace="$namespace", rapjob="$rapjob"'
_STEPS = rate(m.STEPS, JOB)
_DECISIONS = 'namespace="$namespace"'

AT_A_GLANCE = Row(
    "At a glance",
    (
        Panel(
            title="Freshness p50",
            about="Event time to optimizer step. High: look at lag below, then at samples a second.",
            queries=(Query(quantile(0.5, m.FRESHNESS_SECONDS, JOB)),),
            unit=Unit.SECONDS,
            form=Form.STAT,
            thresholds=below((60, "orange"), (600, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Lag",
            about="Records produced but not yet trained, over all partitions.",
            queries=(Query(gauge(m.PENDING_RECORDS, JOB, over="sum")),),
            form=Form.STAT,
            width=4,
            height=4,
        ),
        Panel(
            title="Samples a second",
            about="Rows of all ranks whose optimizer step is done.",
            queries=(Query(rate(m.ROWS_TRAINED, JOB)),),
            unit=Unit.ROWS_PER_SECOND,
            form=Form.STAT,
            width=4,
            height=4,
        ),
        Panel(
            title="Exposed preprocessing",
            about="Share of the step that waited for preprocessing: what RAP is there to hide.",
            queries=(Query(gauge(m.EXPOSED_RATIO, JOB, over="avg")),),
            unit=Unit.RATIO,
            form=Form.STAT,
            thresholds=below((0.02, "orange"), (0.1, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Normalized entropy",
            about="Log loss before learning over the entropy of the click rate: below 1 beats the average.",
            queries=(Query(gauge(m.NORMALIZED_ENTROPY, JOB + ', span="window"')),),
            unit=Unit.NONE,
            form=Form.STAT,
            thresholds=below((0.98, "orange"), (1.0, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Checkpoint age",
            about="What a crash now would train again.",
            queries=(Query(gauge(m.CHECKPOINT_AGE_SECONDS, JOB)),),
            unit=Unit.SECONDS,
            form=Form.STAT,
            thresholds=below((900, "orange"), (3600, "red")),
            width=4,
            height=4,
        ),
    ),
)

FRESH = Row(
    "Is it fresh?",
    (
        Panel(
            title="Event time to optimizer step",
            about="How old a row is when the model has learned from it.",
            queries=(
                Query(quantile(0.5, m.FRESHNESS_SECONDS, JOB), "p50"),
                Query(quantile(0.99, m.FRESHNESS_SECONDS, JOB), "p99"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Lag in records",
            about="Produced but not yet trained, by topic (FLIP-33 pendingRecords).",
            queries=(Query(gauge(m.PENDING_RECORDS, JOB, ("topic",), over="sum"), "{{topic}}"),),
        ),
        Panel(
            title="Lag in time",
            about="Age of the oldest record not yet trained. One partition far above the others: a hot key or a sick leader.",
            queries=(
                Query(f"topk(5, {gauge(m.LAG_SECONDS, JOB, ('topic', 'partition'))})", "{{topic}}/{{partition}}"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Arrival and consumption",
            about="Consumption below arrival for long: more ranks, or a plan with less exposed preprocessing.",
            queries=(
                Query(gauge(m.ARRIVAL_RATE, JOB, over="sum"), "arrive"),
                Query(gauge(m.CONSUMPTION_RATE, JOB, over="sum"), "trained"),
            ),
            unit=Unit.ROWS_PER_SECOND,
        ),
        Panel(
            title="Time to catch up",
            about="Until the lag is gone at these rates; no line: it grows.",
            queries=(Query(gauge(m.CATCH_UP_SECONDS, JOB), "catch up"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Waiting for data",
            about="Share of the time without enough rows for a step, and time since the source delivered a record.",
            queries=(
                Query(rate(m.STARVED_SECONDS, JOB, ("pod",)), "starved {{pod}}"),
                Query(gauge(m.SOURCE_IDLE_SECONDS, JOB), "source idle, s"),
            ),
            unit=Unit.NONE,
        ),
    ),
)

FAST = Row(
    "Is it fast?",
    (
        Panel(
            title="Samples a second by pod",
            about="All ranks step together: a pod below the others lacks rows, not speed.",
            queries=(Query(rate(m.ROWS_TRAINED, JOB, ("pod",)), "{{pod}}"),),
            unit=Unit.ROWS_PER_SECOND,
        ),
        Panel(
            title="Step time",
            about="Of all ranks.",
            queries=(
                Query(quantile(0.5, m.STEP_SECONDS, JOB), "p50"),
                Query(quantile(0.99, m.STEP_SECONDS, JOB), "p99"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Step by part",
            about="Mean time of a step of a rank, by part.",
            queries=(Query(f"{rate(m.STEP_PART_SECONDS, JOB, ('part',))} / scalar({_STEPS})", "{{part}}"),),
            unit=Unit.SECONDS,
            form=Form.STACKED,
        ),
        Panel(
            title="Exposed preprocessing",
            about="Share of the step that waited for preprocessing. Rising while the data changed: see replanning below.",
            queries=(Query(gauge(m.EXPOSED_RATIO, JOB, ("pod",)), "{{pod}}"),),
            unit=Unit.RATIO,
        ),
        Panel(
            title="Partial batches a second",
            about="Steps trained on less than a full batch since rows came late.",
            queries=(Query(rate(m.PARTIAL_BATCHES, JOB), "partial"),),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Memory of the training processes",
            about="Flat after the first minutes; growth is a leak.",
            queries=(Query(gauge(m.HOST_MEMORY_BYTES, JOB, ("pod",)), "{{pod}}"),),
            unit=Unit.BYTES,
        ),
        Panel(
            title="GPU busy",
            about="Share of the time. Low while ranks wait for data: see above; low otherwise: the eager runtime.",
            queries=(Query(gauge(m.DEVICE_BUSY_RATIO, JOB, ("pod",), over="avg"), "{{pod}}"),),
            unit=Unit.RATIO,
            width=12,
            needs_gpu=True,
        ),
        Panel(
            title="GPU memory",
            about="Peak in use, by pod.",
            queries=(Query(gauge(m.DEVICE_MEMORY_BYTES, JOB, ("pod",)), "{{pod}}"),),
            unit=Unit.BYTES,
            width=12,
            needs_gpu=True,
        ),
    ),
)

RIGHT = Row(
    "Is it right?",
    (
        Panel(
            title="Normalized entropy",
            about="Each batch is scored before it is learned from. A jump: drift or damaged data.",
            queries=(Query(gauge(m.NORMALIZED_ENTROPY, JOB, ("span",)), "{{span}}"),),
            unit=Unit.NONE,
        ),
        Panel(
            title="AUC",
            about="0.5 is chance.",
            queries=(Query(gauge(m.AUC, JOB, ("span",)), "{{span}}"),),
            unit=Unit.NONE,
        ),
        Panel(
            title="Calibration",
            about="Sum of predictions over sum of labels: 1 is right.",
            queries=(Query(gauge(m.CALIBRATION, JOB, ("span",)), "{{span}}"),),
            unit=Unit.NONE,
        ),
        Panel(
            title="Bad records against the budget",
            about="Beyond the budget the job ends with exit code 3.",
            queries=(
                Query(gauge(m.BAD_RECORDS_RATIO, JOB), "bad"),
                Query(gauge(m.ERROR_BUDGET_RATIO, JOB), "budget"),
            ),
            unit=Unit.RATIO,
        ),
        Panel(
            title="Bad records by reason",
            about="Over the chosen time. The records are in the dead letters with their origin.",
            queries=(Query(events(m.BAD_RECORDS, JOB, ("reason",)), "{{reason}}"),),
            form=Form.BARS,
        ),
        Panel(
            title="What was lost or set aside",
            about="Over the chosen time: all zero is right.",
            queries=(
                Query(events(m.DEAD_LETTERS, JOB), "dead letters"),
                Query(events(m.DEAD_LETTER_FAILURES, JOB), "dead letters not written"),
                Query(events(m.QUARANTINED_FILES, JOB), "files set aside"),
                Query(events(m.LOST_RECORDS, JOB), "records lost to retention"),
                Query(events(m.SCHEMA_CHANGES, JOB), "schema changes"),
                Query(events(m.DIVERGENCES, JOB), "divergences"),
            ),
            form=Form.BARS,
        ),
    ),
)

SAFE = Row(
    "Is it safe?",
    (
        Panel(
            title="Checkpoint age",
            about="A saw with the interval's teeth.",
            queries=(Query(gauge(m.CHECKPOINT_AGE_SECONDS, JOB), "age"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Training stalled by checkpoints",
            about="Share of the time. Snapshots are asynchronous: a few per mille.",
            queries=(Query(rate(m.CHECKPOINT_STALL_SECONDS, JOB, ("pod",)), "{{pod}}"),),
            unit=Unit.RATIO,
        ),
        Panel(
            title="Checkpoints",
            about="Over the chosen time, and attempts of the job's life.",
            queries=(
                Query(events(m.CHECKPOINTS, JOB), "written"),
                Query(events(m.CHECKPOINT_FAILURES, JOB), "failed"),
                Query(events(m.CHECKPOINT_FALLBACKS, JOB), "damaged, passed over"),
                Query(events(m.PUBLISHED, JOB), "models published"),
                Query(gauge(m.ATTEMPT, JOB), "attempt"),
                Query(gauge(m.WORLD_SIZE, JOB), "ranks"),
            ),
            form=Form.BARS,
        ),
    ),
)

REPLANNING = Row(
    "What did RAP do?",
    (
        Panel(
            title="Step predicted by the plan, and measured",
            about="Far apart: the profile no longer fits this device or this data.",
            queries=(
                Query(gauge(m.PREDICTED_STEP_SECONDS, JOB, ("part",)), "predicted {{part}}"),
                Query(gauge(m.MEASURED_STEP_SECONDS, JOB, ("part",)), "measured {{part}}"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="List lengths by feature group",
            about="Drift here changes what preprocessing costs.",
            queries=(Query(gauge(m.MEAN_LIST_LENGTH, JOB, ("group",)), "{{group}}"),),
            unit=Unit.NONE,
        ),
        Panel(
            title="Nulls by feature group",
            about="Share of null rows.",
            queries=(Query(gauge(m.NULL_RATIO, JOB, ("group",)), "{{group}}"),),
            unit=Unit.RATIO,
        ),
        Panel(
            title="Plan switches",
            about="Over the chosen time, by outcome; a veto names its rank in the job's events.",
            queries=(Query(events(m.PLAN_SWITCHES, JOB, ("outcome",)), "{{outcome}}"),),
            form=Form.BARS,
        ),
        Panel(
            title="Replanning decisions of the operator",
            about="Over the chosen time, all jobs, by outcome and reason; `kubectl describe rapjob` has this job's.",
            queries=(Query(events(m.REPLANS, "", ("outcome", "reason")), "{{outcome}}: {{reason}}"),),
            form=Form.BARS,
        ),
        Panel(
            title="Plan in force",
            about="The hash that the ConfigMap and the status show too.",
            queries=(Query(f"max by (plan) ({m.PLAN_INFO.name}{{{JOB}}})", "{{plan}}"),),
            form=Form.BARS,
        ),
    ),
)

JOB_BOARD = Board(
    uid="rap-job",
    title="RAP / Job",
    about="One RAPJob from top to bottom: is it fresh, is it fast, is it right, is it safe, what did RAP do.",
    variables=(
        Variable(name="namespace", label="Namespace", metric=m.TRAINER_INFO.name, source_label="namespace"),
        Variable(
            name="rapjob",
            label="RAPJob",
            metric=f'{m.TRAINER_INFO.name}{{namespace="$namespace"}}',
            source_label="rapjob",
        ),
    ),
    rows=(AT_A_GLANCE, FRESH, FAST, RIGHT, SAFE, REPLANNING),
    links=(("Operator", "rap-operator"),),
)
