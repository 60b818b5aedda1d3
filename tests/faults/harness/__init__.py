"""The kit of scenarios with faults: queues, clients, ledger, faults, doctor (tests/README.md)."""
