"""Tests of tests/service whose result depends on the container.

Starts containers of the built image, because signals, stacks and output of other processes differ
there.
"""

from tests.service.test_calls import (  # noqa: F401
    test_function_of_own_package_runs,
)
from tests.service.test_failures import (  # noqa: F401
    test_function_exception_is_reraised,
    test_segfault_error_has_stack,
)
from tests.service.test_output import (  # noqa: F401
    test_output_of_all_sources_is_captured,
)
