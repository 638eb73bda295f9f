"""TorchX apps of shell commands, which the local AWS emulator runs as processes."""

from torchx.specs import AppDef, AppState, Resource, Role

from tests.support.patience import until

QUEUE = "farcall-local"
CFG = {"queue": QUEUE}
ENDED = (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)


def role(script, name="main", replicas=1, **more):
    """Return a role that runs a shell script."""
    resource = Resource(cpu=1, gpu=0, memMB=256)
    given = {"entrypoint": "sh", "args": ["-c", script], "resource": resource, **more}
    return Role(name=name, image="alpine:3", num_replicas=replicas, **given)


def app(*roles, name="app", **more):
    return AppDef(name=name, roles=list(roles), **more)


def waiting(path, said="waits"):
    """Return a script that prints a text, waits for a file, and prints again."""
    return f"echo {said}; until [ -e {path} ]; do sleep 0.05; done; echo went on"


def ended(runner, handle):
    """Wait until an app finishes; return its status."""
    return until(lambda: (found := runner.status(handle)).state in ENDED and found)


def running(runner, handle):
    return until(lambda: (found := runner.status(handle)).state is AppState.RUNNING and found)


def lines(runner, handle, role_name="main", k=0, **how):
    return list(runner.log_lines(handle, role_name, k, **how))
