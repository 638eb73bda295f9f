"""Timing: how long the client waits and tries, and how much it takes at once, in one value.

Whoever opens a session hands it down, and each object keeps its own. What AWS's API sets, such as
the keys in a page, is no part of it; nor is what options say, such as ``linger_s``.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Waits and limits of one session; `dataclasses.replace` makes another value of it.

    Seconds unless the name says something else. What is tried again is so from its first failure
    on, and fails for good when the time is over.

    Attributes:
        connect_timeout_s: For a connection to be made.
        read_timeout_s: For an answer to begin, or to go on.
        request_timeout_s: For a request that sends much, as a whole.
        attempts: How often IAM, CloudWatch Logs and STS are asked at most.
        call_retry_s: A call of Batch is tried again that says nothing else.
        register_retry_s: Likewise, the registration of a job definition.
        defined_retry_s: A job is submitted again whose definition Batch does not know yet.
        terminate_retry_s: Jobs are ended again that Batch failed to end.
        throttled_for_s: Calls are answered with nothing but that they come too fast. Their pace is
            down to one in two seconds after the first minute of that, so it is not theirs that is
            too fast.
        most_stopped: Jobs and arrays that were ended of which is remembered why.
        submit_retry_s: A job is submitted again.
        submit_looks_s: Waits before each look for a job whose submission was not answered, half a
            minute in sum. AWS names no bound for how far lists lag behind; some seconds have been
            seen.
        withdrawn_looks_s: Waits before each look for a withdrawn job that has turned up, a quarter
            of an hour in sum.
        listed_within_s: A job is looked for that has left something in the bucket, or a command
            job whose submission was not answered, and lists are asked again: whoever gave up
            sooner would leave one that nobody knows of.
        outcome_pause_s: Between two looks for outcomes, for each page that the first of them took.
        status_pause_s: Between two questions to Batch about a job.
        near_s: An endpoint that answers sooner is on this machine, or beside it, and is asked more
            often at first: S3 takes 10 to 30 ms, Batch more.
        give_up_s: The looking for jobs may fail, before those who wait are told. A person has this
            time to renew credentials.
        lost_after_s: Batch may not know a job, or a child that has ended, before it is lost.
        blocked_told_s: A cluster may be unable to place or to start a pod, before that is told:
            most often it gets room a moment later.
        idle_told_s: Without a start or another change for so long, one warning reports that jobs
            are waiting.
        pull_dwell_s: Likewise, what may heal may keep a pod from starting, before its job is
            ended: kubelets try again after 10, 20, 40 and 80 s, and pods have been given up that
            ran after one of these. https://github.com/PrefectHQ/prefect-kubernetes/issues/127
        start_dwell_s: Likewise, what does not heal by itself: the caches of a kubelet may be some
            seconds behind.
        log_pause_s: Between two looks for what a job has written.
        attempts_pause_s: Between two questions to Batch about the job that is read.
        most_lines: Lines of a job of which is remembered that they were given, each in 8 bytes.
        log_settle_s: CloudWatch shows what it took so much later.
        node_log_pause_s: Between two looks for what nodes have written, while they write.
        node_log_rest_s: Likewise, while they write nothing; it is come to step by step.
        node_log_overlap_s: What was written so long before the newest line is looked at again each
            time: docker sends lines to CloudWatch every 5 s, and CloudWatch takes some seconds to
            show them, so those of one node come that much later than those of another.
            https://github.com/moby/moby/blob/master/daemon/logger/awslogs/cloudwatchlogs.go
        node_log_late_s: Likewise, where one is later still, because its machine had to send its
            lines again: that is looked at each time `node_log_overlap_s` have gone by.
        last_blocks_s: The end of the event loop waits for blocks to be left, which some never are.
        last_deletions_s: The end of a session waits for what it deletes.
        most_undelivered: Bundles that are deleted after their last task is delivered. Of jobs that
            nobody ever asks for a result there may be more; the oldest are left to the bucket's
            lifecycle rule.
        store_retry_s: A request to the bucket is tried again.
        quick_retry_s: obstore itself tries it again; after that it is told, and is tried again as
            `store_retry_s` says.
        sending_retry_s: obstore itself tries one again that sends much.
        shared_mark_s: A run's marker of a shared value is trusted, before it is stored again and
            the value looked for; see `farcall.storage.shared`. It is renewed twice as often.
        shared_kept_s: A shared value that nothing refers to any more stays for the next map.
        delete_after_s: Objects that nobody needs any more wait for others, to be deleted together.
        largest_outcome_bytes: An outcome is not taken that is larger. It has values of up to
            64 MiB in it, and what is said of each call; others may have put anything there.
        fetch_retry_s: One outcome of a map may fail to be had in ways that pass.
        fetch_again_s: Between two tries of that.
        window_bytes: What of a map is fetched ahead of its caller.
        window_tasks: Likewise, how many tasks, however small their values are.
        most_unfetched: Outcomes of a map that are known of and wait in the bucket; while there
            are so many, no others are looked for.
        recover_looks_s: Waits before each look for the jobs of a run: Batch's lists lag behind.
        remembered_s: Batch knows a job after its end for at least so long:
            https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
        progress_s: Between two pictures of a bar.
    """

    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    attempts: int = 4
    call_retry_s: float = 10.0
    register_retry_s: float = 20.0
    defined_retry_s: float = 60.0
    terminate_retry_s: float = 20.0
    throttled_for_s: float = 3600.0
    most_stopped: int = 20_000
    submit_retry_s: float = 60.0
    submit_looks_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    withdrawn_looks_s: tuple[float, ...] = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0)
    listed_within_s: float = 300.0
    outcome_pause_s: float = 0.25
    status_pause_s: float = 1.0
    near_s: float = 0.008
    give_up_s: float = 600.0
    lost_after_s: float = 60.0
    blocked_told_s: float = 5.0
    idle_told_s: float = 10.0
    pull_dwell_s: float = 180.0
    start_dwell_s: float = 10.0
    log_pause_s: float = 0.5
    attempts_pause_s: float = 2.0
    most_lines: int = 1_000_000
    log_settle_s: float = 2.0
    node_log_pause_s: float = 1.0
    node_log_rest_s: float = 4.0
    node_log_overlap_s: float = 10.0
    node_log_late_s: float = 60.0
    last_blocks_s: float = 1.0
    last_deletions_s: float = 10.0
    most_undelivered: int = 20_000
    store_retry_s: float = 60.0
    quick_retry_s: float = 5.0
    sending_retry_s: float = 60.0
    shared_mark_s: float = 3600.0
    shared_kept_s: float = 3600.0
    delete_after_s: float = 1.0
    largest_outcome_bytes: int = 1024 * _MIB
    fetch_retry_s: float = 600.0
    fetch_again_s: float = 5.0
    window_bytes: int = 256 * _MIB
    window_tasks: int = 256
    most_unfetched: int = 4000
    recover_looks_s: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
    remembered_s: float = 7 * 24 * 3600.0
    progress_s: float = 0.25

    @classmethod
    def fast(cls) -> Timing:
        """Return one for tests against an AWS on this machine, such as the embedded one.

        Nothing there lags behind, so what would pass by itself has passed soon, or does not.
        """
        return cls(
            submit_looks_s=(0.2, 0.5, 1.0, 2.0),
            withdrawn_looks_s=(2.0, 4.0, 8.0, 16.0),
            outcome_pause_s=0.1,
            status_pause_s=0.2,
            lost_after_s=10.0,
            blocked_told_s=0.5,
            pull_dwell_s=2.0,
            start_dwell_s=0.5,
            log_pause_s=0.1,
            attempts_pause_s=0.3,
            log_settle_s=0.2,
            node_log_pause_s=0.1,
            node_log_rest_s=0.4,
            node_log_overlap_s=1.0,
            node_log_late_s=6.0,
            store_retry_s=10.0,
            sending_retry_s=10.0,
            delete_after_s=0.1,
            fetch_retry_s=20.0,
            fetch_again_s=0.2,
            recover_looks_s=(0.0, 0.2, 0.5),
            progress_s=0.1,
        )


_in_force = Timing()


def in_force() -> Timing:
    """Return what sessions are opened with that this process opens."""
    return _in_force


def put_in_force(timing: Timing) -> None:
    """Have sessions opened with another one from now on."""
    global _in_force
    _in_force = timing
