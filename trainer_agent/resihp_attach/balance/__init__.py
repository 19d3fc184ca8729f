"""Live re-balancing of jobs that somebody else launched: rows of the global batch move between data-parallel ranks.

Every rank keeps its number of micro-batches, so all collectives match in any framework; only how many rows each of
them holds changes. Gradients stay those of the even split if, and only if, the loss is a sum over tokens divided by the
tokens of the global batch; `check_loss` finds out before anything is moved.
"""

from resihp_attach.balance.check import LossDependsOnSplit, check_loss, hf_refusal
from resihp_attach.balance.rows import share_rows
from resihp_attach.balance.sampler import BalancedBatchSampler, Speeds

__all__ = ["BalancedBatchSampler", "LossDependsOnSplit", "Speeds", "check_loss", "hf_refusal", "share_rows"]
