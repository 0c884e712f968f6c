"""Asking a real local server that speaks the chat completions API, well and badly."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from critic.judging import Critic
from critic.questions import AnswerForm, LabelKind, PairwiseKind, Question, ScoreKind
from servicekit.errors import HoneError
from trajectory.types import ChatMessage, Role

MakeCritic = Callable[..., Critic]


def question(**changes: Any) -> Question:
    asked = ChatMessage(role=Role.USER, content=("How good is this poem?",))
    return Question(**{"messages": (asked,), "kind": ScoreKind(), **changes})


async def failure(critic: Critic, asked: Question | None = None, seconds: float = 5.0) -> HoneError:
    with pytest.raises(HoneError) as caught:
        await critic.judge(asked or question(), seconds=seconds)
    return caught.value


async def test_verdict_comes_with_what_the_endpoint_said(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = ["It rhymes.\nScore: 0.75"]
    found = await make_critic().judge(question(seed=5, temperature=0.5), seconds=5)
    assert (found.verdict, found.reasoning, found.model) == (0.75, "It rhymes.", "judge-model")
    assert (found.input_tokens, found.output_tokens, found.num_tries) == (7, 3, 1)
    assert found.text == "It rhymes.\nScore: 0.75"
    sent = endpoint.requests[0]
    assert (sent["model"], sent["seed"], sent["temperature"], sent["max_tokens"]) == (
        "judge-model",
        5,
        0.5,
        64,
    )
    assert sent["messages"][0]["content"].startswith("How good is this poem?\n\nEnd your reply")
    assert "response_format" not in sent


async def test_as_asked_sends_the_messages_and_nothing_else(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = ["1"]
    await make_critic().judge(question(form=AnswerForm.AS_ASKED, model="other"), seconds=5)
    assert endpoint.keys == ["Bearer none"]
    assert endpoint.requests == [
        {
            "messages": [{"role": "user", "content": "How good is this poem?"}],
            "model": "other",
            "temperature": 0.0,
            "max_tokens": 64,
        }
    ]


async def test_instruction_is_a_message_of_its_own_after_one_that_is_not_the_users(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    answer = ChatMessage(role=Role.ASSISTANT, content=("A poem.",))
    await make_critic().judge(question(messages=(*question().messages, answer)), seconds=5)
    assert [m["role"] for m in endpoint.requests[0]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"error": {"message": "slow down"}}),
        (500, {"error": {"message": "oops"}}),
        (503, {}),
        (408, {}),
        {"error": {"message": "upstream is overloaded", "code": 502}},
        {"choices": []},
        {"choices": None},
        {"choices": [{"message": None}]},
        {},
        [],
        "cut",
        "drop",
        "{not json",
        "<html>Bad Gateway</html>",
        "[" * 100_000,
    ],
    ids=lambda trouble: str(trouble)[:24],
)
async def test_endpoint_that_failed_is_asked_again(
    endpoint: Any, make_critic: MakeCritic, waits: Any, trouble: Any
) -> None:
    if trouble in ("cut", "drop"):
        trouble = getattr(endpoint, trouble)
    elif isinstance(trouble, str):
        trouble = endpoint.body(trouble)
    elif isinstance(trouble, list):
        trouble = endpoint.body("[]")
    endpoint.script = [trouble, trouble, "Score: 1"]
    found = await make_critic().judge(question(), seconds=5)
    assert (found.verdict, found.num_tries, len(endpoint.requests)) == (1.0, 3, 3)
    first, second = waits.seconds
    assert 0.25 <= first <= 0.5 <= second <= 1.0


async def test_endpoint_that_stays_broken_is_unavailable_after_the_last_try(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = [(500, {"error": {"message": "out of memory"}})]
    error = await failure(make_critic())
    assert (error.code, error.reason, error.retryable) == ("UNAVAILABLE", "JUDGE_UNAVAILABLE", True)
    assert error.retry_after_seconds is not None
    assert "out of memory" in error.message and "tries: 3" in error.message
    assert len(endpoint.requests) == 3


async def test_endpoint_that_is_not_there_is_unavailable(make_critic: MakeCritic) -> None:
    error = await failure(make_critic(url="http://127.0.0.1:9/v1"))
    assert error.reason == "JUDGE_UNAVAILABLE"
    assert "http://127.0.0.1:9/v1 gave no answer: ConnectError" in error.message


async def test_next_try_is_not_sooner_than_the_endpoint_asks(
    endpoint: Any, make_critic: MakeCritic, waits: Any
) -> None:
    endpoint.script = [(429, {}, {"Retry-After": "3"}), (503, {}, {"Retry-After": "2.5"}), "1"]
    await make_critic().judge(question(), seconds=60)
    assert waits.seconds == [3.0, 2.5]


async def test_wait_past_the_deadline_is_not_begun_and_the_caller_is_told_when_to_come_back(
    endpoint: Any, make_critic: MakeCritic, waits: Any
) -> None:
    endpoint.script = [(429, {"error": {"message": "slow down"}}, {"Retry-After": "30"})]
    error = await failure(make_critic(), seconds=5)
    assert (error.reason, error.retry_after_seconds) == ("JUDGE_UNAVAILABLE", 30.0)
    assert waits.seconds == []


async def test_judge_that_hangs_is_a_timeout_and_its_request_is_cancelled(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = [endpoint.hang]
    seconds = 0.3
    while not endpoint.hanging.is_set():  # where this machine is slow, the deadline may come first
        error = await failure(make_critic(), seconds=seconds)
        assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "JUDGE_TIMEOUT")
        assert f"the judge had not answered after {seconds:g} s" in error.message
        seconds *= 2
    async with asyncio.timeout(5):
        await endpoint.cancelled.wait()


async def test_deadline_that_passes_in_the_queue_is_a_timeout_that_says_so(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = [endpoint.hang]
    critic = make_critic(max_in_flight=1)
    first = asyncio.ensure_future(critic.judge(question(), seconds=30))
    async with asyncio.timeout(5):
        await endpoint.hanging.wait()
    error = await failure(critic, seconds=0.1)
    first.cancel()
    assert error.reason == "JUDGE_TIMEOUT"
    assert "no turn to ask had come" in error.message


@pytest.mark.parametrize(
    "changes",
    [
        {"message": {"content": None, "refusal": "I will not judge this."}},
        {"message": {"content": "Score: 1", "refusal": "I will not judge this."}},
        {"choice": {"finish_reason": "content_filter"}},
    ],
)
async def test_refusal_is_told_apart(
    endpoint: Any, make_critic: MakeCritic, complete: Any, changes: dict[str, Any]
) -> None:
    endpoint.script = [complete("", **changes)]
    error = await failure(make_critic())
    assert (error.code, error.reason, error.retryable) == (
        "PERMISSION_DENIED",
        "JUDGE_REFUSED",
        False,
    )
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that.",
        "I cannot evaluate this.",
        "I am unable to judge such content.",
        "Sorry, I won't rate this response.",
    ],
)
async def test_refusal_in_so_many_words_is_a_refusal(
    endpoint: Any, make_critic: MakeCritic, text: str
) -> None:
    endpoint.script = [text]
    assert (await failure(make_critic())).reason == "JUDGE_REFUSED"


async def test_content_filter_of_the_endpoint_is_a_refusal(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = [(400, {"error": {"code": "content_filter", "message": "filtered"}})]
    error = await failure(make_critic())
    assert (error.reason, "filtered" in error.message) == ("JUDGE_REFUSED", True)


@pytest.mark.parametrize(
    "text",
    ["", "Hard to say.", '{"scores": []}', "Score: 7", "I cannot find a fault, it is a fine poem."],
)
async def test_reply_without_a_verdict_is_unparsable_and_never_a_score(
    endpoint: Any, make_critic: MakeCritic, text: str
) -> None:
    endpoint.script = [text]
    error = await failure(make_critic())
    assert (error.code, error.reason, error.retryable) == ("ABORTED", "JUDGE_UNPARSABLE", True)
    assert repr(text) in error.message
    assert len(endpoint.requests) == 1


async def test_reply_that_was_cut_off_is_unparsable_whatever_it_says(
    endpoint: Any, make_critic: MakeCritic, complete: Any
) -> None:
    endpoint.script = [complete("Score: 1", choice={"finish_reason": "length"})]
    error = await failure(make_critic())
    assert error.reason == "JUDGE_UNPARSABLE"
    assert "cut off after 3 tokens" in error.message


async def test_reply_beyond_all_measure_is_unparsable(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = ["x" * 2_000_000]
    error = await failure(make_critic())
    assert (error.reason, len(error.message) < 1000) == ("JUDGE_UNPARSABLE", True)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_apart_from_the_text_is_reasoning_and_no_verdict(
    endpoint: Any, make_critic: MakeCritic, complete: Any, field: str
) -> None:
    thinking = {"message": {field: "Score: 0.1? No."}}
    endpoint.script = [complete("Score: 0.9", **thinking), complete("", **thinking)]
    critic = make_critic()
    found = await critic.judge(question(), seconds=5)
    assert (found.verdict, found.reasoning) == (0.9, "Score: 0.1? No.")
    assert (await failure(critic)).reason == "JUDGE_UNPARSABLE"


@pytest.mark.parametrize(
    ("status", "body", "reason", "named"),
    [
        (401, {"error": {"message": "bad key"}}, "JUDGE_MISCONFIGURED", "HONE_CRITIC_API_KEY_FILE"),
        (403, {"error": {"message": "not you"}}, "JUDGE_MISCONFIGURED", "HONE_CRITIC_API_KEY_FILE"),
        (402, {"error": {"message": "pay first"}}, "JUDGE_MISCONFIGURED", "pay first"),
        (404, {"error": {"message": "no model"}}, "JUDGE_MISCONFIGURED", "'judge-model'"),
        (405, {}, "JUDGE_MISCONFIGURED", "HONE_CRITIC_ENDPOINT_URL"),
        (429, {"error": {"code": "insufficient_quota"}}, "JUDGE_MISCONFIGURED", "used up"),
        (400, {"error": {"message": "too long: 9000 tokens"}}, "JUDGE_REJECTED", "9000 tokens"),
        (422, {"detail": "bad field"}, "JUDGE_REJECTED", "bad field"),
        (413, "", "JUDGE_REJECTED", "413"),
    ],
)
async def test_endpoint_that_will_not_is_not_asked_again(
    endpoint: Any, make_critic: MakeCritic, status: int, body: Any, reason: str, named: str
) -> None:
    endpoint.script = [(status, body)]
    error = await failure(make_critic())
    assert (error.reason, error.retryable) == (reason, False)
    assert named in error.message
    assert len(endpoint.requests) == 1


async def test_key_is_read_from_its_file_for_every_question_and_never_told(
    endpoint: Any, make_critic: MakeCritic, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-first\n", encoding="utf-8")
    critic = make_critic(api_key_file=file)
    await critic.judge(question(), seconds=5)
    file.write_text("sk-second", encoding="utf-8")
    endpoint.script = [(401, {"error": {"message": "bad key"}})]
    error = await failure(critic)
    assert endpoint.keys == ["Bearer sk-first", "Bearer sk-second"]
    assert "sk-" not in error.message


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_key_file_that_holds_none_is_named(
    endpoint: Any, make_critic: MakeCritic, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    error = await failure(make_critic(api_key_file=file))
    assert error.reason == "JUDGE_MISCONFIGURED"
    assert "HONE_CRITIC_API_KEY_FILE" in error.message and str(file) in error.message
    assert endpoint.requests == []


async def test_question_without_any_model_names_the_setting(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    error = await failure(make_critic(model=""))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "JUDGE_UNCONFIGURED")
    assert "HONE_CRITIC_MODEL" in error.message


async def test_json_form_asks_for_the_schema_of_the_kind(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    endpoint.script = ['{"reasoning": "ok", "label": "good"}', '{"reasoning": "ok", "winner": "B"}']
    critic = make_critic()
    kind = LabelKind(labels=("good", "bad"))
    found = await critic.judge(question(kind=kind, form=AnswerForm.JSON), seconds=5)
    pair = await critic.judge(question(kind=PairwiseKind(), form=AnswerForm.JSON), seconds=5)
    assert (found.verdict, found.reasoning, pair.verdict) == ("good", "ok", "B")
    form = endpoint.requests[0]["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"]["properties"]["label"]["enum"] == ["good", "bad"]
    assert form["json_schema"]["schema"]["required"] == ["reasoning", "label"]
    assert 'one of "good", "bad"' in endpoint.said(0)


async def test_endpoint_that_rejects_response_format_is_asked_without_it_from_then_on(
    endpoint: Any, make_critic: MakeCritic, waits: Any
) -> None:
    message = "'response_format' of type 'json_schema' is not supported with this model"
    rejection = (400, {"error": {"message": message, "param": "response_format"}})
    endpoint.script = [rejection, '{"score": 0.5}', '{"score": 1}']
    critic = make_critic()
    first = await critic.judge(question(form=AnswerForm.JSON), seconds=5)
    second = await critic.judge(question(form=AnswerForm.JSON), seconds=5)
    assert (first.verdict, second.verdict) == (0.5, 1.0)
    assert ["response_format" in sent for sent in endpoint.requests] == [True, False, False]
    assert waits.seconds == []


async def test_endpoint_that_wants_max_completion_tokens_gets_them(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    endpoint.script = [(400, {"error": {"message": message, "param": "max_tokens"}}), "1"]
    found = await make_critic().judge(question(), seconds=5)
    assert found.verdict == 1.0
    assert endpoint.requests[1]["max_completion_tokens"] == 64
    assert "max_tokens" not in endpoint.requests[1]


async def test_endpoint_that_rejects_everything_is_not_asked_for_ever(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    message = "neither response_format nor max_completion_tokens nor max_tokens"
    endpoint.script = [(400, {"error": {"message": message}})]
    error = await failure(make_critic(), question(form=AnswerForm.JSON))
    assert error.reason == "JUDGE_REJECTED"
    assert len(endpoint.requests) == 3


async def test_no_more_questions_are_asked_at_once_than_allowed(
    endpoint: Any, make_critic: MakeCritic
) -> None:
    inside, most = 0, 0
    full, release = asyncio.Event(), asyncio.Event()

    async def hold(request: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 2:
            full.set()
        await release.wait()
        inside -= 1
        return await endpoint.body('{"choices": [{"message": {"content": "1"}}]}')(request)

    endpoint.script = [hold]
    critic = make_critic(max_in_flight=2)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(critic.judge(question(), seconds=20)) for _ in range(6)]
        await full.wait()
        release.set()
    assert {task.result().verdict for task in asked} == {1.0}
    assert most == 2
