"""The wheel next to TorchX's own schedulers and other plugins in one namespace package.

Builds and installs the wheel. Slow, because the build and the installation use separate
environments.
"""

import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.support.own_wheel import ENVIRONMENT, ROOT, build_own

pytestmark = pytest.mark.slow

PLUGINS = [f"torchx_plugins/schedulers/{name}.py" for name in ("aws_batch", "kubernetes_job")]

OTHERS = """\
from torchx.plugins import register

@register.scheduler(name="other")
def other(session_name, **params):
    raise AssertionError
"""

FOUND = """\
from torchx.plugins import registry
from torchx.schedulers import get_scheduler_factories
factories = get_scheduler_factories()
print(*factories, type(factories["aws_batch"]("me")).__name__)
assert not registry().load_errors(), registry().load_errors()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist, built with hatchling in a separate environment."""
    return build_own(tmp_path_factory.mktemp("built"))


def test_wheel_and_sdist_have_plugin_modules(built):
    """They have no ``__init__.py``, because torchx_plugins is a namespace package."""
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as opened:
        held = [name for name in opened.namelist() if name.startswith("torchx")]
    assert sorted(held) == PLUGINS
    with tarfile.open(sdist) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    found = sorted(n for n in names if "/torchx_plugins/" in n and n.endswith(".py"))
    assert found == [f"executor/{plugin}" for plugin in PLUGINS]


def test_wheel_and_sdist_have_the_dockerfile(built):
    """In the repository, the package has a symbolic link to the Dockerfile."""
    wheel, sdist = built
    own = (ROOT / "Dockerfile").read_bytes()
    with zipfile.ZipFile(wheel) as opened:
        assert opened.read("farcall/deploy/Dockerfile") == own
    with tarfile.open(sdist) as opened:
        top = opened.getnames()[0].partition("/")[0]
        for name in ("Dockerfile", "executor/farcall/deploy/Dockerfile"):
            assert opened.extractfile(f"{top}/{name}").read() == own


@pytest.mark.path
def test_installed_plugins_are_found_with_others(built, tmp_path):
    wheel, _ = built
    other = tmp_path / "torchx_plugins" / "schedulers"
    other.mkdir(parents=True)
    (other / "other.py").write_text(OTHERS)
    uv, environment = (sys.executable, "-m", "uv"), tmp_path / "environment"
    python, pins = str(environment / "bin" / "python"), str(ROOT / "constraints.txt")
    wanted = ("--constraint", pins, f"{wheel}[torchx]")
    for command in (
        ("venv", "--python", sys.executable, str(environment)),
        ("pip", "install", "--python", python, *wanted),
    ):
        made = subprocess.run(
            [*uv, *command], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [python, "-c", FOUND],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert {"aws_batch", "other", "local_docker", "local_cwd", "slurm", "kubernetes"} < {*found}
    assert found[-1] == "BatchScheduler"
