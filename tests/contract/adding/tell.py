"""The verb tell: write a word about a queue to the audit's file."""

from console.catalog import audit
from console.catalog.audit import Outcome
from console.plan import Plan, Result, single_step
from console.verbs.command import Params
from console.verbs.parameters import argument
from console.verbs.verb import Target, Verb


def _plan(target: Target, values: Params) -> Plan:
    word: str = values["word"]

    def run() -> Result:
        audit.log_locally(plan.subject, Outcome.DONE, detail=word)
        return Result(Outcome.DONE, (f"told {word}",), done=1, data={"word": word})

    lines, data = [f"tell {word}"], {"word": word}
    plan = target.planned("tell", lines, single_step(run), data=data)
    return plan


TELL = Verb(
    "tell",
    make_plan=_plan,
    help="""Leave a WORD about a queue.

    \b
    Examples:
      dbq-console tell orders moved --yes
    """,
    parameters=(argument("word", "What to leave."),),
)
