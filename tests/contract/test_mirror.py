"""The tests of a module are found by its name: of engine/watch.py in unit/engine/test_watch.py."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLIENT = TESTS.parent / "executor" / "farcall"
RUNTIME = TESTS.parent / "runtime_image" / "farcall_runtime"

DOORS = ("cli", "covalent", "joblib", "torchx", "ui")
"""Rooms whose modules may also be tested where users meet them: tests/cli/test_run.py."""

ELSEWHERE = {
    "local/*": "local/test_batch_conformance.py",  # as one service, which a real AWS passes, too
    "awsbatch": "covalent/test_options.py",  # names, which Covalent finds
    "covalent/plugin/*": "covalent/test_server.py",  # needs Covalent, and its server
    "cli/demos/*": "cli/test_demos.py",
    "cli/covalent": "covalent/test_restart.py",
    "cli/destroy": "cli/test_deploy.py",
    "cli/docker": "cli/test_image.py",
    "cli/node_output": "cli/test_logs.py",
    "cli/options_file": "cli/test_configure.py",
    "cli/sheets": "cli/test_list.py",
    "cli/stacks": "cli/test_deploy.py",
    "cli/ui": "ui/test_demo.py",
    "deploy/*": "cli/test_deploy.py",  # with the stack that it makes, on an account without any
    "ui/*": "ui/server/test_requests.py",  # one server, asked as a browser asks
    "aws/findings": "cli/test_doctor.py",
    "aws/access": "unit/engine/test_session.py",  # a protocol: who uses it tests it
    "storage/doctor": "cli/test_doctor.py",
    "operations/doctor/account": "cli/test_doctor.py",
    "backends/base": "contract/backends/test_backend.py",
    "backends/groups": "unit/backends/batch/test_nodes.py",
    "backends/fake/backend": "contract/backends/test_backend.py",
    "backends/fake/bucket": "unit/storage/test_store.py",  # with a store in memory
    "backends/fake/script": "unit/backends/fake/test_platform.py",
    "backends/kubernetes/backend": "contract/backends/test_backend.py",
    "backends/kubernetes/lookup": "contract/backends/test_backend.py",
    "backends/kubernetes/listing": "contract/backends/test_backend.py",
    "backends/kubernetes/ending": "contract/backends/test_backend.py",
    "backends/kubernetes/preflight": "contract/backends/test_backend.py",
    "backends/kubernetes/credentials": "unit/backends/kubernetes/test_client.py",
    "backends/kubernetes/refusals": "unit/backends/kubernetes/test_client.py",
    "backends/batch/backend": "unit/engine/test_submitter.py",
    "backends/bootstrap_program": "service/test_bootstrap.py",  # run as a container runs it
    "backends/batch/doctor": "cli/test_doctor.py",
    "backends/batch/preflight": "service/test_preflight.py",
    "backends/batch/listing": "service/test_catalog.py",
    "backends/own_endings": "unit/backends/batch/test_endings.py",
    "backends/kubernetes/blocked": "unit/backends/kubernetes/test_endings.py",
    "backends/kubernetes/doctor": "service/test_kubernetes_doctor.py",
    "backends/kubernetes/exits": "unit/backends/kubernetes/test_endings.py",
    "backends/kubernetes/texts": "unit/backends/kubernetes/test_endings.py",
    "backends/kubernetes/waiting": "unit/backends/kubernetes/test_endings.py",
    "backends/kubernetes/pod_states": "unit/backends/kubernetes/test_describe.py",
    "backends/kubernetes/pods": "unit/backends/kubernetes/test_documents.py",
    "backends/matching": "unit/backends/batch/test_endings.py",
    "backends/batch/start_failures": "unit/backends/batch/test_endings.py",
    "client/submitted_job": "unit/client/test_job.py",
    "engine/job_handle": "unit/engine/test_task_handle.py",
    "engine/runtimes": "service/test_stock_image.py",
    "model/commands": "unit/backends/batch/test_nodes.py",
    "model/platforms": "unit/model/test_settings.py",
    "engine/packages": "service/test_task_packages.py",
    "storage/packages": "service/test_task_packages.py",
    "packages/cache": "unit/packages/test_environment.py",
    "packages/uv": "unit/packages/test_environment.py",
    "packages/wanted": "unit/packages/test_environment.py",
    "operations/nodes": "service/test_command_jobs.py",
    "operations/why": "unit/operations/test_reasons.py",
    "operations/without_outcome": "service/test_command_jobs.py",
    "operations/replay": "cli/test_replay.py",
    "torchx/apps": "torchx/test_runner.py",  # what TorchX's own Runner makes of them
    "torchx/command_line": "torchx/test_command.py",
    "torchx/batch/places": "torchx/test_runner.py",
    "torchx/batch/scheduler": "torchx/test_scheduler.py",
    "torchx/kubernetes/places": "torchx/test_scheduler.py",
    "torchx/kubernetes/scheduler": "torchx/test_scheduler.py",
    "torchx/logs": "torchx/test_runner.py",
    "torchx/options": "unit/torchx/batch/test_options.py",
    "torchx/request": "unit/torchx/batch/test_request.py",
    "torchx/roles": "unit/torchx/batch/test_mapping.py",
    "torchx/states": "torchx/test_runner.py",
    "runtime/contract": "contract/test_keys.py",
    "runtime/envelope": "contract/test_golden.py",
    "runtime/bundle": "contract/test_hostile.py",
    # What a container does is seen where one runs.
    "runtime/activation": "service/test_environment.py",
    "runtime/child": "service/test_attempt.py",
    "runtime/environment": "service/test_environment.py",
    "runtime/failures": "service/test_failures.py",
    "runtime/followed": "unit/runtime/test_usage.py",
    "runtime/logs": "service/test_logging.py",
    "runtime/pickles": "unit/payload/test_pickling.py",
    "runtime/processes": "service/test_processes.py",
    "runtime/refusals": "unit/runtime/test_storage.py",
    "runtime/replay": "cli/test_replay.py",
    "runtime/runner": "service/test_attempt.py",
    "runtime/unpacking": "service/test_environment.py",
    "runtime/task": "unit/runtime/test_electron.py",
}
"""Modules that have their tests under another name, and where."""


def modules():
    """Return each module by its room and name; those of the container are of the room runtime."""
    found = {path.relative_to(CLIENT): path for path in CLIENT.rglob("[a-z]*.py")}
    found |= {Path("runtime", path.name): path for path in RUNTIME.glob("[a-z]*.py")}
    return {str(name.with_suffix("")) for name in found}


def named_after(module):
    room, _, name = module.rpartition("/")
    places = [TESTS / "unit" / room]
    if room.partition("/")[0] in DOORS:
        places.append(TESTS / room)
    return [place for place in places if (place / f"test_{name}.py").exists()]


def listed(module):
    return [name for name in ELSEWHERE if fnmatch(module, name)]


def test_each_module_has_tests_of_its_name_or_stands_on_the_list():
    assert [m for m in sorted(modules()) if not named_after(m) and not listed(m)] == []


def test_the_list_is_of_modules_there_are_whose_tests_are_there():
    needed = {name for m in modules() if not named_after(m) for name in listed(m)}
    assert [name for name in ELSEWHERE if name not in needed] == []
    assert [where for where in ELSEWHERE.values() if not (TESTS / where).exists()] == []


def test_no_unit_tests_are_named_after_a_module_that_is_not_there():
    """Beside test_results.py there may be test_results_chunks.py."""
    left = []
    for path in (TESTS / "unit").rglob("test_*.py"):
        room, name = path.parent.relative_to(TESTS / "unit"), path.stem.removeprefix("test_")
        of_room = {Path(m).name for m in modules() if Path(m).parent == room}
        if not any(name == each or name.startswith(f"{each}_") for each in of_room):
            left.append(str(path.relative_to(TESTS)))
    assert left == []
