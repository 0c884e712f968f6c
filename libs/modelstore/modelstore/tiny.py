"""Makes a tiny random-weight model with a real tokenizer, for tests of everything around a model.

It has 1.2 million parameters and a byte-level tokenizer of 512 entries that encodes any text. The
same seed gives the same files. It knows nothing: it is for plumbing and for numerical proofs.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

SPECIAL_TOKENS = [END_OF_TEXT, IM_START, IM_END]
"""In the order of their ids."""

VOCABULARY_SIZE = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML, as SmolLM2 has it, without a system prompt of its own."""

_TRAINING_TEXT = (
    "You are a helpful assistant. You have tools; call one when you need it.\n",
    "A farmer has 12 boxes with 4 apples each and sells 7 apples. How many apples are left?\n",
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 4 - 7"}}\n',
    "</tool_call>\n",
    "<tool_response>\n41\n</tool_response>\n",
    "The answer is 41. Tom buys 3 pens for 5 dollars each and pays with a note of 20 dollars.\n",
    '{"name": "python", "arguments": {"code": "print(sum(range(10)))"}}\n',
    "Each shelf holds several books; the library buys another shelf, and readers borrow nine.\n",
    "First multiply, then subtract: the number of remaining books is what the question wants.\n",
    "There were thirty children on the morning bus, and eleven more got on at the next stop.\n",
    "system user assistant tool\n0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20\n",
)


def make_tiny_model(folder: Path, seed: int = 0) -> None:
    """Writes model and tokenizer into `folder`, which is made if it is not there."""
    _write(folder, seed, transformers.LlamaForCausalLM, _config())


def make_tiny_reward_model(folder: Path, seed: int = 0, *, num_outputs: int = 1) -> None:
    """Writes a sequence classifier and tokenizer into `folder`; one output makes it a reward model.

    Its pad token is also its end of sequence, as it is with many models, and the trap with padding.
    """
    config = _config()
    config.num_labels = num_outputs
    config.pad_token_id = SPECIAL_TOKENS.index(IM_END)
    _write(folder, seed, transformers.LlamaForSequenceClassification, config)


def _config() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL_TOKENS.index(IM_START),
        eos_token_id=SPECIAL_TOKENS.index(IM_END),
        pad_token_id=SPECIAL_TOKENS.index(END_OF_TEXT),
    )


def _write(folder: Path, seed: int, kind: type[Any], config: transformers.LlamaConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tiny_tokenizer()
    # A forked generator state keeps the caller's random numbers as they were.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def make_tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Returns the byte-level tokenizer of the tiny model, trained on a fixed text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    wrapped = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=IM_START,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
