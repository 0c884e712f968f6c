"""Finds what an estimate needs: lengths of rows in tokens, the model's size, and how fast earlier runs were."""

import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hone.learner.v1 import learner_pb2
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from hone_cli.addresses import AddressBook
from hone_cli.errors import CliError
from hone_cli.estimate import Inputs, Lengths, Prices, Speed
from hone_cli.jobs import DataFile, Job, refused
from hone_cli.queries import get_run, list_runs
from modelstore.shape import model_shape, open_tokenizer
from runspec.preferences import parse_preferences
from runspec.rows import parse_tasks
from runspec.schema import REINFORCEMENT, RunSpec
from runspec.sft_rows import parse_sft_rows
from servicekit.channels import connect
from servicekit.errors import HoneError
from trajectory.convert import tool_definition_from_proto
from trajectory.plaintext import render_text
from trajectory.rendering import ChatRenderer, with_system_prompt
from trajectory.types import ChatMessage, ToolDefinition

MAX_ROWS_READ = 2000
"""Of larger sets a sample is looked at."""
_MAX_RUNS = 100
_MAX_STEPS_BACK = 50


async def inputs_of(job: Job, book: AddressBook, prices: Prices) -> tuple[Inputs, list[str]]:
    """Finds everything that is at hand, and says in words what is not."""
    spec, missing = job.run.spec, list[str]()
    shape, lengths = None, dict[str, Lengths]()
    tools = await _tools(job, book)
    if spec.model.adapter:
        missing.append(
            "whether model.adapter is there, and its shape, is for the learner to say at the start; "
            f"here its rank counts as {spec.lora.new_rank}"
        )
    try:
        caches = _caches(book)
        shape = model_shape(spec.model.path, caches)
        row_length = _row_length(spec, open_tokenizer(spec.model.path, caches), tools or {})
        for file in (job.train, job.eval):
            if file is not None:
                lengths[file.field] = _lengths(spec, file, row_length)
    except (ValueError, OSError) as error:  # no model, or one that cannot lay the rows out
        missing.append(f"the model was not looked at: {error}")
    tasks = job.eval.row_count if job.eval is not None else 0
    limit = spec.eval.max_tasks
    return (
        Inputs(
            spec=spec,
            train=lengths.get("data.train"),
            eval=lengths.get("data.eval"),
            num_eval_tasks=min(tasks, limit) if limit else tasks,
            shape=shape,
            speed=await _speed(spec, book),
            prices=prices,
            num_cores=os.cpu_count() or 1,
            tools_counted=tools is not None,
        ),
        missing,
    )


def _caches(book: AddressBook) -> list[Path]:
    """Where services of a local suite keep models that they converted."""
    file = book.endpoints_file()
    folders = [file.parent, *(file.parent / "data").glob("*")] if file is not None else []
    return [folder / "models" for folder in folders]


def _row_length(
    spec: RunSpec, tokenizer: Any, tools: Mapping[str, ToolDefinition]
) -> Callable[[Any], int]:
    """Returns what counts the tokens of a row as the run lays it out; of a task, those of its prompt."""
    named = tuple(tools.values())
    renderers: list[ChatRenderer] = []

    def renderer() -> ChatRenderer:
        # Plain texts need no chat template.
        if not renderers:
            renderers.append(ChatRenderer(tokenizer, tool_format=spec.rollout.tool_format))
        return renderers[0]

    def laid_out(messages: Sequence[ChatMessage], own: Sequence[ToolDefinition]) -> int:
        if spec.algorithm == "reward_model":
            return len(renderer().conversation(messages).token_ids)
        whole = with_system_prompt(messages, spec.rollout.system_prompt)
        return sum(len(r.token_ids) for r in renderer().render_conversation(whole, own or named))

    def length(row: Any) -> int:
        if spec.rolls_out:
            whole = with_system_prompt(row.messages, spec.rollout.system_prompt)
            return len(renderer().initial_ids(whole, named))
        if spec.compares:
            sides = ((*row.prompt, *side) for side in (row.chosen, row.rejected))
            return sum(laid_out(side, row.tools) for side in sides)
        if row.text:
            return len(render_text(tokenizer, row.text).token_ids)
        return laid_out(row.messages, row.tools)

    return length


