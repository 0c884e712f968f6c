"""Which grammar reads which kind of verdict."""

from collections.abc import Callable, Mapping
from typing import Any

from critic.questions import BinaryKind, Kind, LabelKind, PairwiseKind, ScoreKind, Verdict
from critic.verdicts.binary import BinaryGrammar
from critic.verdicts.grammar import Grammar
from critic.verdicts.label import LabelGrammar
from critic.verdicts.pairwise import PairwiseGrammar
from critic.verdicts.reader import Reading, read
from critic.verdicts.score import ScoreGrammar

GRAMMARS: Mapping[type[Any], Callable[[Any], Grammar[Verdict]]] = {
    ScoreKind: lambda kind: ScoreGrammar(low=kind.low, high=kind.high),
    LabelKind: lambda kind: LabelGrammar(kind.labels),
    PairwiseKind: lambda kind: PairwiseGrammar(ties_allowed=kind.ties_allowed),
    BinaryKind: lambda kind: BinaryGrammar(),
}

KIND_NAMES: Mapping[type[Any], str] = {
    ScoreKind: "score",
    LabelKind: "label",
    PairwiseKind: "pairwise",
    BinaryKind: "binary",
}


def read_verdict(text: str, kind: Kind) -> Reading[Verdict]:
    """Read the verdict of a kind out of a judge's text.

    Raises:
        UnreadableError: the text holds no such verdict, or one that does not count.
    """
    return read(text, GRAMMARS[type(kind)](kind))
