"""Runs, steps and progress to protobuf."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf import json_format
from hone.common.v1 import run_spec_pb2
from hone.learner.v1 import learner_pb2

from learner.runs.checkpoints import BEST, LATEST, Choice
from learner.runs.dtype_choice import DtypeChoice
from learner.runs.exports import FileHead, Manifest
from learner.runs.hub import Progress
from learner.runs.store import Run, RunAlarm, RunState, Step
from servicekit.errors import InvalidArgument
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
        alarms=[_alarm_to_proto(alarm) for alarm in run.alarms],
    )
    if run.dtype_choice is not None:
        message.dtype_choice.CopyFrom(_dtype_choice_to_proto(run.dtype_choice))
    if run.end_time:
        message.end_time.CopyFrom(time_to_proto(datetime.fromtimestamp(run.end_time, UTC)))
    return message


def _dtype_choice_to_proto(choice: DtypeChoice) -> learner_pb2.DtypeChoice:
    return learner_pb2.DtypeChoice(
        dtype=choice.dtype,
        reason=choice.reason,
        float32_seconds=choice.float32_seconds,
        bfloat16_seconds=choice.bfloat16_seconds,
    )


def _alarm_to_proto(alarm: RunAlarm) -> learner_pb2.Alarm:
    return learner_pb2.Alarm(kind=alarm.kind, step=alarm.step, detail=alarm.detail)


def step_to_proto(step: Step, alarms: Sequence[RunAlarm] = ()) -> learner_pb2.StepReport:
    """Converts a finished step, with those of the run's alarms that it raised."""
    return learner_pb2.StepReport(
        step=step.step,
        policy_version=step.policy_version,
        end_time=time_to_proto(datetime.fromtimestamp(step.end_time, UTC)),
        metrics=step.metrics,
        alarms=[_alarm_to_proto(alarm) for alarm in alarms if alarm.step == step.step],
    )


def choice_from_proto(message: learner_pb2.CheckpointChoice) -> Choice:
    """Converts which checkpoint is meant.

    Raises:
        InvalidArgument: none is.
    """
    match message.WhichOneof("which"):
        case "step":
            return message.step
        case "best":
            return BEST
        case "latest":
            return LATEST
    raise InvalidArgument(
        "checkpoint: say a step, best or latest", violations={"checkpoint": "is required"}
    )


def export_piece_to_proto(piece: FileHead | bytes | Manifest) -> learner_pb2.ExportRunResponse:
    """Converts a piece of an export."""
    match piece:
        case FileHead():
            file = learner_pb2.ExportedFile(
                path=piece.path, size_bytes=piece.size_bytes, sha256=piece.sha256
            )
            return learner_pb2.ExportRunResponse(file=file)
        case Manifest():
            manifest = learner_pb2.ExportManifest(
                run_id=piece.run_id,
                step=piece.step,
                policy_version=piece.policy_version,
                merged=piece.merged,
                file_count=piece.file_count,
            )
            return learner_pb2.ExportRunResponse(manifest=manifest)
        case _:
            return learner_pb2.ExportRunResponse(chunk=piece)


def progress_to_proto(progress: Progress) -> learner_pb2.ProgressReport:
    """Converts where the step under way stands."""
    return learner_pb2.ProgressReport(
        step=progress.step,
        stage=progress.stage,
        done_count=progress.done,
        total_count=progress.total,
    )
