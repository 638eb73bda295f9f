"""Tests of tests/service whose result depends on the container.

Starts containers of the built image, because signals, stacks and output of other processes differ
there.
"""

from __future__ import annotations

from tests.service.test_calls import (  # noqa: F401
    test_a_function_of_the_users_package_needs_nothing_in_the_job,
)
from tests.service.test_failures import (  # noqa: F401
    test_a_cancelled_job_says_so_and_keeps_its_output,
    test_a_segfault_is_told_with_its_stack,
    test_the_functions_own_exception_is_raised,
)
from tests.service.test_map import (  # noqa: F401
    test_calls_in_one_task_have_their_own_values_and_errors,
)
from tests.service.test_output import (  # noqa: F401
    test_output_of_python_c_code_and_subprocesses_is_caught,
)
