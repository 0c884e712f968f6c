"""One forward pass over the new tokens of many sequences, through a transformers model.

The model's own code runs on all new tokens laid end to end; its attention is ours, over the rows.
Any architecture whose attention transformers lets one exchange works; sliding windows do not.
"""

from pathlib import Path
from typing import Any

import torch
import transformers

from rollout.engines.base import EngineError
from rollout.engines.batching.rows import Rows, Step
from rollout.engines.batching.weights import DTYPES, SwitchedWeights, WeightSet


class RowModel:
    """A causal language model that reads steps; all calls come from one thread."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Opens the model.

        Raises:
            EngineError: it cannot be opened or has attention that rows cannot hold.
        """
        if dtype not in DTYPES:
            raise EngineError(f"model.dtype: {dtype!r} is unknown; one of float32, bfloat16")
        self.dtype = DTYPES[dtype]
        name = f"hone_rows_{id(self)}"
        # A service logs lines; bars are for people at a terminal.
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        transformers.AttentionInterface.register(name, self._attend)
        try:
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=self.dtype, attn_implementation=name, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as err:
            raise EngineError(f"model folder {folder} cannot be opened: {err}") from err
        config = model.config
        _check_attention(config, folder)
        model.eval()
        model.requires_grad_(False)
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_key_value_heads or config.num_attention_heads
        self.head_size: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.max_context: int = config.max_position_embeddings
        self.weights = SwitchedWeights(model)
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._current: tuple[Rows, Step] | None = None

    def make_rows(self, max_rows: int) -> Rows:
        """Makes buffers for the sequences of one policy."""
        return Rows(
            layers=self.layers,
            heads=self.heads,
            head_size=self.head_size,
            max_rows=max_rows,
            dtype=self.dtype,
        )

    def forward(self, weights: WeightSet, rows: Rows, step: Step) -> torch.Tensor:
        """Reads a step's tokens and returns each row's next-token logits, float32 [B, V].

        Called in inference mode.
        """
        self.weights.activate(weights)
        self._current = (rows, step)
        try:
            hidden = self._decoder(
                input_ids=step.input_ids_1N, position_ids=step.position_ids_1N, use_cache=False
            ).last_hidden_state
            logits: torch.Tensor = self._head(hidden[0].index_select(0, step.last_B))
            return logits.float()
        finally:
            self._current = None

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        if self._current is None:
            raise EngineError("attention ran outside a step")
        rows, step = self._current
        scale = self.head_size**-0.5 if scaling is None else scaling
        mixed = rows.attend(step, module.layer_idx, query, key, value, scale)
        return mixed.unsqueeze(0), None


def _check_attention(config: Any, folder: Path) -> None:
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    other = sorted(kinds - {"full_attention"})
    if other:
        raise EngineError(
            f"model folder {folder}: layers of type {', '.join(other)}; this engine has "
            "full attention only, use engine vllm"
        )
