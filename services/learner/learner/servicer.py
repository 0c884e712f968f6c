"""The learner's gRPC face: thin, over the run manager and the data sets."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from google.protobuf import json_format
from hone.learner.v1 import learner_pb2 as pb
from hone.learner.v1 import learner_pb2_grpc

from learner.convert import (
    choice_from_proto,
    export_piece_to_proto,
    progress_to_proto,
    run_to_proto,
    step_to_proto,
)
from learner.datasets import DatasetStore, Kind
from learner.runner import Tools, check_supported
from learner.runs.adapter_shape import shape_of
from learner.runs.adapters import AdapterStore
from learner.runs.checkpoints import LATEST
from learner.runs.exports import Exporter
from learner.runs.hub import Progress
from learner.runs.manager import RunManager
from learner.runs.store import Run, RunStore, Step
from modelstore.resolve import ModelUnusableError, check_model
from runspec.convert import run_spec_from_proto, run_spec_to_proto
from runspec.problems import SpecError
from runspec.schema import LoraSpec, RunSpec
from servicekit.errors import InvalidArgument, OutOfRange

DEFAULT_PAGE, MAX_PAGE = 50, 500

DATASET_KINDS: "Mapping[pb.DatasetKind.ValueType, Kind]" = {
    pb.DATASET_KIND_TASKS: "tasks",
    pb.DATASET_KIND_SFT: "sft",
    pb.DATASET_KIND_PREFERENCES: "preferences",
}


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Answers `hone.learner.v1.LearnerService`."""

    def __init__(
        self,
        *,
        manager: RunManager,
        store: RunStore,
        datasets: DatasetStore,
        adapters: AdapterStore,
        exporter: Exporter,
        tools: Tools,
        max_dataset_bytes: int,
    ) -> None:
        """Answers for one learner."""
        self._tools = tools
        self._manager = manager
        self._store = store
        self._datasets = datasets
        self._adapters = adapters
        self._exporter = exporter
        self._max_dataset_bytes = max_dataset_bytes

    async def UploadDataset(
        self, request_iterator: AsyncIterator[pb.UploadDatasetRequest], context: Any
    ) -> pb.UploadDatasetResponse:
        """Stores a data set."""
        kind, content = pb.DATASET_KIND_UNSPECIFIED, bytearray()
        async for request in request_iterator:
            kind = kind or request.kind
            content += request.chunk
            if len(content) > self._max_dataset_bytes:
                raise OutOfRange(
                    f"the data set is larger than {self._max_dataset_bytes} bytes; "
                    "HONE_LEARNER_MAX_DATASET_BYTES raises the limit"
                )
        if kind not in DATASET_KINDS:
            raise InvalidArgument(
                "kind: the first message must say what the set holds",
                violations={"kind": "is required"},
            )
        name = DATASET_KINDS[kind]
        # Large sets take seconds to read; other calls go on meanwhile.
        dataset_id, count = await asyncio.to_thread(self._datasets.store, name, bytes(content))
        return pb.UploadDatasetResponse(dataset_id=dataset_id, row_count=count)

    async def StartRun(self, request: pb.StartRunRequest, context: Any) -> pb.StartRunResponse:
        """Starts a run."""
        try:
            spec = run_spec_from_proto(request.spec)
        except SpecError as error:
            raise InvalidArgument(str(error), violations=error.violations()) from error
        check_supported(spec)
        spec = await self._checked(spec)
        spec_json = json_format.MessageToJson(
            run_spec_to_proto(spec), preserving_proto_field_name=True, indent=None
        )
        run = self._manager.start(spec.name, request.request_id, spec_json)
        return pb.StartRunResponse(run=self._run(run))

    async def _checked(self, spec: RunSpec) -> RunSpec:
        """Refuses a run whose model, tools, data or adapter are not here; returns it with the shape of its adapter."""
        try:
            check_model(spec.model.path)
        except ModelUnusableError as error:
            said = str(error).removeprefix("model.path: ")
            raise InvalidArgument(str(error), violations={"model.path": said}) from error
        await self._tools.definitions(spec.rollout.tools)
        adapter = self._adapters.resolve(spec.model.adapter)
        await asyncio.to_thread(self._check_data, spec)
        trains_adapter = spec.algorithm != "evaluate" and spec.train.weights == "lora"
        # Nothing else reads it, and what a run keeps is held against other runs.
        lora = shape_of(spec.lora, adapter) if trains_adapter else LoraSpec()
        return spec.model_copy(update={"lora": lora})

    def _check_data(self, spec: RunSpec) -> None:
        if spec.algorithm == "sft":
            self._datasets.sft_rows(spec.data.train)
        elif spec.compares:
            self._datasets.preferences(spec.data.train)
            if spec.data.eval:
                self._datasets.preferences(spec.data.eval)
        elif spec.reinforces:
            self._datasets.tasks(spec.data.train)
        if spec.algorithm == "evaluate" or (spec.reinforces and spec.eval.every_steps):
            self._datasets.tasks(spec.data.eval)
        if spec.health.off_task:
            self._datasets.sft_rows(spec.health.off_task)

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Any
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Follows a run."""
        hub = self._manager.hub(request.run_id)
        async for news in hub.watch():
            match news:
                case Step():
                    yield pb.WatchRunResponse(step=step_to_proto(news, hub.run.alarms))
                case Progress():
                    yield pb.WatchRunResponse(progress=progress_to_proto(news))
                case Run():
                    yield pb.WatchRunResponse(ended=self._run(news))

    async def StopRun(self, request: pb.StopRunRequest, context: Any) -> pb.StopRunResponse:
        """Stops a run."""
        return pb.StopRunResponse(run=self._run(await self._manager.stop(request.run_id)))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Any) -> pb.ResumeRunResponse:
        """Goes on with a run."""
        return pb.ResumeRunResponse(run=self._run(self._manager.resume(request.run_id)))

    async def RollBackRun(
        self, request: pb.RollBackRunRequest, context: Any
    ) -> pb.RollBackRunResponse:
        """Takes a run back to an earlier checkpoint."""
        choice = choice_from_proto(request.checkpoint)
        run, made = await self._manager.roll_back(request.run_id, choice, request.request_id)
        return pb.RollBackRunResponse(
            run=self._run(run), to_step=made.to_step, to_policy_version=made.to_version
        )

    async def ExportRun(
        self, request: pb.ExportRunRequest, context: Any
    ) -> AsyncIterator[pb.ExportRunResponse]:
        """Sends what a run learned."""
        run, _ = self._manager.get(request.run_id)
        chosen = request.HasField("checkpoint")
        choice = choice_from_proto(request.checkpoint) if chosen else LATEST
        pieces = self._exporter.export(run, choice, merged=request.merged)
        async with aclosing(pieces):
            async for piece in pieces:
                yield export_piece_to_proto(piece)

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        """Shows a run."""
        run, steps = self._manager.get(request.run_id)
        told = [step_to_proto(step, run.alarms) for step in steps]
        return pb.GetRunResponse(run=self._run(run), steps=told)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        """Lists runs."""
        size = request.page_size or DEFAULT_PAGE
        if not 0 < size <= MAX_PAGE:
            raise InvalidArgument(
                f"page_size: found {request.page_size}; 1 to {MAX_PAGE} is right",
                violations={"page_size": f"is not within 1 to {MAX_PAGE}"},
            )
        runs = self._manager.all()
        start = 0
        if request.page_token:
            ids = [run.run_id for run in runs]
            if request.page_token not in ids:
                raise InvalidArgument(
                    "page_token: not one that this service gave",
                    violations={"page_token": "is unknown"},
                )
            start = ids.index(request.page_token)
        page, rest = runs[start : start + size], runs[start + size :]
        return pb.ListRunsResponse(
            runs=[self._run(run) for run in page],
            next_page_token=rest[0].run_id if rest else "",
        )

    def _run(self, run: Run) -> pb.Run:
        return run_to_proto(run, self._store.folder(run.run_id))
