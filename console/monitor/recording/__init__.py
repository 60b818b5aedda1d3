"""What was seen, kept: samples, waits, findings and actions in segment files, and read again.

Payloads and titles are never recorded, nor filters, which may hold parts of them; of errors only
what the doctor's summaries quote, masked as on the screen.
"""
