"""jax_privacy's clipping, by the tapped engine: change one import.

Names, arguments, defaults and results are those of jax_privacy 2.0, which is neither
imported nor needed.
"""

from ._bounded import AuxiliaryOutput as AuxiliaryOutput
from ._bounded import BoundedSensitivityCallable as BoundedSensitivityCallable
from ._fun import clipped_fun as clipped_fun
from ._grad import clipped_grad as clipped_grad
