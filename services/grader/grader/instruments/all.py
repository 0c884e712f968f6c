"""The instruments together."""

from dataclasses import dataclass, field

from grader.answer.symbolic import Symbolic
from grader.instruments.boxes import NoRoom, Room
from grader.instruments.endpoints import Endpoints, NoEndpoints
from grader.instruments.functions import Functions, NoFunctions
from grader.instruments.judges import Judges, NoJudges
from grader.instruments.reward_models import NoRewardModels, RewardModels


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What graders may use besides the sample."""

    symbolic: Symbolic
    boxes: Room = field(default_factory=NoRoom)
    """The room of the record that is being graded."""
    judges: Judges = field(default_factory=NoJudges)
    endpoints: Endpoints = field(default_factory=NoEndpoints)
    reward_models: RewardModels = field(default_factory=NoRewardModels)
    functions: Functions = field(default_factory=NoFunctions)
    rollout_id: str = ""
    """Of the record that is being graded; empty where it belongs to no attempt."""
    run_id: str = ""
    """Of that attempt."""
    grader_version: str = ""
    """Of the definition that it is graded by."""
