"""How much completions repeat themselves."""

from collections.abc import Iterable, Iterator

from trajectory.types import TokenRecord

ORDER = 4
"""Length of the n-grams: long enough that ordinary text seldom repeats one by chance."""


def repeated_share(record: TokenRecord, order: int = ORDER) -> float | None:
    """Returns the share of n-grams of policy tokens that the rollout had sampled before: 1 - unique / all.

    This is seq-rep-n of Welleck et al. 2020 (Neural Text Generation with Unlikelihood Training) over all turns of a
    rollout. N-grams lie within one stretch of policy tokens, so prompts and tool results are never counted.

    Returns:
        From 0 to 1; None where no stretch is long enough.
    """
    grams = [
        stretch[at : at + order]
        for row in record.rows
        for stretch in _stretches(row.token_ids, row.loss_mask)
        for at in range(len(stretch) - order + 1)
    ]
    return 1.0 - len(set(grams)) / len(grams) if grams else None


def _stretches(token_ids: Iterable[int], mask: Iterable[bool]) -> Iterator[tuple[int, ...]]:
    """Yields the runs of tokens that the mask selects."""
    run: list[int] = []
    for token, selected in zip(token_ids, mask, strict=True):
        if selected:
            run.append(token)
        elif run:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)
