"""Carries one requested rollout out, at most once: claim, sandbox, episode, commit, tell.

The claim comes before any side effect and the commit before the result is told. Whoever finds that
somebody else has taken the rollout over stops and tells nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from opentelemetry import metrics, trace
from opentelemetry.trace import Status, StatusCode

from eventbus.claims import Acquired, Claims, Committed, Expired, Held, Lost
from eventbus.errors import ClaimLost, RetryLater
from rollout.agent_loop import AgentLoop, DeadlinePassedError, ToolCaller
from rollout.engines.base import Engine
from rollout.failures import RolloutError, UnknownToolError, failure, failure_of
from rollout.jobs import Environment, RolloutJob
from rollout.lease import Lease
from rollout.policies import Policies
from rollout.toolcalls.base import ToolCallParser
from rollout.toolcalls.table import make_parser
from servicekit import attributes
from servicekit.errors import FailedPrecondition, HoneError, InvalidArgument
from trajectory.rendering import ChatRenderer
from trajectory.types import Failure, FailureKind, RolloutRecord, ToolDefinition, TurnRecord

_LOG = logging.getLogger("hone.rollout")


class Reporter(Protocol):
    """Tells what happened."""

    async def started(self, job: RolloutJob, epoch: int, owner: str, sandbox_id: str) -> None:
        """A replica has begun."""

    async def turn(self, job: RolloutJob, epoch: int, turn: TurnRecord) -> None:
        """One turn is done."""

    async def finished(self, job: RolloutJob, epoch: int, record: RolloutRecord) -> None:
        """The agent stopped."""

    async def failed(self, job: RolloutJob, epoch: int, failure: Failure) -> None:
        """The attempt could not be carried out."""

    async def has_ended(self, job: RolloutJob, since_sequence: int) -> bool:
        """Says whether the log holds an end of this attempt."""

    async def was_given_up(self, job: RolloutJob, since_sequence: int) -> bool:
        """Says whether the log holds a failure of this attempt."""


class Sandboxes(Protocol):
    """Makes the rollout's environment."""

    async def create(self, job: RolloutJob, epoch: int, timeout_seconds: float) -> Environment:
        """Returns the environment; waits for room within the timeout."""


class Tools(Protocol):
    """The tool gateway."""

    async def definitions(self, names: Sequence[str]) -> tuple[ToolDefinition, ...]:
        """Returns the tools by name.

        Raises:
            UnknownToolError: there is no tool of a name.
        """

    def caller(
        self, job: RolloutJob, epoch: int, sandbox_id: str, check: Callable[[], Awaitable[None]]
    ) -> ToolCaller:
        """Returns what runs this rollout's calls; `check` is awaited before each."""


OVERRUN_SECONDS = 15.0
"""How far past its deadline a rollout may be in a call that keeps the deadline by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How long a claim lasts and how often it is renewed."""

    lease_seconds: float = 15.0
    renew_seconds: float = 4.0


