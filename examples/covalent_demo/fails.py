"""Covalent: a failing electron, with executor options from covalent.conf."""

import covalent as ct


@ct.electron(executor="awsbatch")
def share(flowers, vases):
    print(f"{flowers} flowers for {vases} vases")
    return flowers / vases


@ct.lattice
def decorate(vases):
    return share(150, vases)


if __name__ == "__main__":
    dispatch_id = ct.dispatch(decorate)(0)
    node = ct.get_result(dispatch_id, wait=True).get_node_result(0)
    print("status:", node["status"])
    print("stdout:", node["stdout"])
    print("error:", node["error"])
