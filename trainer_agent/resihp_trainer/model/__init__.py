"""The decoder: a stage of it, cut by tensor parallelism into shards of any size."""

from resihp_trainer.model.decoder import Stage
from resihp_trainer.model.initial import initial_tensor
from resihp_trainer.model.micro_batch import MicroBatch
from resihp_trainer.model.parallel import TensorParallel
from resihp_trainer.model.split_backward import Product, WeightGradients, accumulate

__all__ = [
    "MicroBatch",
    "Product",
    "Stage",
    "TensorParallel",
    "WeightGradients",
    "accumulate",
    "initial_tensor",
]
