"""Imports: few in the container; an error names the missing extra."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import cloudpickle
import obstore
import pytest

import farcall_runtime

ALLOWED = {"cloudpickle", "farcall_runtime", "obstore"}
EVERYTHING = """
    import importlib, pkgutil
    import farcall_runtime
    for module in pkgutil.walk_packages(farcall_runtime.__path__, "farcall_runtime."):
        importlib.import_module(module.name)

    from farcall_runtime import pickles
    from farcall_runtime.storage import Storage, StorageError
    pickles.load([b"".join(pickles.dump(lambda: 1)[0])])
    nowhere = {
        "FARCALL_BUCKET_URL": "http://127.0.0.1:9/bucket",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    storage = Storage("bucket", nowhere, retry_s=0)
    for use in (
        lambda: storage.read("k", 0, 1),
            lambda: storage.create("k", [b"x"]),
        lambda: storage.put("k", [b"x"]),
    ):
        try:
            use()
        except StorageError:
            pass
"""
WITHOUT_DOCSTRINGS = """
    import importlib, pkgutil
    import farcall, farcall_runtime
    programs = ("__main__", "bootstrap_program")
    for package in (farcall, farcall_runtime):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2] in programs:
                continue
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if "pip install" not in str(error):  # an extra that is not installed
                    raise
"""
BEFORE_THE_FORK = """
    import farcall_runtime.__main__
"""


def loaded_by(code):
    """Run code without `site`, so that no installed hook imports modules."""
    paths = [str(Path(m.__file__).parents[1]) for m in (farcall_runtime, cloudpickle, obstore)]
    script = f"import sys; sys.path[:0] = {paths!r}\n{textwrap.dedent(code)}\n"
    script += "import json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def everything():
    return loaded_by(EVERYTHING)


def test_runtime_imports_only_allowed_packages(everything):
    tops = {name.partition(".")[0] for name in everything}
    # Python 3.15 does not list the second one.
    own = {*sys.stdlib_module_names, "__main__", "_missing_stdlib_info"}
    assert tops - own == ALLOWED


def test_all_runtime_modules_are_imported(everything):
    files = Path(farcall_runtime.__file__).parent.glob("*.py")
    modules = {f"farcall_runtime.{path.stem}" for path in files if path.stem != "__init__"}
    assert modules - everything == set()


def test_runtime_never_imports_client(everything):
    assert {name for name in everything if name.partition(".")[0] == "farcall"} == set()


def test_no_heavy_imports_before_fork():
    """Such modules start threads or take long to import."""
    heavy = {"obstore", "cloudpickle", "asyncio", "concurrent", "ssl", "urllib3", "numpy"}
    assert {name.partition(".")[0] for name in loaded_by(BEFORE_THE_FORK)} & heavy == set()


def test_modules_import_without_docstrings():
    script = textwrap.dedent(WITHOUT_DOCSTRINGS)
    subprocess.run([sys.executable, "-OO", "-c", script], check=True)


@pytest.mark.parametrize(
    ("module", "lacks", "extra"),
    [
        ("farcall.awsbatch", "covalent", "covalent"),
        ("farcall.joblib", "joblib", "joblib"),
        ("farcall_local.launch", "moto", "local"),
        ("farcall.torchx", "torchx", "torchx"),
        ("farcall.ui", "uvicorn", "ui"),
    ],
)
def test_missing_extra_names_install_command(module, lacks, extra):
    script = f"import sys; sys.modules[{lacks!r}] = None; import {module} as found\n"
    script += "found.require_extra()\n" if extra == "local" else ""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: The ")
    assert f" {lacks}" in said
    assert f"pip install '.[{extra}]'" in said