class Executor:
    """Runs rollouts for one replica."""

    def __init__(
        self,
        *,
        owner: str,
        claims: Claims,
        policies: Policies,
        sandboxes: Sandboxes,
        tools: Tools,
        reporter: Reporter,
        times: LeaseTimes,
        clock: Callable[[], float],
        tracer: trace.Tracer,
    ) -> None:
        """Takes everything that a rollout acts through; `owner` names this process for ever."""
        self._owner = owner
        self._claims = claims
        self._policies = policies
        self._sandboxes = sandboxes
        self._tools = tools
        self._reporter = reporter
        self._times = times
        self._clock = clock
        self._tracer = tracer
        self._running: dict[str, asyncio.Task[RolloutRecord]] = {}
        self._drained: set[str] = set()
        self._dropped = metrics.get_meter("hone.rollout").create_counter(
            "hone.rollout.results_dropped",
            description="Results that were not told because somebody else had taken over.",
        )

    @property
    def in_flight(self) -> int:
        """Rollouts that this replica runs."""
        return len(self._running)

    async def execute(self, job: RolloutJob, sequence: int) -> None:
        """Handles one delivery of a request at a position of the log.

        Raises:
            RetryLater: somebody's lease is live.
        """
        outcome = await self._claims.try_claim(
            job.rollout_id, self._owner, self._times.lease_seconds
        )
        if isinstance(outcome, Expired):
            outcome = await self._claims.take_over(job.rollout_id, self._owner)
        match outcome:
            case Acquired(claim=claim):
                lease = Lease(
                    self._claims, claim, renew_seconds=self._times.renew_seconds, clock=self._clock
                )
                await self._run_claimed(job, lease, sequence)
            case Held(remaining_seconds=remaining):
                raise RetryLater(remaining + 0.5, "another replica's lease is live")
            case Committed(claim=claim) if claim.lease_deadline > self._clock():
                # It is being told right now.
                raise RetryLater(claim.lease_deadline - self._clock() + 0.5, "just committed")
            case Committed(claim=claim) | Lost(claim=claim):
                await self._report_lost(job, claim.epoch, sequence)

    async def drain(self, grace_seconds: float) -> None:
        """Lets rollouts finish for a while; the rest end as cancelled, to be tried again elsewhere."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=grace_seconds)
        for rollout_id, task in list(self._running.items()):
            self._drained.add(rollout_id)
            task.cancel("drain")

    async def _report_lost(self, job: RolloutJob, epoch: int, sequence: int) -> None:
        """Tells that the executor is gone, unless the end of the attempt was told already."""
        if await self._reporter.has_ended(job, sequence):
            return
        lost = failure(
            FailureKind.EXECUTOR_LOST,
            "the replica that ran the attempt stopped renewing its lease",
            retryable=True,
        )
        await self._reporter.failed(job, epoch, lost)
        _LOG.warning("executor lost", extra={"rollout_id": job.rollout_id, "epoch": epoch})

    async def _run_claimed(self, job: RolloutJob, lease: Lease, sequence: int) -> None:
        try:
            given_up = await self._given_up(job, sequence)
            result = None if given_up else await self._attempt(job, lease)
            await lease.commit()
        except ClaimLost as lost:
            self._dropped.add(1)
            _LOG.warning(
                "result dropped: the rollout was taken over",
                extra={"rollout_id": job.rollout_id, "epoch": lease.epoch, "detail": str(lost)},
            )
            return
        if result is None:
            return
        if await self._given_up(job, sequence):
            self._dropped.add(1)
            return
        if isinstance(result, Failure):
            await self._reporter.failed(job, lease.epoch, result)
        else:
            await self._reporter.finished(job, lease.epoch, result)

    async def _given_up(self, job: RolloutJob, sequence: int) -> bool:
        """Looks whether the learner has ended the attempt; the stream's own check forgets.

        Nobody but the holder of the claim tells a finished end, so failures are all there can be.
        """
        try:
            given_up = await self._reporter.was_given_up(job, sequence)
        except HoneError as error:
            # The log is away. An end that is told twice is told apart by its id.
            _LOG.warning(
                "cannot look for an end",
                extra={"rollout_id": job.rollout_id, "error": error.message},
            )
            return False
        if given_up:
            _LOG.warning("attempt was ended by others", extra={"rollout_id": job.rollout_id})
        return given_up

    async def _attempt(self, job: RolloutJob, lease: Lease) -> RolloutRecord | Failure:
        """Runs the episode under a span and a kept lease, and turns every error into a failure.

        Raises:
            ClaimLost: somebody else has taken the rollout over.
        """
        with self._tracer.start_as_current_span(
            attributes.SPAN_INVOKE_AGENT, attributes=_span_attributes(job)
        ) as span:
            task = asyncio.get_running_loop().create_task(self._bounded(job, lease))
            self._running[job.rollout_id] = task
            try:
                async with _kept(lease, task):
                    record = await task
            except ClaimLost:
                span.set_status(Status(StatusCode.ERROR, "taken over"))
                raise
            except asyncio.CancelledError:
                if job.rollout_id not in self._drained:
                    raise
                failed = failure(
                    FailureKind.CANCELLED, "the replica was told to stop", retryable=True
                )
            except FailedPrecondition as error:
                if error.reason == "EPOCH_OLD":
                    raise ClaimLost(error.message) from error
                failed = failure_of(error)
            except Exception as error:  # Whatever it is, the attempt ends with it, as data.
                failed = failure_of(error)
                _log_failure(job, failed, error)
            else:
                span.set_attribute(attributes.STOP_REASON, record.stop_reason.value)
                return record
            finally:
                self._running.pop(job.rollout_id, None)
                self._drained.discard(job.rollout_id)
            span.set_attribute(attributes.ERROR_KIND, failed.kind.value)
            span.set_status(Status(StatusCode.ERROR, failed.detail))
            return failed

    async def _bounded(self, job: RolloutJob, lease: Lease) -> RolloutRecord:
        """Runs the episode; whatever hangs in it, a model that never opens too, ends with the deadline.

        Raises:
            DeadlinePassedError: it did not end by itself.
        """
        left = job.deadline - self._clock() + OVERRUN_SECONDS
        try:
            async with asyncio.timeout(left) as limit:
                return await self._episode(job, lease)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlinePassedError("the deadline passed and the rollout did not end") from error

    async def _episode(self, job: RolloutJob, lease: Lease) -> RolloutRecord:
        start = self._now()
        async with AsyncExitStack() as stack:
            parser = _parser(job)
            definitions = await self._definitions(job)
            engine = await self._engine(stack, job)
            environment = await self._environment(job, lease)
            sandbox_id = environment.sandbox_id
            await self._reporter.started(job, lease.epoch, self._owner, sandbox_id)

            async def on_turn(turn: TurnRecord) -> None:
                await lease.check()
                await self._reporter.turn(job, lease.epoch, turn)

            loop = AgentLoop(
                job,
                engine=engine,
                renderer=ChatRenderer(engine.tokenizer, tool_format=job.tool_format),
                parser=parser,
                tools=definitions,
                caller=self._tools.caller(job, lease.epoch, sandbox_id, lease.check),
                on_turn=on_turn,
                clock=self._clock,
                tracer=self._tracer,
            )
            result = await loop.run()
        return RolloutRecord(
            task=job.task,
            messages=result.messages,
            tokens=result.tokens,
            stop_reason=result.stop_reason,
            sandbox_id=sandbox_id,
            sandbox_isolation=environment.isolation,
            turns=result.turns,
            grader_json=job.grader_json,
            start_time=start,
            end_time=self._now(),
        )

    async def _definitions(self, job: RolloutJob) -> tuple[ToolDefinition, ...]:
        if not job.tools:
            return ()
        try:
            return await self._tools.definitions(job.tools)
        except UnknownToolError:
            raise
        except HoneError as error:
            raise RolloutError(FailureKind.TOOL_GATEWAY, error) from error

    async def _engine(self, stack: AsyncExitStack, job: RolloutJob) -> Engine:
        try:
            return await stack.enter_async_context(
                self._policies.use(job.model, job.policy, job.adapter)
            )
        except HoneError as error:
            raise RolloutError(FailureKind.ENGINE, error) from error

    async def _environment(self, job: RolloutJob, lease: Lease) -> Environment:
        """Makes the environment; a rollout without tools needs none."""
        if not job.tools:
            return Environment()
        await lease.check()
        left = job.deadline - self._clock()
        if left <= 0:
            raise TimeoutError("the deadline passed before the sandbox was made")
        try:
            return await self._sandboxes.create(job, lease.epoch, left)
        except HoneError as error:
            if error.reason == "EPOCH_OLD":
                raise
            raise RolloutError(FailureKind.SANDBOX, error) from error

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


@asynccontextmanager
async def _kept(lease: Lease, work: "asyncio.Task[RolloutRecord]") -> AsyncIterator[None]:
    """Renews the lease beside the work; a lost lease ends the work at once."""
    keeper = asyncio.get_running_loop().create_task(lease.keep())
    keeper.add_done_callback(lambda done: work.cancel("claim lost") if _lost(done) else None)
    try:
        yield
    except asyncio.CancelledError:
        if _lost(keeper):
            error = keeper.exception()
            assert error is not None
            raise error from None
        work.cancel()
        raise
    finally:
        keeper.cancel()


def _lost(keeper: "asyncio.Task[None]") -> bool:
    return keeper.done() and not keeper.cancelled() and keeper.exception() is not None


def _parser(job: RolloutJob) -> ToolCallParser:
    try:
        return make_parser(job.tool_format)
    except ValueError as error:
        raise RolloutError(FailureKind.BAD_TASK, InvalidArgument(str(error))) from error


def _log_failure(job: RolloutJob, failed: Failure, error: Exception) -> None:
    """Logs a failure in a line; a defect of ours with its traceback."""
    defect = failed.kind is FailureKind.INTERNAL
    _LOG.warning(
        "rollout failed",
        exc_info=error if defect else None,
        extra={
            "rollout_id": job.rollout_id,
            "kind": failed.kind.value,
            "retryable": failed.retryable,
            "detail": failed.detail,
        },
    )


def _span_attributes(job: RolloutJob) -> dict[str, str | int]:
    return {
        attributes.GEN_AI_OPERATION: attributes.SPAN_INVOKE_AGENT,
        attributes.GEN_AI_MODEL: job.model.path,
        attributes.ROLLOUT_ID: job.rollout_id,
        attributes.RUN_ID: job.run_id,
        attributes.TASK_ID: job.task.task_id,
        attributes.STEP: job.slot.step,
        attributes.GROUP_INDEX: job.slot.group_index,
        attributes.SAMPLE_INDEX: job.slot.sample_index,
        attributes.ATTEMPT: job.attempt,
        attributes.POLICY_VERSION: job.policy.version,
    }
