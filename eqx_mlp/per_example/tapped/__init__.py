"""Per-example norms and clipped sums by tapping where parameters meet the example."""

from ._engine import Engine as Engine
from ._form import Cost as Cost
from ._program import Value as Value
