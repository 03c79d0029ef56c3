"""The gradient of each example: all of it, its norm, or a clipped sum."""

from ._batch import as_batch as as_batch
from ._batch import example_keys as example_keys
from ._batch import require_batch as require_batch
from ._clipped import ExampleStats as ExampleStats
from ._clipped import clipped_grad as clipped_grad
from ._dot import per_example_grad_dot as per_example_grad_dot
from ._explain import Explanation as Explanation
from ._explain import explain as explain
from ._fisher import fisher_diagonal as fisher_diagonal
from ._moments import GradientMoments as GradientMoments
from ._moments import gradient_moments as gradient_moments
from ._noise_scale import GradientNoise as GradientNoise
from ._noise_scale import gradient_noise_scale as gradient_noise_scale
from ._norms import per_example_grad_norm as per_example_grad_norm
from ._vmap import per_example_grad as per_example_grad
from ._vmap import per_example_value_and_grad as per_example_value_and_grad
