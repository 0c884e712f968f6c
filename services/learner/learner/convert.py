"""Runs, steps and progress to protobuf."""

from datetime import UTC, datetime
from pathlib import Path

from google.protobuf import json_format
from hone.common.v1 import run_spec_pb2
from hone.learner.v1 import learner_pb2

from learner.hub import Progress
from learner.runs import Run, RunState, Step
from trajectory.convert import time_to_proto

STATES = {
    RunState.QUEUED: learner_pb2.RUN_STATE_QUEUED,
    RunState.RUNNING: learner_pb2.RUN_STATE_RUNNING,
    RunState.COMPLETED: learner_pb2.RUN_STATE_COMPLETED,
    RunState.STOPPED: learner_pb2.RUN_STATE_STOPPED,
    RunState.FAILED: learner_pb2.RUN_STATE_FAILED,
}


def run_to_proto(run: Run, folder: Path) -> learner_pb2.Run:
    """Converts a run; `folder` is where its files lie."""
    message = learner_pb2.Run(
        run_id=run.run_id,
        spec=json_format.Parse(run.spec_json, run_spec_pb2.RunSpec()),
        state=STATES[run.state],
        step=run.step,
        policy_version=run.policy_version,
        create_time=time_to_proto(datetime.fromtimestamp(run.create_time, UTC)),
        detail=run.detail,
        metrics=run.metrics,
        output_dir=str(folder),
    )
    if run.end_time:
        message.end_time.CopyFrom(time_to_proto(datetime.fromtimestamp(run.end_time, UTC)))
    return message


def step_to_proto(step: Step) -> learner_pb2.StepReport:
    """Converts a finished step."""
    return learner_pb2.StepReport(
        step=step.step,
        policy_version=step.policy_version,
        end_time=time_to_proto(datetime.fromtimestamp(step.end_time, UTC)),
        metrics=step.metrics,
    )


def progress_to_proto(progress: Progress) -> learner_pb2.ProgressReport:
    """Converts where the step under way stands."""
    return learner_pb2.ProgressReport(
        step=progress.step,
        stage=progress.stage,
        done_count=progress.done,
        total_count=progress.total,
    )
