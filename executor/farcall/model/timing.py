"""Timing: intervals, timeouts and retry limits of the client, in one value.

A session's owner passes it down, and each object keeps it. Limits of AWS's API, such as the
number of keys in a page, are not part of it, nor are options such as ``linger_s``.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals and limits of one session; change them with `dataclasses.replace`.

    Values are in seconds unless the name says otherwise. A retry limit counts from the first
    failure; after it the operation fails.

    Attributes:
        connect_timeout_s: Timeout for opening a connection.
        read_timeout_s: Timeout for each wait for response data.
        request_timeout_s: Timeout of a whole request that uploads much data.
        attempts: Maximum attempts of a call of IAM, CloudWatch Logs or STS.
        call_retry_s: Retry limit of a Batch call, by default.
        register_retry_s: Retry limit of RegisterJobDefinition.
        defined_retry_s: Retry limit of SubmitJob while Batch does not know the job definition yet.
        throttled_for_s: Time after which calls fail that are only throttled. After one minute the
            call rate is down to one per two seconds, so the client is not the cause.
        submit_retry_s: Retry limit of SubmitJob.
        submit_polls_s: Delays before each lookup of a job whose submission was not answered, half
            a minute in total. AWS documents no limit for the delay of lists; some seconds were
            observed.
        withdrawn_polls_s: Delays before each lookup of a withdrawn job that may still appear, a
            quarter of an hour in total.
        listed_within_s: Time within which a job must appear in lists if it has stored something in
            the bucket, or if it is a command job whose submission was not answered. Giving up
            earlier could leave an unknown job running.
        outcome_pause_s: Interval between two lists of outcomes, per page of the first list.
        status_pause_s: Interval between two status requests for a job.
        near_s: Response time below which an endpoint is considered local, and is polled more often
            at first. S3 takes 10 to 30 ms, Batch longer.
        give_up_s: Retry limit of the job tracker; gives a user time to renew credentials.
        lost_after_s: Time after which a job, or a finished array task, that Batch does not know is
            considered lost.
        blocked_report_s: Time after which a pod that cannot be placed or started is reported; most
            clusters find space sooner.
        idle_report_s: Time without any progress after which one warning reports that jobs are
            waiting; it is logged at the next check, up to twice that time.
        pull_dwell_s: Time after which a job is terminated whose pod cannot start for a reason that
            may pass. Kubelets retry after 10, 20, 40 and 80 s, and pods have started after that:
            https://github.com/PrefectHQ/prefect-kubernetes/issues/127
        start_dwell_s: The same for reasons that do not pass; caches of a kubelet can lag behind by
            some seconds.
        log_pause_s: Interval between two polls of a job's output.
        attempts_pause_s: Interval between two status requests for the job whose output is read.
        log_settle_s: Delay after which CloudWatch returns received lines.
        node_log_pause_s: Interval between two polls of nodes that write output.
        node_log_rest_s: Interval between two polls of idle nodes, reached by back-off.
        last_blocks_s: Time that the end of the event loop waits for open executor blocks.
        last_deletions_s: Time that the end of a session waits for its deletions.
        store_retry_s: Retry limit of a request to the bucket.
        quick_retry_s: Retry limit within obstore, after which farcall logs the failure and retries
            until `store_retry_s`.
        sending_retry_s: Retry limit within obstore of an upload.
        shared_kept_s: Time for which an unreferenced shared value is retained for the next map.
        delete_after_s: Delay of a deletion, so that several objects share one request.
        largest_outcome_bytes: Maximum size of an outcome in bytes. An outcome contains results of
            up to 64 MiB and metadata of each call; others can store anything under its key.
        fetch_retry_s: Retry limit of fetching one outcome of a map.
        fetch_again_s: Interval between two such retries.
        window_bytes: Maximum bytes of a map's results that are fetched ahead of the caller.
        window_tasks: Maximum number of tasks whose results are fetched ahead of the caller.
        most_unfetched: Maximum known outcomes of a map that wait in the bucket before the listing
            pauses.
        recover_polls_s: Delays before each lookup of a run's jobs, because Batch's lists lag.
        remembered_s: Time for which Batch knows a finished job at least:
            https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
        progress_s: Interval between two updates of a progress bar.
    """

    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    attempts: int = 4
    call_retry_s: float = 10.0
    register_retry_s: float = 20.0
    defined_retry_s: float = 60.0
    throttled_for_s: float = 3600.0
    submit_retry_s: float = 60.0
    submit_polls_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    withdrawn_polls_s: tuple[float, ...] = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0)
    listed_within_s: float = 300.0
    outcome_pause_s: float = 0.25
    status_pause_s: float = 1.0
    near_s: float = 0.008
    give_up_s: float = 600.0
    lost_after_s: float = 60.0
    blocked_report_s: float = 5.0
    idle_report_s: float = 10.0
    pull_dwell_s: float = 180.0
    start_dwell_s: float = 10.0
    log_pause_s: float = 0.5
    attempts_pause_s: float = 2.0
    log_settle_s: float = 2.0
    node_log_pause_s: float = 1.0
    node_log_rest_s: float = 4.0
    last_blocks_s: float = 1.0
    last_deletions_s: float = 10.0
    store_retry_s: float = 60.0
    quick_retry_s: float = 5.0
    sending_retry_s: float = 60.0
    shared_kept_s: float = 3600.0
    delete_after_s: float = 1.0
    largest_outcome_bytes: int = 1024 * _MIB
    fetch_retry_s: float = 600.0
    fetch_again_s: float = 5.0
    window_bytes: int = 256 * _MIB
    window_tasks: int = 256
    most_unfetched: int = 4000
    recover_polls_s: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
    remembered_s: float = 7 * 24 * 3600.0
    progress_s: float = 0.25

    @classmethod
    def fast(cls) -> Timing:
        """Return short intervals, for tests against an emulator on this machine.

        An emulator has no delays, so a temporary failure passes soon or never.
        """
        return cls(
            submit_polls_s=(0.2, 0.5, 1.0, 2.0),
            withdrawn_polls_s=(2.0, 4.0, 8.0, 16.0),
            outcome_pause_s=0.1,
            status_pause_s=0.2,
            lost_after_s=10.0,
            blocked_report_s=0.5,
            pull_dwell_s=2.0,
            start_dwell_s=0.5,
            log_pause_s=0.1,
            attempts_pause_s=0.3,
            log_settle_s=0.2,
            node_log_pause_s=0.1,
            node_log_rest_s=0.4,
            store_retry_s=10.0,
            sending_retry_s=10.0,
            delete_after_s=0.1,
            fetch_retry_s=20.0,
            fetch_again_s=0.2,
            recover_polls_s=(0.0, 0.2, 0.5),
            progress_s=0.1,
        )


_in_force = Timing()


def in_force() -> Timing:
    """Return the timing of sessions that this process opens."""
    return _in_force


def put_in_force(timing: Timing) -> None:
    """Set the timing of sessions that this process opens from now on."""
    global _in_force
    _in_force = timing
