"""Tells somebody of findings, and of their end: what is sent, to whom, and by which recorder.

`targets` what a receiver gets and how it gets there, `outbox` what the database keeps of it,
`notifier` the thread of a recorder that does it.
"""
