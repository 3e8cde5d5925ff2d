"""The operator's board: are the jobs well, does reconciling keep up, is the API server well, what did RAP do."""

from __future__ import annotations

from rap_contract import metrics as m

from boards.panels import Board, Form, Panel, Query, Row, Unit, below, events, gauge, quantile, rate

_NOT_WELL = f'{m.JOB_CONDITION.name}{{type=~"Stalled|Degraded|Failed"}} == 1'

JOBS = Row(
    "Are the jobs well?",
    (
        Panel(
            title="Jobs",
            about="All RAPJobs this operator looks after.",
            queries=(Query(gauge(m.JOBS, "", over="sum")),),
            form=Form.STAT,
            width=4,
            height=4,
        ),
        Panel(
            title="Not well",
            about="Stalled, Degraded or Failed.",
            queries=(Query(f"count({_NOT_WELL}) or vector(0)"),),
            form=Form.STAT,
            thresholds=below((1, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Leader",
            about="Replicas that hold the lease: 1 is right.",
            queries=(Query(gauge(m.LEADER, "", over="sum")),),
            form=Form.STAT,
            width=4,
            height=4,
        ),
        Panel(
            title="Reconcile p99",
            about="Above a second: the API server or a very large job.",
            queries=(Query(quantile(0.99, m.RECONCILE_SECONDS, "")),),
            unit=Unit.SECONDS,
            form=Form.STAT,
            thresholds=below((0.5, "orange"), (2, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Queue",
            about="Jobs waiting for a pass: near 0.",
            queries=(Query(gauge(m.QUEUE_DEPTH, "", over="sum")),),
            form=Form.STAT,
            thresholds=below((50, "orange"), (500, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Watch silence",
            about="Longest time a watch made no progress; bookmarks come every minute.",
            queries=(Query(gauge(m.WATCH_IDLE_SECONDS, "")),),
            unit=Unit.SECONDS,
            form=Form.STAT,
            thresholds=below((120, "orange"), (300, "red")),
            width=4,
            height=4,
        ),
        Panel(
            title="Jobs by phase",
            about="Many in Pending: quota, queue or scheduler. Many in Restarting: see restarts.",
            queries=(Query(gauge(m.JOBS, "", ("phase",), over="sum"), "{{phase}}"),),
            form=Form.STACKED,
            width=12,
        ),
        Panel(
            title="Who is not well",
            about="Jobs with Stalled, Degraded or Failed; an empty table is right.",
            queries=(
                Query(
                    f"max by (namespace, rapjob, type) ({_NOT_WELL}) or vector(0)", "{{namespace}}/{{rapjob}} {{type}}"
                ),
            ),
            form=Form.BARS,
            width=6,
        ),
        Panel(
            title="Restarts",
            about="Attempts begun again over the chosen time, by reason.",
            queries=(Query(events(m.RESTARTS, "", ("reason",)), "{{reason}}"),),
            form=Form.BARS,
            width=6,
        ),
    ),
)

RECONCILING = Row(
    "Does it keep up?",
    (
        Panel(
            title="Reconcile passes",
            about="A second, by outcome.",
            queries=(Query(rate(m.RECONCILES, "", ("outcome",)), "{{outcome}}"),),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Time of a pass",
            about="Includes its requests.",
            queries=(
                Query(quantile(0.5, m.RECONCILE_SECONDS, ""), "p50"),
                Query(quantile(0.99, m.RECONCILE_SECONDS, ""), "p99"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Passes that failed",
            about="Over the chosen time, by reason; each is tried again with a growing delay.",
            queries=(Query(events(m.RECONCILE_ERRORS, "", ("reason",)), "{{reason}}"),),
            form=Form.BARS,
        ),
        Panel(
            title="Queue depth",
            about="A line that does not come back to 0: too few workers, or an API server that is slow.",
            queries=(Query(gauge(m.QUEUE_DEPTH, "", ("pod",)), "{{pod}}"),),
        ),
        Panel(
            title="Wait in the queue",
            about="p99.",
            queries=(Query(quantile(0.99, m.QUEUE_WAIT_SECONDS, ""), "p99"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Retries",
            about="Passes queued again after an error, a second.",
            queries=(Query(rate(m.QUEUE_RETRIES, ""), "retries"),),
            unit=Unit.PER_SECOND,
        ),
    ),
)

API = Row(
    "Is the API server well?",
    (
        Panel(
            title="Requests by verb and code",
            about="429: the server asks for patience. 409: someone else writes the same objects.",
            queries=(Query(rate(m.API_REQUESTS, "", ("verb", "code")), "{{verb}} {{code}}"),),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Time of a request",
            about="p99 by verb.",
            queries=(Query(quantile(0.99, m.API_REQUEST_SECONDS, "", ("verb",)), "{{verb}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Watches begun anew",
            about="Over the chosen time; a time-out every few minutes is normal, 410 means a slow reader.",
            queries=(Query(events(m.WATCH_RESTARTS, "", ("resource", "reason")), "{{resource}}: {{reason}}"),),
            form=Form.BARS,
        ),
        Panel(
            title="Objects held in memory",
            about="By resource.",
            queries=(Query(gauge(m.CACHED_OBJECTS, "", ("resource",)), "{{resource}}"),),
        ),
        Panel(
            title="Changes of the leader",
            about="Over the chosen time, by replica.",
            queries=(Query(events(m.LEADER_CHANGES, "", ("pod",)), "{{pod}}"),),
            form=Form.BARS,
        ),
        Panel(
            title="Scrapes of trainers",
            about="Over the chosen time, by outcome: without metrics there is no replanning.",
            queries=(Query(events(m.SCRAPES, "", ("outcome",)), "{{outcome}}"),),
            form=Form.BARS,
        ),
    ),
)

REPLANNING = Row(
    "What did RAP do?",
    (
        Panel(
            title="Replanning decisions",
            about="Over the chosen time, by outcome and reason.",
            queries=(Query(events(m.REPLANS, "", ("outcome", "reason")), "{{outcome}}: {{reason}}"),),
            form=Form.BARS,
            width=12,
        ),
        Panel(
            title="Plans being searched or switched to",
            about="At most the cluster-wide limit.",
            queries=(Query(f"{gauge(m.REPLANS_RUNNING, '', over='sum')} or vector(0)", "running"),),
            width=12,
        ),
    ),
)

OPERATOR_BOARD = Board(
    uid="rap-operator",
    title="RAP / Operator",
    about="The RAP operator: jobs, reconciling, the API server as it sees it, and what replanning did.",
    variables=(),
    rows=(JOBS, RECONCILING, API, REPLANNING),
    links=(("Job", "rap-job"),),
)
