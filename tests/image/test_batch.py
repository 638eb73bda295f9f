"""Batch's documented rules once more, with containers in the place of processes."""

from __future__ import annotations

from tests.local.test_batch_conformance import (  # noqa: F401
    test_array_job,
    test_attempts_are_counted_from_one,
    test_bulk_terminate,
    test_command_and_resources_are_overridden,
    test_environment_of_a_job,
    test_environment_of_nodes,
    test_exit_code_decides,
    test_jobs_wait_for_processors_in_their_order,
    test_killed_process,
    test_list_jobs_of_a_multi_node_job,
    test_log_stream_and_attempts_of_a_running_job,
    test_missing_command_fails_the_start,
    test_missing_log_group_fails_the_start,
    test_nodes_reach_the_main_node,
    test_output_of_every_kind,
    test_reclaimed_host,
    test_role_that_cannot_be_assumed,
    test_terminate_a_multi_node_job,
    test_terminate_a_running_job,
    test_terminate_a_starting_job,
    test_terminate_one_child,
    test_terminate_signals_the_main_process_alone,
    test_timeout,
    test_timeout_of_a_multi_node_job,
    test_timeout_of_a_process_that_ignores_sigterm,
)
