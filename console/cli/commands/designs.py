"""List the designs with engines, options and verbs; or describe one.

The page of a design has its guarantees, its cost and when to choose it, how it works, what can
go wrong, and its states, order, verbs and options. `dbq-console help designs` compares
them.

\b
Examples:
  dbq-console designs
  dbq-console designs ring
  dbq-console designs --json
"""

import textwrap

from console.cli.context import Call
from console.designs import DESIGNS, Design
from console.designs import design as find_design
from console.verbs.command import Command
from console.verbs.parameters import Parameter, Placement
from console.verbs.queues import complete_designs


def _run(call: Call, name: str | None) -> None:
    designs = list(DESIGNS.values()) if name is None else [find_design(name)]
    lines: list[str] = []
    for design in designs:
        lines += [*_head(design), *([] if name is None else _workings(design)), *_uses(design), ""]
    call.answer({"designs": [_design(design) for design in designs]}, lines[:-1])


def _head(design: Design) -> list[str]:
    return [
        f"{design.name}: {design.title} ({design.source}), on {', '.join(design.engines)}",
        *_wrapped(design.summary),
        *_wrapped(design.advice),
    ]


def _workings(design: Design) -> list[str]:
    """The part that only the page of one design has."""
    orders = {f" with {o}={v}": order for (o, v), order in design.option_orders.items()}
    states = {f" with {o}={v}": more for (o, v), more in design.option_states.items()}
    return [
        "",
        *_wrapped(design.details),
        "",
        *(
            line
            for which, order in {"": design.order, **orders}.items()
            for line in _wrapped(f"order{which}: {order.promise}")
        ),
        *(
            f"  states{which}: {' '.join(names)}"
            for which, names in {"": design.states, **states}.items()
        ),
    ]


def _uses(design: Design) -> list[str]:
    return [
        *(
            f"  --option {option.name}={option.default}  {option.summary} ({option.range})"
            + (f", on {', '.join(option.engines)} only" if option.engines else "")
            for option in design.options
        ),
        f"  verbs: {' '.join(design.verbs)}",
        *(
            f"  with {option}={value}: {' '.join(verbs)}"
            for (option, value), verbs in design.option_verbs.items()
        ),
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="  ")


def _design(design: Design) -> dict[str, object]:
    return {
        "design": design.name,
        "title": design.title,
        "source": design.source,
        "summary": design.summary,
        "advice": design.advice,
        "details": design.details,
        "order": design.order.value,
        "engines": list(design.engines),
        "options": {
            engine: [
                {
                    "option": option.name,
                    "default": option.default,
                    "values": option.range,
                    "summary": option.summary,
                }
                for option in design.options_on(engine)
            ]
            for engine in design.engines
        },
        "states": list(design.states),
        "verbs": {engine: list(design.verbs) for engine in design.engines},
        "verbs_with": [
            {"option": option, "value": value, "verbs": list(verbs)}
            for (option, value), verbs in design.option_verbs.items()
        ],
    }


_NAME = Parameter("name", placement=Placement.ARGUMENT, metavar="[NAME]", complete=complete_designs)
COMMAND = Command("designs", _run, __doc__, (_NAME,))
