"""How alike two texts are, from 0 to 1, by the metrics that people know.

- fuzzy_match: 1 - insertions and deletions / characters of both (rapidfuzz's ratio).
- bleu: sentence BLEU of 1- to 4-grams, of shorter ones where the text has fewer words (nltk; smoothing method 1 of Chen
  and Cherry 2014).
- gleu: Google's sentence BLEU, the lower of precision and recall of 1- to 4-grams (nltk).
- meteor: METEOR with alpha 0.9, beta 3, gamma 0.5, by equal words and equal stems (nltk). Synonyms are left out: they
  need the files of WordNet.
- cosine: between the counts of character 3- to 5-grams within words, without case. It uses no embeddings.
- rouge_1 to rouge_5: F-measure of n-grams, without case (rouge-score, without stemming).
- rouge_l: F-measure of the longest common subsequence of words, without case.

Words are runs of letters and digits, and each Chinese or Japanese character is one; in bleu, gleu and meteor so is each
other sign. Equal texts are 1 in every metric. Nothing here reads files or the network.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping

from rapidfuzz.distance import Indel, LCSseq

MAX_CHARACTERS = 50_000
MAX_METEOR_WORDS = 2_000
"""METEOR looks at every pair of words."""

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_WORD_OR_SIGN = re.compile(rf"{_WORD.pattern}|[^\w\s]|_")


class TextTooLongError(ValueError):
    """A text is longer than a metric compares."""


def check_length(metric: str, text: str) -> None:
    """Raise TextTooLongError if a text is longer than the metric compares."""
    if len(text) > MAX_CHARACTERS:
        raise TextTooLongError(f"has {len(text)} characters, at most {MAX_CHARACTERS} are compared")
    if metric == "meteor" and len(_WORD_OR_SIGN.findall(text)) > MAX_METEOR_WORDS:
        raise TextTooLongError(f"has more words than the {MAX_METEOR_WORDS} that meteor compares")


class Words:
    """Splits text for rouge-score."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text, without case."""
        return _WORD.findall(text.lower())


def similarity(metric: str, given: str, wanted: str) -> float:
    """Return how alike two texts are, from 0 to 1.

    Args:
        metric: one of METRICS.
        given: the text that is judged; not too long, see `check_length`.
        wanted: the reference, not too long either.
    """
    given, wanted = given.strip(), wanted.strip()
    if given == wanted:
        return 1.0
    if not given or not wanted:
        return 0.0
    return min(1.0, max(0.0, METRICS[metric](given, wanted)))


def _fuzzy_match(given: str, wanted: str) -> float:
    return Indel.normalized_similarity(given, wanted)


def _bleu(given: str, wanted: str) -> float:
    from nltk.translate.bleu_score import (
        SmoothingFunction,
        sentence_bleu,
    )

    words = _WORD_OR_SIGN.findall(given)
    smoothing = SmoothingFunction().method1
    reference = [_WORD_OR_SIGN.findall(wanted)]
    return float(sentence_bleu(reference, words, smoothing_function=smoothing, auto_reweigh=True))


def _gleu(given: str, wanted: str) -> float:
    from nltk.translate.gleu_score import sentence_gleu

    return float(sentence_gleu([_WORD_OR_SIGN.findall(wanted)], _WORD_OR_SIGN.findall(given)))


class _NoSynonyms:
    """In the place of WordNet: knows no word."""

    def synsets(self, word: str) -> list[object]:
        return []


def _meteor(given: str, wanted: str) -> float:
    from nltk.translate.meteor_score import single_meteor_score

    words, reference = _WORD_OR_SIGN.findall(given), _WORD_OR_SIGN.findall(wanted)
    return float(single_meteor_score(reference, words, wordnet=_NoSynonyms()))


def _cosine(given: str, wanted: str) -> float:
    one, other = _character_ngrams(given), _character_ngrams(wanted)
    dot = sum(count * other[gram] for gram, count in one.items())
    norms = sum(c * c for c in one.values()) * sum(c * c for c in other.values())
    return dot / math.sqrt(norms) if norms else 0.0


def _character_ngrams(text: str) -> Counter[str]:
    """Count the 3- to 5-grams of each word with a space around it, as scikit-learn's analyzer char_wb does."""
    grams: Counter[str] = Counter()
    for word in text.lower().split():
        padded = f" {word} "
        for size in (3, 4, 5):
            grams.update(padded[i : i + size] for i in range(len(padded) - size + 1))
    return grams


def _rouge_n(size: int) -> Callable[[str, str], float]:
    def measure(given: str, wanted: str) -> float:
        from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]  # ships no types

        name = f"rouge{size}"
        scores = RougeScorer([name], tokenizer=Words()).score(wanted, given)
        return float(scores[name].fmeasure)

    return measure


def _rouge_l(given: str, wanted: str) -> float:
    """F-measure as rouge-score's rougeL, whose table of all pairs of words would take seconds and gigabytes."""
    words, reference = Words().tokenize(given), Words().tokenize(wanted)
    if not words or not reference:
        return 0.0
    return 2 * LCSseq.similarity(words, reference) / (len(words) + len(reference))


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "fuzzy_match": _fuzzy_match,
    "bleu": _bleu,
    "gleu": _gleu,
    "meteor": _meteor,
    "cosine": _cosine,
    **{f"rouge_{size}": _rouge_n(size) for size in range(1, 6)},
    "rouge_l": _rouge_l,
}
