"""Arrow's modules that tell a checker of types nothing, or wrong things: as `Any`."""

from typing import Any

import pyarrow.compute
import pyarrow.parquet

pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet
