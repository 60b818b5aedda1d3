"""The version that a queue's code and defaults have in the catalog: by it, what an older console
installed differs from what was modified locally."""

from hashlib import sha256

from console.actions import shipped
from console.catalog import INTERFACE_VERSION
from console.engines import PRODUCTS
from tests.contract.variants import ALL, on

VERSION, DIGEST = 3, "8facecfd8bd4901e"


def test_code_or_a_default_that_has_changed_has_another_version() -> None:
    """If this fails: raise `INTERFACE_VERSION`, and write both values here."""
    digest = sha256()
    for engine, product in sorted(PRODUCTS.items()):
        for variant in on(engine, ALL):
            queue = variant.queue("s", "q")
            for code in sorted(shipped.code(product, queue), key=lambda routine: routine.name):
                digest.update(f"{engine} {variant} {code}\n".encode())
            for column in shipped.columns(product, queue):
                of = f"{column.table}.{column.name} {column.default}"
                digest.update(f"{engine} {variant} {of}\n".encode())
    assert (INTERFACE_VERSION, digest.hexdigest()[:16]) == (VERSION, DIGEST)
