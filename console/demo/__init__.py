"""The demo: a real server, one queue of every design, live traffic with faults in it.

    with Demo() as demo:
        database = open_database(demo.url, label="demo")

The traffic runs in processes of its own. They and the server go with the process that made them,
however that one ends.
"""

from console.demo.session import Demo, run_headless

__all__ = ["Demo", "run_headless"]
