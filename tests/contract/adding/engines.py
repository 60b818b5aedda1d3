"""List the engines that the console knows.

\b
Examples:
  dbq-console engines
  dbq-console engines postgresql --schemas --json
"""

from console import engines
from console.cli.context import Call
from console.verbs.command import Command
from console.verbs.parameters import Parameter, Placement


def _run(call: Call, engine: str | None, schemas: bool) -> None:
    products = engines.PRODUCTS.values() if engine is None else [engines.product(engine)]
    schema_of = {product.name: product.default_schema if schemas else "" for product in products}
    call.answer({"engines": schema_of}, [" ".join(one).strip() for one in schema_of.items()])


COMMAND = Command(
    "engines",
    _run,
    __doc__,
    (
        Parameter("engine", placement=Placement.ARGUMENT),
        Parameter("schemas", "With the schema of new queues.", is_flag=True),
    ),
)
