"""A reward model through transformers: a sequence classifier with one output, safe under padding.

transformers finds the position to score by looking for the pad token, which is wrong where the text itself ends with it
(pad = eos). Here the lengths are known: rows are padded on the right, under a mask, and a decoder is scored at its last
real token, so that a score is the same alone and in any batch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from modelstore.compute import release_memory
from rollout.reward_models import Conversation, RewardScore
from servicekit.errors import InvalidArgument
from trajectory.rendering import ChatRenderer, RenderError

MAX_TOKENS = 16_384
"""Of one forward pass, padding included."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class RewardHead:
    """One loaded reward model."""

    def __init__(self, folder: Path, dtype: str, device: str = "auto") -> None:
        """Opens the model.

        Args:
            folder: config, weights and tokenizer.
            dtype: float32 or bfloat16.
            device: cpu, cuda, or auto: a GPU if there is one.

        Raises:
            InvalidArgument: the folder holds no reward model, or the number type is unknown.
        """
        if dtype not in DTYPES:
            raise InvalidArgument(f"model.dtype: {dtype!r} is unknown; one of {', '.join(DTYPES)}")
        # What was dropped for this model gives its memory back first.
        release_memory()
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = found if device == "auto" else device
        self._model = _open(folder, DTYPES[dtype]).to(self._device)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            self._renderer = ChatRenderer(tokenizer)
        # A broken folder makes the libraries raise whatever they like.
        except Exception as err:
            raise InvalidArgument(f"reward model {folder}: {err!r}") from err
        config = self._model.config
        positions: int = getattr(config, "max_position_embeddings", None) or MAX_TOKENS
        # Some models keep positions for themselves; their tokenizer knows how many are left.
        self._max_context = min(positions, tokenizer.model_max_length)
        pad = config.pad_token_id
        self._pad_id: int = 0 if pad is None else pad

    def encode(self, conversation: Conversation) -> tuple[int, ...]:
        """Turns a conversation into ids.

        Raises:
            RenderError: the model's chat template refuses it.
        """
        ids = self._renderer.conversation(conversation).token_ids
        if not ids:
            raise RenderError("the model's chat template makes nothing of it")
        return ids

    def score(self, rows: Sequence[Sequence[int]]) -> list[RewardScore]:
        """Scores rows of ids, each as if it were alone; what a row has beyond the context is cut at its beginning."""
        kept = [row[-self._max_context :] for row in rows]
        scores = [0.0] * len(rows)
        for batch in _batches([len(row) for row in kept]):
            for index, score in zip(batch, self._forward([kept[i] for i in batch]), strict=True):
                scores[index] = score
        return [
            RewardScore(score=score, token_count=len(own), truncated=len(own) < len(row))
            for score, own, row in zip(scores, kept, rows, strict=True)
        ]

    @torch.inference_mode()
    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        lengths_B = torch.tensor([len(row) for row in rows], device=self._device)
        width = int(lengths_B.max())
        ids_BT = torch.full((len(rows), width), self._pad_id, device=self._device)
        for index, row in enumerate(rows):
            ids_BT[index, : len(row)] = torch.tensor(row, device=self._device)
        mask_BT = (torch.arange(width, device=self._device) < lengths_B[:, None]).long()
        head = getattr(self._model, "score", None)
        if head is None:
            # An encoder: its head reads a fixed position, and the mask keeps the padding out.
            logits_B1 = self._model(input_ids=ids_BT, attention_mask=mask_BT).logits
        else:
            hidden_BTD = self._model.base_model(
                input_ids=ids_BT, attention_mask=mask_BT, use_cache=False
            ).last_hidden_state
            last_BD = hidden_BTD[torch.arange(len(rows), device=self._device), lengths_B - 1]
            logits_B1 = head(last_BD)
        return [float(score) for score in logits_B1[:, 0].float().cpu()]


def _open(folder: Path, dtype: torch.dtype) -> Any:
    try:
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    # As above; also a number type or size that the machine cannot hold.
    except Exception as err:
        raise InvalidArgument(f"reward model {folder} cannot be opened: {err!r}") from err
    missing = sorted(info["missing_keys"])
    if missing:
        # transformers would fill them with random numbers.
        raise InvalidArgument(
            f"model folder {folder} holds no reward model: it lacks the weights {', '.join(missing[:5])}"
        )
    if model.config.num_labels != 1:
        raise InvalidArgument(
            f"reward model {folder}: has {model.config.num_labels} outputs, a reward model has 1 (num_labels)"
        )
    return model.eval().requires_grad_(False)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Groups rows of like length into forward passes of at most MAX_TOKENS, or of one row."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= MAX_TOKENS:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
