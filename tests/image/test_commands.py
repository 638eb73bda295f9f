"""Command jobs in containers of an image without farcall.

Starts containers of the base image, because networks, mounts, devices and limits exist only there.
"""

from __future__ import annotations

import json

import pytest

from farcall import (
    BindMount,
    Device,
    Nodes,
    Ulimit,
)


@pytest.fixture
def shared(tmp_path):
    """A folder that every user may write."""
    tmp_path.chmod(0o777)
    return tmp_path


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.mark.path
async def test_two_nodes_communicate(executor, base_image, batch, shared):
    """The other node connects to the main node's address; each node has its own log."""
    port = "/shared/port"
    serve = (
        "import os, socket; server = socket.create_server(('0.0.0.0', 0)); "
        f"open('{port}.new', 'w').write(str(server.getsockname()[1])); "
        f"os.rename('{port}.new', '{port}'); print(server.accept()[0].recv(100).decode())"
    )
    greet = (
        "import os, socket; address = os.environ['AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS']; "
        f"socket.create_connection((address, int(open('{port}').read()))).sendall("
        "f\"{os.environ['WHO']} of {os.environ['AWS_BATCH_JOB_NUM_NODES']}\".encode())"
    )
    small = {"vcpu": 1, "memory": 0.125, "mounts": [BindMount(str(shared), "/shared")]}
    groups = [
        Nodes(1, base_image, ["python3", "-c", serve], **small),
        Nodes(
            1,
            base_image,
            shell(f'until [ -e {port} ]; do sleep 0.05; done; exec python3 -c "$GREET"'),
            env={"WHO": "the other", "GREET": greet},
            **small,
        ),
    ]

    job = await executor.command(groups=groups)
    result = await job.wait()

    assert result.exit_codes[0] == 0
    assert result.attempts == 1
    main, other = await job.nodes()
    assert (main.node_index, other.node_index) == (0, 1)
    assert main.log_stream != other.log_stream
    group = main.log_group
    assert batch.output(batch.describe(main.job_id), group) == ["the other of 2"]
    assert batch.output(batch.describe(other.job_id), group) == []


FOUND = """
import json, os, resource, stat
def size(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
def may_write(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return True
print(json.dumps({
    "shm": size("/dev/shm"),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "dumped": resource.getrlimit(resource.RLIMIT_CORE),
    "folder": open("/given/file").read(),
    "written": [may_write("/given/new"), may_write("/taken/new")],
    "device": stat.S_ISCHR(os.stat("/dev/chance").st_mode) and len(open("/dev/chance", "rb").read(4)),
    "user": [os.getuid(), os.getgid()],
}))
"""  # noqa: E501


@pytest.mark.parametrize("nodes", [2])
async def test_container_has_requested_properties(executor, base_image, batch, tmp_path, nodes):
    """The properties are shared memory, limits, folders, devices and the user."""
    given, taken = tmp_path / "given", tmp_path / "taken"
    for folder in (given, taken):
        folder.mkdir()
        folder.chmod(0o777)
    (given / "file").write_text("from outside")

    job = await executor.command(
        base_image,
        ["python3", "-c", FOUND],
        nodes=nodes,
        memory=0.25,
        mounts=[
            BindMount(str(given), "/given", read_only=True),
            BindMount(str(taken), "/taken"),
        ],
        devices=[Device("/dev/urandom", "/dev/chance", "r")],
        shm_size=0.125,
        ulimits=[Ulimit("nofile", 77, 99), Ulimit("core", 0, 4096)],
        user="4242:4343",
    )

    await job.wait()
    detail = batch.describe((await job.detail()).node_id(0))
    found = json.loads(batch.output(detail, (await job.detail()).log_group)[-1])
    assert found == {
        "shm": 128 << 20,
        "files": [77, 99],
        "dumped": [0, 4096],
        "folder": "from outside",
        "written": ["Read-only file system", True],
        "device": 4,
        "user": [4242, 4343],
    }
    assert (taken / "new").exists()
