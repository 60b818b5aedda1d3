"""How fast each design is on a server, and whether every message came: scratch queues under load.

candidate.py   what takes part: the designs' queues, the floor, the peers
worker.py       a process of producers or consumers; what it did is its log
rounds.py       one round after the other, each on a scratch queue of its own
round_figures.py  its figures; was anything lost, doubled, damaged, out of order
results.py      medians of the rounds, as the command line, the report and the screen show them
"""
