"""The service's tests once more, where only a container shows whether they hold."""

from __future__ import annotations

from tests.service.test_calls import (  # noqa: F401
    test_a_coroutine_function_is_awaited_in_the_job,
    test_a_function_of_the_users_package_needs_nothing_in_the_job,
)
from tests.service.test_failures import (  # noqa: F401
    test_a_cancelled_job_says_so_and_keeps_its_output,
    test_a_daemon_that_writes_for_ever_does_not_keep_the_job,
    test_a_package_the_image_lacks_is_named,
    test_a_segfault_is_told_with_its_stack,
    test_every_attempt_of_a_failing_task_runs_and_the_last_error_is_raised,
    test_os_exit_is_told_with_its_code_and_the_output,
    test_the_functions_own_exception_is_raised,
)
from tests.service.test_map import (  # noqa: F401
    test_calls_in_one_task_have_their_own_values_and_errors,
    test_values_come_in_the_order_of_the_arguments,
)
from tests.service.test_output import (  # noqa: F401
    test_a_closed_stdout_harms_nothing,
    test_a_million_lines_arrive_in_order,
    test_lines_are_seen_while_the_task_runs,
    test_output_of_python_c_code_and_subprocesses_is_caught,
)
