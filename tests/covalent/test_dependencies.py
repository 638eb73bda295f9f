"""What Covalent's electrons may bring along, in an image without Covalent."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import cloudpickle
import covalent as ct
import pytest

import farcall_runtime
from farcall.cli.demos.covalent_server import CovalentServer
from tests.support.wheels import Index

ENTRY_POINTS = "[console_scripts]\ntravelled-tool = travelled:main\n"
TRAVELLED = {"travelled.py": "VERSION = '1.0'\ndef main():\n    print('ran', VERSION)\n"}


@pytest.fixture
def batch(embedded, monkeypatch):
    """Make an executor for small jobs: ``batch(environment=None, **options)``."""
    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}

    def make(environment=None, **options):
        variables = [{"name": n, "value": v} for n, v in (environment or {}).items()]
        extra = {"containerProperties": {"environment": variables}} if variables else {}
        return ct.executor.AWSBatchExecutor(**{**small, "job_definition_extra": extra, **options})

    return make


@pytest.fixture
def image(tmp_path):
    """Variables of a job whose image lacks packages: ``image("covalent", "uv")``."""

    def lack(*packages):
        folder = tmp_path / "image"
        folder.mkdir()
        hidden = "".join(f"sys.modules[{name!r}] = None\n" for name in packages)
        (folder / "sitecustomize.py").write_text(f"import sys\n{hidden}")
        runtime = Path(farcall_runtime.__file__).parents[1]
        variables = {"PYTHONPATH": f"{folder}{os.pathsep}{runtime}"}
        return {**variables, "PATH": "/usr/bin:/bin"} if "uv" in packages else variables

    return lack


def make_wheel(folder, name, version="1.0"):
    """Write a wheel with one module, whose ``VERSION`` is its version; return its path."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def only(function):
    """Return a lattice of one electron."""

    @ct.lattice
    def flow(*args):
        return function(*args)

    return flow


# --- an image with nothing of farcall's ----------------------------------------------------------


def test_an_electron_runs_in_the_stock_image_as_covalent_s_documentation_has_it(
    run, node, batch, tmp_path
):
    """With the name of a definition that is not there: Covalent's own plugin registers it."""
    wheel = make_wheel(tmp_path, "stockly")
    executor = batch(
        container_image_uri="", batch_job_definition_name="covalent-batch-qa-job-definition"
    )

    @ct.electron(executor=executor, deps_pip=ct.DepsPip([str(wheel)]))
    def work(x):
        import stockly

        print("in the stock image")
        lacking = [importlib.util.find_spec(name) is None for name in ("covalent", "pydantic")]
        return x + 1, stockly.VERSION, lacking

    @ct.electron(executor=executor)
    def fail():
        raise LookupError("on purpose")

    done = node(run(only(work), 1), 0)
    assert (2, "1.0", [True, True]) == done.output, done.error
    assert "in the stock image\n" == done.stdout
    failed = node(run(only(fail)), 0)
    assert "FAILED" == failed.status
    assert "LookupError: on purpose" in failed.error


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    with contextlib.closing(Index(tmp_path_factory.mktemp("index") / "index")) as running:
        running.add("needed", "1.0")
        running.add("needed", "2.0")
        running.add("travelled", requires=["needed"], entry_points=ENTRY_POINTS, files=TRAVELLED)
        running.add("farcall-windows-only", tag="py3-none-win_amd64")
        yield running


@pytest.fixture(scope="module")
def configured(embedded, index, tmp_path_factory):
    """A server that has the index, whose jobs have not, and packages in its configuration."""
    home = tmp_path_factory.mktemp("configured")
    cache = {"XDG_CACHE_HOME": str(home / "cache")}
    server = CovalentServer(
        home / "server", {**embedded.environment, **index.environment, **cache}
    )
    conf = Path(server.environment["COVALENT_CONFIG_DIR"], "covalent.conf")
    conf.parent.mkdir(parents=True)
    conf.write_text('[executors.awsbatch]\npackages = ["needed<2"]\ncontainer_image_uri = ""\n')
    with server:
        yield server


@pytest.fixture
def stock(batch):
    """Make an executor for the stock image, with packages that all electrons have."""
    return lambda **more: batch(**{"container_image_uri": "", "packages": ["needed<2"], **more})


def where(*names):
    """Return of each module its version, and whether it came with the task."""
    found = [importlib.import_module(name) for name in names]
    return [(one.VERSION, "farcall-environment-" in one.__file__) for one in found]


