"""How fast each design is on a server, and whether every message arrives: queues under load.

candidate.py       what is measured: a design's queue, the floor, a peer; its scratch queues
worker.py          the program of a worker process, which is producers or consumers; it writes a log
rounds.py          runs the rounds, each on a new scratch queue
round_figures.py   a round's figures, and whether anything was lost, doubled, damaged, out of order
results.py         medians over the rounds, for the command line, the report and the screen
"""
