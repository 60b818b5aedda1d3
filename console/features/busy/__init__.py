"""Who works on what now, over all queues and connections, from the samples that there are."""

from console.features import CommandKey, Feature

FEATURE = Feature(keys=(CommandKey("W", "busy", "who works on what, over all queues"),))
