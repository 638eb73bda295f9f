"""The container side of farcall: fetch one task, run it in a child process, store what came of it.

Runs as ``python -m farcall_runtime``. It needs the standard library, cloudpickle and obstore, and
owns the wire contract that the client imports (`farcall_runtime.contract`,
`farcall_runtime.envelope`).
"""
