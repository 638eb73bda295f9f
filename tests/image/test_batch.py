"""Rules of Batch that processes cannot show, with containers.

Starts containers of the base image; the tests are those of tests/local/test_batch_conformance.py.
"""

from __future__ import annotations

from tests.local.test_batch_conformance import (  # noqa: F401
    test_environment_of_a_job,
    test_exit_code_decides,
    test_missing_command_fails_the_start,
    test_reclaimed_host,
    test_terminate_signals_the_main_process_alone,
    test_timeout_of_a_process_that_ignores_sigterm,
)
