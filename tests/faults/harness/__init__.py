"""The kit of the faults' scenarios: queues, clients, ledger, faults, doctor; see tests/README.md."""
