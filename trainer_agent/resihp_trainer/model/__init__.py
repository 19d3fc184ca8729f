"""The decoder: a stage of it, cut by tensor parallelism into shards of any size."""

from resihp_trainer.model.decoder import Stage
from resihp_trainer.model.initial import initial_tensor
from resihp_trainer.model.linear import Linear, Product, WeightGradients, accumulate, linear_of
from resihp_trainer.model.micro_batch import MicroBatch
from resihp_trainer.model.parallel import TensorParallel
from resihp_trainer.model.pretrained import Pretrained

__all__ = [
    "Linear",
    "MicroBatch",
    "Pretrained",
    "Product",
    "Stage",
    "TensorParallel",
    "WeightGradients",
    "accumulate",
    "initial_tensor",
    "linear_of",
]
