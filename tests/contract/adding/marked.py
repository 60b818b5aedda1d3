"""Messages that are marked; said to be like no other design."""

from dataclasses import replace

from console.designs.shipped import STATUS

MARKED = replace(STATUS, name="marked", title="marked queue", source="nobody's article")
