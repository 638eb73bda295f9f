"""A TorchX app of two roles in containers.

Starts containers on one docker network, because the worker connects to the main role's address.
"""

from __future__ import annotations

import os

import pytest
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppState, BindMount, DeviceMount, Resource, Role

SMALL = Resource(cpu=1, gpu=0, memMB=128)


@pytest.fixture
def runner(aws):
    """TorchX's Runner, which finds the scheduler by itself."""
    with get_runner() as opened:
        yield opened


@pytest.fixture
def shared(tmp_path):
    """A folder that every user may write."""
    tmp_path.chmod(0o777)
    return tmp_path


def shell(name: str, image: str, script: str, **more: object) -> Role:
    return Role(name, image=image, entrypoint="sh", args=["-c", script], resource=SMALL, **more)


def ran(runner: Runner, app: AppDef) -> tuple[str, AppState]:
    """Run an app until it finishes; return its handle and final state."""
    queue = os.environ["FARCALL_QUEUE"]
    handle = runner.run(app, "aws_batch", cfg={"queue": queue}, workspace=None)
    status = runner.wait(handle, wait_interval=0.2)
    assert status is not None
    return handle, status.state


def lines(runner: Runner, handle: str, role: str, replica: int = 0) -> list[str]:
    return [line.rstrip("\n") for line in runner.log_lines(handle, role, replica)]


@pytest.mark.path
def test_two_roles_run_on_two_nodes(runner, base_image, shared):
    """The worker connects with the macro's address, and has a mount, a device and /dev/shm."""
    port = "/shared/port"
    serve = (
        "import os, socket; server = socket.create_server(('0.0.0.0', 0)); "
        f"open('{port}.new', 'w').write(str(server.getsockname()[1])); "
        f"os.rename('{port}.new', '{port}'); print(server.accept()[0].recv(100).decode())"
    )
    greet = (
        "import os, socket, sys; "
        f"connection = socket.create_connection((sys.argv[1], int(open('{port}').read()))); "
        "connection.sendall(' '.join([os.environ['WHO'], *sys.argv[2:]]).encode())"
    )
    found = "test -c /dev/chance && df -m /dev/shm | tail -n 1 | { read _ size _; echo $size; }"
    mount = BindMount(src_path=str(shared), dst_path="/shared")
    app = AppDef(
        "talk",
        roles=[
            Role(
                "main",
                image=base_image,
                entrypoint="python3",
                args=["-c", serve],
                resource=SMALL,
                mounts=[mount],
            ),
            shell(
                "worker",
                base_image,
                f"{found}; until [ -e {port} ]; do sleep 0.05; done; "
                f'exec python3 -c "$GREET" "$${{${{rank0_env}}}}" ${{replica_id}}',
                env={"WHO": "worker", "GREET": greet},
                mounts=[mount, DeviceMount("/dev/urandom", "/dev/chance", "r")],
            ),
        ],
    )
    handle, state = ran(runner, app)
    assert state is AppState.SUCCEEDED
    assert lines(runner, handle, "main") == ["worker 0"]
    assert lines(runner, handle, "worker") == ["128"]