def test_packages_of_an_electron_travel_with_it_and_are_resolved_once(
    dispatch, wait, node, stock, configured, index
):
    """No container asks an index, and what the options bring along stays in its version."""

    @ct.electron(executor=stock(), deps_pip=ct.DepsPip(["travelled>=1", "needed"]))
    def work():
        subprocess.run(["travelled-tool"], check=True)
        return where("travelled", "needed")

    @ct.lattice
    def flow():
        return [work(), work()]

    first = wait(dispatch(flow, server=configured), server=configured)
    asked = list(index.asked)
    second = wait(dispatch(flow, server=configured), server=configured)

    results = first, second
    done = [node(result, number) for result in results for number in (0, 1)]
    expected = [[("1.0", True), ("1.0", True)]] * 4
    assert expected == [each.output for each in done], done[0].error
    assert ["ran 1.0\n"] * 4 == [each.stdout for each in done]
    assert asked == index.asked
    assert asked.count("/travelled/") == 2, asked  # to resolve it, and to fetch it


def test_packages_of_covalent_s_configuration_travel(dispatch, wait, node, configured):
    @ct.electron(executor="awsbatch")
    def work():
        return where("needed")

    done = node(wait(dispatch(only(work), server=configured), server=configured), 0)
    assert [("1.0", True)] == done.output, done.error


@pytest.mark.parametrize("wanted", ["farcall-windows-only", "cloudpickle>=99"])
def test_what_cannot_travel_is_left_to_the_job(dispatch, wait, node, stock, configured, wanted):
    """It fails there as it did before, and is named."""

    @ct.electron(executor=stock(), deps_pip=ct.DepsPip([wanted]))
    def work():
        print("working")

    failed = node(wait(dispatch(only(work), server=configured), server=configured), 0)
    assert ("FAILED", "") == (failed.status, failed.stdout)
    assert f"{wanted} could not be installed" in failed.error


@pytest.mark.slow  # has scikit-learn installed in the job
def test_covalent_s_experiment_runs_in_the_stock_image(run, batch):
    executor = batch(container_image_uri="", vcpu=2, memory=3.75, time_limit=300)

    @ct.electron(executor=executor, deps_pip=ct.DepsPip(packages=["scikit-learn"]))
    def train_svm(data, C, gamma):  # noqa: N803  # its own names
        from sklearn import svm

        X, y = data  # noqa: N806
        clf = svm.SVC(C=C, gamma=gamma)
        clf.fit(X[90:], y[90:])
        return clf

    @ct.electron
    def load_data():
        from numpy.random import permutation
        from sklearn import datasets

        iris = datasets.load_iris()
        perm = permutation(iris.target.size)
        return iris.data[perm], iris.target[perm]

    @ct.electron
    def score_svm(data, clf):
        X_test, y_test = data  # noqa: N806
        return clf.score(X_test[:90], y_test[:90])

    @ct.lattice
    def run_experiment(C=1.0, gamma=0.7):  # noqa: N803
        data = load_data()
        clf = train_svm(data=data, C=C, gamma=gamma)
        return score_svm(data=data, clf=clf)

    assert 0.5 < run(run_experiment).result <= 1


# --- no Covalent ---------------------------------------------------------------------------------


def test_an_image_without_covalent_runs_electrons_with_all_they_bring(run, batch, image):
    executor = batch(image("covalent"))

    def note(text):
        print(text)
        return text

    @ct.electron(
        executor=executor,
        deps_bash="echo shell",
        call_before=ct.DepsCall(note, args=["before"], retval_keyword="noted"),
        call_after=ct.DepsCall(note, kwargs={"text": "after"}),
    )
    def work(values, named, noted=None):
        loaded = sorted(name for name in sys.modules if name.startswith("covalent"))
        return sum(values) + named["x"], noted, loaded

    result = run(only(work), [1, 2], {"x": 3})
    assert (6, "before", ["covalent"]) == result.result  # there by its name, and None
    assert "before\nafter\n" == result.get_node_result(0)["stdout"]


def test_an_ordinary_electron_imports_nothing_of_covalent(run, batch):
    @ct.electron(executor=batch(), deps_bash="true", call_before=ct.DepsCall(str))
    def work(values, named):
        return [name for name in sys.modules if name.partition(".")[0].startswith("covalent")]

    assert [] == run(only(work), [1], {"a": 1}).result


