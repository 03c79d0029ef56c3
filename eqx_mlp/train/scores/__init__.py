"""What there is to know of each example of a data set, one question a file."""

from ._el2n import el2n_scores as el2n_scores
from ._grand import grand_scores as grand_scores
from ._influence import influence as influence
from ._map import map_examples as map_examples
from ._mislabelled import MislabelledRanking as MislabelledRanking
from ._mislabelled import rank_mislabelled as rank_mislabelled
from ._neighbors import GradientNeighbors as GradientNeighbors
from ._neighbors import gradient_neighbors as gradient_neighbors
