"""Rules of Batch that processes cannot show, with containers.

Starts containers of the base image; the tests are those of tests/local/test_batch_conformance.py.
"""

from tests.local.test_batch_conformance import (  # noqa: F401
    test_exit_code_decides_job_status,
    test_job_has_batch_environment,
    test_missing_command_fails_the_start,
    test_reclaimed_host_is_retried,
    test_terminate_signals_only_main_process,
    test_timeout_kills_process_ignoring_sigterm,
)
