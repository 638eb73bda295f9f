import hashlib
import json

from farcall.packages.environment import Packed, seal
from farcall.packages.target import Target
from farcall_runtime import environment

FIRST = Packed("first", "1.0", "a" * 64, 10, 100)
SECOND = Packed("second", "2.0", "b" * 64, 20, 200)


def test_container_reads_written_manifest():
    target = Target("arm64")
    read = environment.read_manifest(seal(target, [SECOND, FIRST]).data)
    assert (read.python, read.architecture) == (target.python, "arm64")
    assert [tuple(each) for each in read.distributions] == [FIRST, SECOND]


def test_same_environment_gives_same_manifest():
    sealed = seal(Target("x86_64"), [FIRST, SECOND])
    assert sealed == seal(Target("x86_64"), iter([SECOND, FIRST]))
    assert sealed.sha256 == hashlib.sha256(sealed.data).hexdigest()
    assert sealed.fact == [sealed.sha256, len(sealed.data)]
    assert json.loads(json.dumps(sealed.fact)) == sealed.fact
    assert sealed != seal(Target("arm64"), [FIRST, SECOND])
    assert sealed != seal(Target("x86_64"), [FIRST])
