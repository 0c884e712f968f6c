"""Converts a GGUF file to a folder of safetensors, tokenizer and chat template.

The weights are unpacked to bfloat16, so that they can be trained and saved.
"""

from pathlib import Path
from typing import Any

import torch
import transformers


def convert_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes the model of `gguf_file` into `folder`, which exists and is empty."""
    source: dict[str, Any] = {"gguf_file": gguf_file.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf_file.parent), **source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf_file.parent),
        # Without it the weights stay packed and can neither be saved nor trained.
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        **source,
    )
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
