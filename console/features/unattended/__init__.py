"""Repairs without a person: `policy` says which, `repairs` restricts them to what is proven twice,
`repairer` makes them under a lease, `past` tells what it would have done."""

from console.features import Feature

FEATURE = Feature(needs=("history",))