def _lengths(spec: RunSpec, file: DataFile, row_length: Callable[[Any], int]) -> Lengths:
    source, rows = str(file.path), list[Any]()
    if spec.algorithm == "sft":
        rows += parse_sft_rows(file.data, source=source)
    elif spec.compares:
        rows += parse_preferences(file.data, source=source)
    else:
        rows += parse_tasks(file.data, source=source, required=set())
    if file.field == "data.eval" and spec.eval.max_tasks:
        rows = rows[: spec.eval.max_tasks]
    num_rows = len(rows)
    if num_rows > MAX_ROWS_READ:
        rows = random.Random(0).sample(rows, MAX_ROWS_READ)
    return Lengths(tokens=[row_length(row) for row in rows], num_rows=num_rows)


async def _tools(job: Job, book: AddressBook) -> dict[str, ToolDefinition] | None:
    """The tools that the run names, as the gateway describes them; None where it cannot be asked.

    Raises:
        CliError: the gateway does not have one of them.
    """
    wanted, found = job.run.spec.rollout.tools, dict[str, ToolDefinition]()
    if not wanted:
        return found
    try:
        async with connect(
            book.find("tool_gateway", own=False), default_timeout_seconds=10
        ) as open_:
            stub = tool_gateway_pb2_grpc.ToolGatewayServiceStub(open_)
            page = await stub.ListTools(tool_gateway_pb2.ListToolsRequest(page_size=1000))
    except (CliError, HoneError):
        return None
    by_name = {tool.name: tool_definition_from_proto(tool) for tool in page.tools}
    known = ", ".join(sorted(by_name)) or "no tool"
    problems = [
        job.run.problem("rollout.tools", f"{name!r} is unknown; the gateway has {known}")
        for name in wanted
        if name not in by_name
    ]
    if problems:
        raise refused(problems)
    return {name: by_name[name] for name in wanted}


async def _speed(spec: RunSpec, book: AddressBook) -> Speed | None:
    """The newest run of the same kind and model that has figures; None where there is none, or no learner."""
    try:
        for run in await list_runs(book, _MAX_RUNS):
            if run.spec.model.path == spec.model.path and _alike(run.spec.algorithm, spec):
                reply = await get_run(run.run_id, book)
                found = speed_of(reply)
                if found is not None:
                    return found
    except CliError:
        return None
    return None


def _alike(algorithm: str, spec: RunSpec) -> bool:
    return algorithm in REINFORCEMENT if spec.rolls_out else algorithm == spec.algorithm


def speed_of(reply: learner_pb2.GetRunResponse) -> Speed | None:
    """What the steps of a run took, by the median step; None where they do not say."""
    run, steps = reply.run, [dict(step.metrics) for step in reply.steps[-_MAX_STEPS_BACK:]]
    rolled = [
        (
            step["rollouts/ok"] * step["completions/mean_length"],
            step["time/rollout_seconds"],
            step["time/train_seconds"],
            step["completions/mean_length"],
        )
        for step in steps
        if step.get("rollouts/ok")
        and step.get("completions/mean_length")
        and "time/rollout_seconds" in step
    ]
    if rolled:
        return Speed(
            run_id=run.run_id,
            tokens_per_rollout=statistics.fmean(mean for *_, mean in rolled),
            rollout_seconds_per_token=statistics.median(r / n for n, r, _, _ in rolled),
            train_seconds_per_token=statistics.median(t / n for n, _, t, _ in rolled),
        )
    rows = [step["time/train_seconds"] for step in steps if "time/train_seconds" in step]
    if rows and run.spec.train.batch_size:
        each = statistics.median(rows) / run.spec.train.batch_size
        return Speed(run_id=run.run_id, train_seconds_per_row=each)
    return None
