"""Fake backend: jobs that are processes of this machine, a bucket that is a folder, scripted ends.

For tests of code that uses farcall, which get it by `farcall.testing`. It needs no server, no
network and no account. What farcall does is all there: functions travel pickled, the container's
side (`farcall_runtime`) runs them in a process of their own, and outcomes are signed and verified.
What Batch does is kept in memory, and told in Batch's words: what a job asks for is checked as
`farcall.backends.batch.documents` does, and why one ended is told by the tables of
`farcall.backends.batch.endings`.
"""