@pytest.mark.parametrize("module", ["covalent", "covalent._workflow.electron"])
def test_an_electron_that_needs_covalent_is_told_the_build_argument(
    run, node, batch, image, module
):
    @ct.electron(executor=batch(image("covalent")))
    def work(module):
        print("importing")
        importlib.import_module(module)

    failed = node(run(only(work), module), 0)
    assert "FAILED" == failed.status
    assert 'PIP_PACKAGES="covalent==' in failed.error
    assert "importlib.import_module(module)" in failed.error
    assert "importing\n" == failed.stdout


def test_a_function_that_holds_something_of_covalents_is_told_the_build_argument(
    run, node, batch, image
):
    executor = batch(image("covalent"))

    @ct.electron(executor=executor)
    def work():
        return ct.DepsCall

    failed = node(run(only(work)), 0)
    assert "FAILED" == failed.status
    assert 'PIP_PACKAGES="covalent==' in failed.error


def test_file_transfers_need_covalent_and_say_so(run, node, batch, image, tmp_path):
    source = tmp_path / "source"
    source.write_text("content")
    transfer = ct.fs.FileTransfer(str(source), str(tmp_path / "target"))

    @ct.electron(executor=batch(image("covalent")), files=[transfer])
    def work(files=None):
        return files

    failed = node(run(only(work)), 0)
    assert "FAILED" == failed.status
    assert 'PIP_PACKAGES="covalent==' in failed.error


