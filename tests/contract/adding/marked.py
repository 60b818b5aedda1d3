"""A design with the tables of `status`, but without `like`."""

from dataclasses import replace

from console.designs.shipped import STATUS

MARKED = replace(STATUS, name="marked", title="marked queue", source="nobody's article")
