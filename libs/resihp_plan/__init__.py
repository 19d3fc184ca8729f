"""The heart: plans, layouts, programs, costs and planning. Pure; numpy is the only dependency.

Errors: `InvalidPlan` and `InvalidProgram` (ValueErrors) for plans and programs that break a rule; `Infeasible` when no
plan exists for the devices that are left; ValueError for other mistakes of the caller.
"""

from resihp_plan.buckets import Bucket, Piece, buckets_by_rank, gradient_buckets
from resihp_plan.check import InvalidProgram, check_program
from resihp_plan.cluster import Cluster, Device, Health
from resihp_plan.cost import CostModel, StageCost
from resihp_plan.describe import describe_change, describe_plan
from resihp_plan.edges import (
    Chunk,
    Place,
    Route,
    chunk_tokens,
    edge_chunks,
    needs_gather,
    receiver_tokens,
    routes,
)
from resihp_plan.groups import GroupKind, GroupSpec, edge_group_name, group_name, groups
from resihp_plan.guardians import guardians, needed
from resihp_plan.layout import Interval, Layout, layout, shares, slice_elements, tensors_of_stage, unit_shares
from resihp_plan.memory import MemoryModel
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split, TensorSpec
from resihp_plan.plan import InvalidPlan, Migration, ParallelPlan, ReplicaPlan, Schedule, StagePlan
from resihp_plan.program import Op, OpKind, Program, program
from resihp_plan.simulate import Simulation, Step, simulate
from resihp_plan.slicing import SlicedBatch, slice_batch
from resihp_plan.transfers import Kept, Move, Transfers, transfers
from resihp_plan.validate import validate
from resihp_plan.workload import Document, MicroBatchWork, Work, Workload

__all__ = [
    "EMBEDDING",
    "HEAD",
    "Bucket",
    "Chunk",
    "Cluster",
    "CostModel",
    "Device",
    "Document",
    "GroupKind",
    "GroupSpec",
    "Health",
    "Interval",
    "InvalidPlan",
    "InvalidProgram",
    "Kept",
    "Layout",
    "MemoryModel",
    "MicroBatchWork",
    "Migration",
    "ModelSpec",
    "Move",
    "Op",
    "OpKind",
    "ParallelPlan",
    "Piece",
    "Place",
    "Program",
    "ReplicaPlan",
    "Route",
    "Schedule",
    "Simulation",
    "SlicedBatch",
    "Split",
    "StageCost",
    "StagePlan",
    "Step",
    "TensorSpec",
    "Transfers",
    "Work",
    "Workload",
    "buckets_by_rank",
    "check_program",
    "chunk_tokens",
    "describe_change",
    "describe_plan",
    "edge_chunks",
    "edge_group_name",
    "gradient_buckets",
    "group_name",
    "groups",
    "guardians",
    "layout",
    "needed",
    "needs_gather",
    "program",
    "receiver_tokens",
    "routes",
    "shares",
    "simulate",
    "slice_batch",
    "slice_elements",
    "tensors_of_stage",
    "transfers",
    "unit_shares",
    "validate",
]
