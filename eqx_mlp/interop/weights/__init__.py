"""Weights in and out: plain arrays, PyTorch, Flax, safetensors files.

`from_x(model, weights)` is the model with those weights, and `to_x(model)` its weights
as the other library names and lays them out. Names, shapes and dtypes are checked.
"""

from ._arrays import from_arrays as from_arrays
from ._arrays import to_arrays as to_arrays
from ._flax import from_flax as from_flax
from ._flax import to_flax as to_flax
from ._safetensors import load_safetensors as load_safetensors
from ._safetensors import save_safetensors as save_safetensors
from ._torch import from_torch as from_torch
from ._torch import to_torch as to_torch
