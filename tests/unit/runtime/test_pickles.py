"""The pickler, with the installed cloudpickle and other supported releases."""

import pytest

from tests.support.own_wheel import ENVIRONMENT, ROOT, RUN
from tests.support.program import stdout_of

COMPARE = """
import pickle
from farcall_runtime import pickles

def outer():
    def inner():
        raise LookupError
    return inner

copy = pickle.loads(pickles.dump_whole(outer))
for code, other in ((copy.__code__, outer.__code__), (copy().__code__, outer().__code__)):
    assert code.co_filename == other.co_filename == "/home/me/work.py", code.co_filename
    assert list(code.co_lines()) == list(other.co_lines())
"""


def test_code_keeps_its_file_and_lines():
    exec(compile(COMPARE, "/home/me/work.py", "exec"), {"__name__": "__main__"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "release", ["cloudpickle==3.1.0", "cloudpickle==3.1.2", "cloudpickle>=3.1.3"]
)
def test_each_release_keeps_file_names(release):
    """Slow because it installs cloudpickle; 3.1.3 stopped keeping file names itself."""
    program = f"exec(compile({COMPARE!r}, '/home/me/work.py', 'exec'))"
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT / "runtime_image")}
    stdout_of(*RUN, "--with", release, "python", "-c", program, env=environment)
