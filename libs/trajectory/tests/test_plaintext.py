"""Plain texts as rows: all is learned that something predicts, and then the end."""

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from modelstore.tiny import IM_END, IM_START, make_tiny_tokenizer
from trajectory.plaintext import render_text

TEXT = "The answer is 41.\n"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tiny_tokenizer()


def adding(tokenizer: PreTrainedTokenizerFast, single: str) -> PreTrainedTokenizerFast:
    """The same tokenizer, which puts special tokens around every text."""
    other = make_tiny_tokenizer()
    specials = [(name, tokenizer.convert_tokens_to_ids(name)) for name in (IM_START, IM_END)]
    other.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=specials
    )
    return other


def test_every_token_that_something_predicts_is_learned_and_the_end(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    row = render_text(tokenizer, TEXT)
    assert tokenizer.decode(row.token_ids) == TEXT + IM_END
    assert row.loss_mask == (False, *[True] * (len(row.token_ids) - 1))


@pytest.mark.parametrize("single", [f"{IM_START} $A", f"{IM_START} $A {IM_END}"])
def test_beginning_that_the_tokenizer_adds_is_given_and_the_whole_text_learned(
    tokenizer: PreTrainedTokenizerFast, single: str
) -> None:
    row = render_text(adding(tokenizer, single), TEXT)
    assert tokenizer.decode(row.token_ids) == IM_START + TEXT + IM_END
    assert row.loss_mask == (False, *[True] * (len(row.token_ids) - 1))


def test_text_of_one_token_still_teaches_its_end(tokenizer: PreTrainedTokenizerFast) -> None:
    row = render_text(tokenizer, "a")
    assert row.token_ids == (*tokenizer.encode("a"), tokenizer.eos_token_id)
    assert row.loss_mask == (False, True)


def test_special_tokens_of_the_text_are_themselves_and_the_end_comes_once(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    row = render_text(tokenizer, f"{IM_START}user\nhi{IM_END}")
    start, end = tokenizer.convert_tokens_to_ids([IM_START, IM_END])
    assert row.token_ids[0] == start
    assert row.token_ids.count(end) == 1
    assert row.token_ids[-1] == end
