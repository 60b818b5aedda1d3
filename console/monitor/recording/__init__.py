"""What was seen, kept: samples, waits, findings and actions in segment files, and read again.

Payloads, titles and error texts are never recorded, nor filters, which may hold parts of them.
"""

from console.monitor.recording.recorder import Recorder

__all__ = ["Recorder"]
