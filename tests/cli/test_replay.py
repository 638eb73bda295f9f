"""``farcall replay``.

Starts the local AWS emulator, because a replay starts from the bundle of a failed job.
"""

import json
import os

from tests.service.attacker import Attacker


def parse(text, number):
    print(f"number {number}", os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX"), flush=True)
    wanted = json.loads(text)
    return {"wanted": wanted}


async def test_failed_call_is_replayed_locally(executor, farcall):
    job = await executor.submit(parse, "{", 7)
    await job.exception()

    code, out, err = await farcall("replay", job.id, "--yes")

    assert (code, out) == (1, "number 7 None\n")
    told, _, trace = err.partition("farcall: the call failed after ")
    assert f"job {job.id} (parse-" in told
    assert "on Batch: the function raised json.decoder.JSONDecodeError" in told
    assert "yours, according to its name" in told
    assert "and your permissions" in told
    assert "wanted = json.loads(text)" in trace
    assert "farcall_runtime" not in trace
    assert "farcall-sources:" not in trace


async def test_debugger_stops_in_user_frame(executor, commands):
    job = await executor.submit(parse, "{", 7)
    await job.exception()

    done = commands.run("replay", job.id, "--pdb", "--yes", answer="p (text, number + 1)\nq\n")

    assert done.returncode == 1
    assert "('{', 8)" in done.stdout


def parse_quickly(text):
    try:
        import parser_of_the_folder
    except ImportError:
        return json.loads(text)
    return parser_of_the_folder.loads(text)


async def test_working_directory_is_not_imported(
    executor, installed_command, tmp_path, monkeypatch
):
    job = await executor.submit(parse_quickly, "{")
    await job.exception()
    (tmp_path / "parser_of_the_folder.py").write_text("print('imported')\nloads = print")
    monkeypatch.chdir(tmp_path)

    done = await installed_command("replay", job.id, "--yes")

    assert (done.returncode, done.stdout) == (1, "")


async def test_replaced_bundle_is_not_run(executor, farcall, aws, tmp_path):
    job = await executor.submit(parse, "{", 7)
    await job.exception()
    attacker = Attacker(aws, tmp_path / "marker")
    name = (await job.detail()).name
    (key,) = (key for key in attacker.keys("bundles") if key.endswith(name))
    changed = bytearray(attacker.get(key))
    changed[changed.index(b"wanted")] ^= 1

    for forged in (bytes(changed), attacker.bundle()):
        attacker.put(key, forged)
        code, out, err = await farcall("replay", job.id, "--yes")
        assert (code, out) == (1, "")
        assert "differs from what was submitted" in err
    assert not attacker.marker.exists()
