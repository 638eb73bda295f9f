"""Covalent: a workflow whose width is known only at run time.

A sublattice is a workflow inside a workflow: its graph is built when its arguments are known, and
each of its electrons is a Batch job. The script starts and stops Covalent's server; remove both
lines if your server is already running (docs/covalent.md). Install Covalent, which needs Python
3.11 or 3.12, with `pip install '.[covalent]'`.

    farcall local -- python examples/covalent_sublattice.py
"""

import subprocess

import covalent as ct

executor = ct.executor.AWSBatchExecutor(vcpu=1, memory=1)


@ct.electron(executor=executor)
def count_parts(text):
    return len(text.split())


@ct.electron(executor=executor)
def square(x):
    return x * x


@ct.electron(executor=executor)
@ct.lattice(executor=executor)
def squares(count):
    return [square(x) for x in range(count)]


@ct.lattice(executor=executor)
def workflow(text):
    return squares(count_parts(text))


if __name__ == "__main__":
    subprocess.run(["covalent", "start", "--no-cluster"], check=True)
    try:
        dispatch_id = ct.dispatch(workflow)("as many squares as words")
        print(ct.get_result(dispatch_id, wait=True).result)
    finally:
        subprocess.run(["covalent", "stop"], check=True)