def test_file_transfers_work_where_covalent_is(run, batch, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("content")

    @ct.electron(executor=batch(), files=[ct.fs.FileTransfer(str(source), str(target))])
    def work(files=None):
        return files, target.read_text()

    assert ([(str(source), str(target))], "content") == run(only(work)).result


# --- order and values ----------------------------------------------------------------------------


def test_dependencies_come_in_covalents_order(run, node, batch, tmp_path):
    ready, wheel = tmp_path / "ready.whl", make_wheel(tmp_path, "orderly")
    log = tmp_path / "log"
    wheel.rename(ready)

    def note(text):
        import orderly

        with log.open("a") as file:
            file.write(f"{text} {orderly.VERSION}\n")

    @ct.electron(
        executor=batch(),
        call_after=[ct.DepsCall(note, args=["after"]), ct.DepsCall(note, args=["last"])],
        call_before=[ct.DepsCall(note, args=["first"]), ct.DepsCall(note, args=["before"])],
        deps_pip=ct.DepsPip([str(wheel)]),
        deps_bash=[f"echo shell > {log}", f"mv {ready} {wheel}"],
    )
    def work():
        note("function")
        return 1

    assert 1 == run(only(work)).result
    assert "shell\nfirst 1.0\nbefore 1.0\nfunction 1.0\nafter 1.0\nlast 1.0\n" == log.read_text()


def test_values_of_calls_are_injected(run, batch):
    @ct.electron(
        executor=batch(),
        call_before=[
            ct.DepsCall(lambda: 1, retval_keyword="single"),
            ct.DepsCall(lambda value: value, args=[2], retval_keyword="several"),
            ct.DepsCall(lambda: "nowhere"),
            ct.DepsCall(lambda value: value, kwargs={"value": 3}, retval_keyword="several"),
            ct.DepsCall(lambda: 4, retval_keyword="files", override_reserved_retval_keys=True),
            ct.DepsCall(lambda: None, retval_keyword="nothing"),
        ],
        call_after=ct.DepsCall(lambda: "nowhere", retval_keyword="late"),
    )
    def work(one, single=0, several=0, files=0, nothing=0, late=0):
        return one, single, several, files, nothing, late

    assert ("one", 1, [2, 3], [4], None, 0) == run(only(work), "one").result


def test_a_call_before_that_fails_names_itself_and_the_function_is_not_run(run, node, batch):
    def prepare():
        print("preparing")
        raise LookupError("nothing there")

    @ct.electron(executor=batch(), call_before=ct.DepsCall(prepare))
    def work():
        print("working")

    failed = node(run(only(work)), 0)
    assert ("FAILED", "preparing\n") == (failed.status, failed.stdout)
    assert "in prepare" in failed.error
    assert "LookupError: nothing there" in failed.error


def test_a_call_after_that_fails_fails_the_electron(run, node, batch):
    def clean():
        raise LookupError("nothing there")

    @ct.electron(executor=batch(), call_after=ct.DepsCall(clean))
    def work():
        print("working")

    failed = node(run(only(work)), 0)
    assert ("FAILED", "working\n", None) == (failed.status, failed.stdout, failed.output)
    assert "LookupError: nothing there" in failed.error


def test_a_module_of_the_users_travels(run, batch, tmp_path, monkeypatch):
    (tmp_path / "labkit.py").write_text("def double(value):\n    return 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    import labkit

    @ct.electron(executor=batch(), deps_module=labkit)
    def work(value):
        return labkit.double(value)

    try:
        assert 6 == run(only(work), 3).result
    finally:
        del sys.modules["labkit"]


# --- bash ----------------------------------------------------------------------------------------


def test_output_of_shell_commands_goes_to_stderr(run, node, batch):
    @ct.electron(
        executor=batch(), deps_bash=["echo to stdout", "echo to stderr >&2", "export A=1; cd /"]
    )
    def work():
        print("working")
        return os.environ.get("A"), Path.cwd() == Path("/")

    done = node(run(only(work)), 0)
    assert ("working\n", "to stdout\nto stderr\n") == (done.stdout, done.stderr)
    assert (None, False) == done.output


def test_a_shell_command_that_fails_is_named(run, node, batch):
    @ct.electron(executor=batch(), deps_bash=["echo one", "echo two >&2; exit 7", "echo three"])
    def work():
        print("working")

    failed = node(run(only(work)), 0)
    assert ("FAILED", "", "one\ntwo\n") == (failed.status, failed.stdout, failed.stderr)
    assert "echo two >&2; exit 7" in failed.error
    assert "7" in failed.error


# --- pip -----------------------------------------------------------------------------------------


def test_packages_are_installed_by_uv_where_it_is(run, node, batch, tmp_path):
    first, second = make_wheel(tmp_path, "firstly"), make_wheel(tmp_path, "secondly", "2.0")

    @ct.electron(executor=batch(), deps_pip=ct.DepsPip([str(first), str(second)]))
    def work():
        import firstly

        code = "import firstly, secondly; print(secondly.VERSION)"
        subprocess.run([sys.executable, "-c", code], check=True)
        return firstly.VERSION, importlib.metadata.version("secondly"), firstly.__file__

    done = node(run(only(work)), 0)
    assert ("1.0", "2.0") == done.output[:2], done.error
    assert "2.0\n" == done.stdout
    assert "secondly==2.0" in done.stderr  # uv's words
    assert not Path(done.output[2]).exists()  # it went with the job


def test_packages_are_installed_by_pip_where_there_is_no_uv(run, node, batch, image, tmp_path):
    wheel = make_wheel(tmp_path, "slowly")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"# mine\n{wheel}\ncloudpickle\n")

    @ct.electron(
        executor=batch(image("uv", "covalent")), deps_pip=ct.DepsPip(reqs_path=str(requirements))
    )
    def work():
        import slowly

        return slowly.VERSION

    done = node(run(only(work)), 0)
    assert "1.0" == done.output, done.error
    assert "Successfully installed slowly-1.0" in done.stderr
    assert "Requirement already satisfied: cloudpickle" in done.stderr


def test_a_requirements_file_is_installed(run, batch, tmp_path):
    wheel = make_wheel(tmp_path, "requiredly")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"# mine\n{wheel}\n")

    @ct.electron(executor=batch(), deps_pip=ct.DepsPip(reqs_path=str(requirements)))
    def work():
        import requiredly

        return requiredly.VERSION

    requirements.unlink()  # its content has been read, and the job has no such file
    assert "1.0" == run(only(work)).result


def test_packages_that_are_there_are_left_as_they_are(run, batch):
    @ct.electron(executor=batch(), deps_pip=["cloudpickle", "pip; python_version < '3'"])
    def work():
        import cloudpickle

        return cloudpickle.__file__, [path for path in sys.path if "farcall-packages" in path]

    assert (cloudpickle.__file__, []) == run(only(work)).result


def test_a_package_is_newer_than_the_images(run, batch, tmp_path):
    wheel = make_wheel(tmp_path, "cloudpickle", "99.0")

    @ct.electron(executor=batch(), deps_pip=[str(wheel)])
    def work():
        return importlib.metadata.version("cloudpickle")

    assert "99.0" == run(only(work)).result


def test_packages_that_cannot_be_installed_are_named(run, node, batch, tmp_path):
    missing = f"{tmp_path}/missingly-1.0-py3-none-any.whl"

    @ct.electron(executor=batch(), deps_pip=[missing])
    def work():
        print("working")

    failed = node(run(only(work)), 0)
    assert ("FAILED", "") == (failed.status, failed.stdout)
    assert f"{missing} could not be installed" in failed.error
    assert "exit code" in failed.error
    assert "missingly" in failed.stderr
