"""Data as arrays: batches, IDX files, MNIST."""

from ._batch import Batch as Batch
from ._batch import epoch_permutation as epoch_permutation
from ._deform import RandomDeformation as RandomDeformation
from ._deform import deform as deform
from ._idx import load_idx_pair as load_idx_pair
from ._idx import read_idx as read_idx
from ._mnist import DataNotFoundError as DataNotFoundError
from ._mnist import Split as Split
from ._mnist import mnist as mnist
from ._transform import image_to_vector as image_to_vector
