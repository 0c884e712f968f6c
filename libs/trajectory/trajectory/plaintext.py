"""Lays a plain text out as a training row, without a chat template.

Like `rendering`, this file knows no torch and no transformers; the tokenizer is passed in.
"""

from trajectory.rendering import ChatTokenizer, RenderedRow, RenderError


def render_text(tokenizer: ChatTokenizer, text: str) -> RenderedRow:
    """Lays out a text that is learned whole, up to and with the end of the sequence.

    A token that the tokenizer puts before every text (the beginning of a sequence) is given. Without one the first
    token of the text is given, since nothing predicts it. Special tokens that the text spells out are taken as such,
    so that a text may hold what a template made.

    Args:
        tokenizer: as of `rendering`; a chat template is not needed.
        text: what to learn.

    Raises:
        RenderError: the tokenizer makes nothing of the text.
    """
    bare = tuple(tokenizer.encode(text, add_special_tokens=False))
    if not bare:
        raise RenderError("text: the tokenizer makes no token of it")
    whole = tuple(tokenizer.encode(text, add_special_tokens=True))
    starts = range(len(whole) - len(bare) + 1)
    before = next((at for at in starts if whole[at : at + len(bare)] == bare), 0)
    end = int(tokenizer.eos_token_id)
    ids = whole[:before] + bare + (() if bare[-1] == end else (end,))
    given = max(1, before)
    return RenderedRow(token_ids=ids, loss_mask=(False,) * given + (True,) * (len(ids) - given))
