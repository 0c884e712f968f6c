"""Messages of the critic to and from domain types."""

import math
import re

from hone.common.v1 import message_pb2
from hone.critic.v1 import critic_pb2 as pb

from critic.questions import (
    AnswerForm,
    BinaryKind,
    Judgement,
    Kind,
    LabelKind,
    PairwiseKind,
    Question,
    ScoreKind,
    Winner,
)
from servicekit.errors import InvalidArgument
from trajectory.convert import enum_from_proto
from trajectory.types import ChatMessage, Role

_FORMS = {
    pb.ANSWER_FORM_UNSPECIFIED: AnswerForm.LINE,
    pb.ANSWER_FORM_LINE: AnswerForm.LINE,
    pb.ANSWER_FORM_JSON: AnswerForm.JSON,
    pb.ANSWER_FORM_AS_ASKED: AnswerForm.AS_ASKED,
}
_WINNERS = {
    Winner.A: pb.PAIRWISE_WINNER_A,
    Winner.B: pb.PAIRWISE_WINNER_B,
    Winner.TIE: pb.PAIRWISE_WINNER_TIE,
}
MAX_SEED = 2**63 - 1
MAX_LABELS = 256


def question_from_proto(request: pb.JudgeRequest) -> Question:
    """Convert a question.

    Raises:
        InvalidArgument: names the field, what was found and what would be right.
    """
    if not request.messages:
        raise _wrong("messages", "found none, at least one is right")
    sampling = request.sampling
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise _wrong("sampling.temperature", f"found {sampling.temperature}, 0 or more is right")
    if sampling.max_tokens < 0:
        raise _wrong("sampling.max_tokens", f"found {sampling.max_tokens}, 0 or more is right")
    if sampling.seed > MAX_SEED:
        raise _wrong("sampling.seed", f"found {sampling.seed}, at most {MAX_SEED} is right")
    if request.answer_form not in _FORMS:
        raise _wrong("answer_form", f"found {request.answer_form}, 0 to 3 is right")
    return Question(
        messages=tuple(_message(i, message) for i, message in enumerate(request.messages)),
        kind=_kind(request),
        model=request.model,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed if sampling.HasField("seed") else None,
        form=_FORMS[request.answer_form],
        run_id=request.run_id,
    )


def judgement_to_proto(judgement: Judgement) -> pb.JudgeResponse:
    """Convert a judgement."""
    response = pb.JudgeResponse(
        reasoning=judgement.reasoning,
        model=judgement.model,
        usage=pb.TokenUsage(
            input_token_count=judgement.input_tokens, output_token_count=judgement.output_tokens
        ),
        text=judgement.text,
        contradicted=judgement.contradicted,
        try_count=judgement.num_tries,
    )
    verdict = judgement.verdict
    if isinstance(verdict, Winner):
        response.winner = _WINNERS[verdict]
    elif isinstance(verdict, bool):
        response.passed = verdict
    elif isinstance(verdict, str):
        response.label = verdict
    else:
        response.score = verdict
    return response


def _kind(request: pb.JudgeRequest) -> Kind:
    match request.WhichOneof("kind"):
        case "score":
            return _score_kind(request.score)
        case "label":
            return _label_kind(request.label)
        case "pairwise":
            return PairwiseKind(ties_allowed=request.pairwise.ties_allowed)
        case "binary":
            return BinaryKind()
        case _:
            raise _wrong("kind", "found none; score, label, pairwise or binary is right")


def _score_kind(kind: pb.ScoreKind) -> ScoreKind:
    low, high = (0.0, 1.0) if kind.low == kind.high == 0 else (kind.low, kind.high)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _wrong("score.high", f"found {high:g}, a finite number above low ({low:g}) is right")
    return ScoreKind(low=low, high=high)


def _label_kind(kind: pb.LabelKind) -> LabelKind:
    labels = tuple(kind.labels)
    if not 2 <= len(labels) <= MAX_LABELS:
        raise _wrong("label.labels", f"found {len(labels)}, 2 to {MAX_LABELS} are right")
    if not all(label.strip() and len(label) <= 200 and "\n" not in label for label in labels):
        raise _wrong("label.labels", "each is right as one line of 1 to 200 characters")
    folded = [re.sub(r"(?<=\w)[\s_-]+(?=\w)", "", label.strip().casefold()) for label in labels]
    twice = [label for label, fold in zip(labels, folded, strict=True) if folded.count(fold) > 1]
    if twice:
        text = f"found {twice[0]!r} and {twice[1]!r}, which differ in no more than case, spaces, hyphens or underscores"
        raise _wrong("label.labels", text)
    return LabelKind(labels=labels)


def _message(index: int, message: message_pb2.ChatMessage) -> ChatMessage:
    field = f"messages[{index}]"
    try:
        role = enum_from_proto(message.role, message_pb2.Role, "ROLE", Role, f"{field}.role")
    except ValueError as error:
        raise _wrong(f"{field}.role", str(error).partition(": ")[2]) from error
    if role is Role.TOOL or message.tool_calls:
        raise _wrong(field, "found a tool's message or call; a judge takes text only")
    if any(part.WhichOneof("part") != "text" for part in message.parts):
        raise _wrong(f"{field}.parts", "found an image or an empty part; a judge takes text only")
    return ChatMessage(role=role, content=("".join(part.text for part in message.parts),))


def _wrong(field: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {text}", violations={field: text})
