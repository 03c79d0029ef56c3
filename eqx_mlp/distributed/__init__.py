"""Many devices and many processes: a mesh, what lies where on it, and how to join."""

from ._initialize import initialize as initialize
from ._mesh import make_mesh as make_mesh
from ._shard import shard as shard
