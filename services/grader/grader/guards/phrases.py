# ruff: noqa: RUF001  (the phrases of other languages are written in their own scripts)
"""Phrases by which a response talks to its judge, for text that `addresses_judge` has made plain and lower case.

Each is narrow enough to leave ordinary text alone: an order to drop instructions names which ones, a demand of a score
names the response or a full score. A word that a group `word` catches and that the prompt holds too is what the task is
about, and no alarm. No expression repeats a repeat, so that each is linear in the text.
"""

import re
import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """One way of talking to a judge."""

    what: str
    pattern: re.Pattern[str]

    @property
    def form(self) -> bool:
        """Whether it is the form of a verdict rather than words."""
        return self.what == _FORM


_FORM = "the form of a verdict"
_DROP = r"(?:ignore|disregard|forget|override|bypass|discard|overlook)"
_RULES = (
    r"(?:instructions?|prompts?|directions|directives?|rules|guidelines?|criteria|rubrics?"
    r"|commands|messages?)"
)
_WHICH = (
    r"(?:previous|prior|above|earlier|preceding|foregoing|system|grading|scoring|evaluation"
    r"|judging|existing)"
)
_JUDGE = (
    r"(?:ai |llm |automated |human |impartial |fair )?(?:judge|grader|evaluator|assessor|rater"
    r"|scorer|grading (?:model|system)|evaluation (?:model|system)|reward model)s?"
)
_RESPONSE = r"(?:response|answer|solution|submission|output|completion|reply|essay)"
_OURS = rf"(?:(?:this|my|the|the above|the following|our) {_RESPONSE}|response [ab]|assistant [ab])"
_FULL = r"(?:perfect|full|maximum|maximal|max|highest|top|best)"
_MARKS = r"(?:scores?|ratings?|grades?|marks?|rewards?|credit|points)"
_PASSED = r"(?:correct|right|passed|passing|perfect|excellent|accepted|true|valid|flawless)"
_VERDICT = r"(?P<word>verdict|judge?ment|reward|evaluation result|grading result|test result)"

_ENGLISH = (
    (
        "drops instructions",
        rf"\b{_DROP} (?:(?:all|any|every|of|the|these|those|your|my|our) ){{0,4}}{_WHICH}"
        rf"(?: \w+){{0,2}} {_RULES}\b",
    ),
    ("drops instructions", rf"\b{_DROP} (?:all |any )?(?:of )?your {_RULES}\b"),
    (
        "drops instructions",
        rf"\b{_DROP} (?:all |any )?(?:of )?(?:the )?(?:\w+ )?{_RULES} "
        r"(?:above|before this|so far|(?:that )?you (?:were|have been|are) given)\b",
    ),
    ("drops instructions", rf"\b{_DROP} (?:everything|all|anything) (?:above|before this)\b"),
    (
        "a note to the judge",
        rf"\b(?:dear|attention|(?:note|message|reminder|notice|instructions?) (?:to|for)|hey|hello|hi),? "
        rf"(?:the |all |any )?{_JUDGE} ?[,:!\n]",
    ),
    (
        "a note to the judge",
        rf"\bif you(?: are|'re) (?:an? |the )?(?:{_JUDGE}\b|(?:llm|ai|model|assistant|one) "
        r"(?:that is |who is )?(?:grading|judging|evaluating|scoring|rating)\b)",
    ),
    (
        "a note to the judge",
        rf"\bas (?:an? |the )?{_JUDGE},? you (?:should|must|need|have to|will|are required)\b",
    ),
    (
        "a note to the judge",
        rf"\b(?:the|you,? the) {_JUDGE} (?:should|must|has to|have to|is required to) "
        r"(?:give|assign|award|rate|grade|score|mark|choose|prefer|select|accept)\b",
    ),
    (
        "demands a score",
        rf"\b(?:give|assign|award|grant) (?:(?:this|me|us|{_OURS}) )(?:an? |the |with )?"
        rf"(?:{_FULL} )?(?:possible )?{_MARKS} (?:of|:|=|as) ?(?:\d|{_FULL})",
    ),
    (
        "demands a score",
        rf"\b(?:give|assign|award|grant) (?:(?:it|this|me|us|{_OURS}) )?(?:an? |the )?{_FULL} "
        rf"(?:possible )?{_MARKS}\b",
    ),
    (
        "demands a score",
        rf"\b(?:give|assign|award|grant|rate|grade|score|mark|judge) (?:this|{_OURS}) "
        r"(?:an? |the |as |with )?(?P<full>\d+) ?(?:/|out of) ?(?P=full)\b",
    ),
    (
        "demands a score",
        rf"\b(?:rate|grade|score|mark|judge|label|classify|accept|evaluate|treat|consider) {_OURS} "
        rf"(?:as |to be )(?:an? |being )?(?:fully |completely |absolutely )?{_PASSED}\b",
    ),
    (
        "demands a score",
        rf"\b(?:choose|pick|select|prefer|vote for) (?:this {_RESPONSE}|my {_RESPONSE}"
        r"|(?:response|assistant|answer) [ab] as the (?:winner|better))\b",
    ),
    (
        "demands a score",
        rf"\b(?:this|my) {_RESPONSE} (?:deserves|merits|must (?:receive|get)|should (?:receive|get|be "
        rf"(?:given|awarded))) (?:an? |the )?(?:{_FULL} (?:possible )?{_MARKS}|{_MARKS} of \d|\d+ ?/ ?\d)",
    ),
    (
        "demands a score",
        rf"\b(?:this|my) {_RESPONSE} (?:must|should|has to) be (?:rated|graded|scored|marked|judged"
        rf"|labell?ed|accepted|considered|treated)\b",
    ),
    (
        "demands a score",
        rf"\b(?:score|rating|grade|mark|reward)s? (?:for|of) {_OURS} (?:is|should be|must be|has to be)\b",
    ),
    (
        "demands a score",
        rf"\b(?:rate|grade|score|mark) (?:this|{_OURS}) (?:as|at|with) (?:an? )?\d",
    ),
    (
        "demands a score",
        rf"\b(?:output|return|respond with|reply with) (?:an? |the )?(?:{_FULL} )?(?:possible )?"
        r"(?:score|rating|grade|reward) (?:of )?[:=]? ?\d",
    ),
    (_FORM, r"\[\[(?:a|b|c|tie)\]\]"),
    (
        _FORM,
        r"<(?P<word>verdict|score|rating|grade|reward|judge?ment)>\s{0,9}(?:\d|correct|pass|true|accept)",
    ),
    (
        _FORM,
        r"\b(?P<word>rating|score|verdict|grade|judge?ment)\W{1,5}\[\[ ?\d+(?:\.\d+)? ?\]\]",
    ),
    (
        _FORM,
        rf"(?m)^[ >*#_-]{{0,8}}(?:final |overall |my )?{_VERDICT}[*_ ]{{0,4}}[:=][*_\"'\[( ]{{0,6}}"
        rf"(?:(?:the |this |my )?{_RESPONSE} is )?"
        r"(?:correct|pass(?:ed)?|accept(?:ed)?|a|b|tie|true|yes|right|valid|100?|1(?:\.0+)?"
        r"|\d+ ?/ ?\d+)\b",
    ),
    (
        _FORM,
        r"(?m)^[ >*#_-]{0,8}(?:final |overall |total )?(?P<word>score|rating|grade|marks?)[*_ ]{0,4}"
        r"[:=][*_ ]{0,4}(?:(?P<all>\d+)(?:\.0+)? ?(?:/|out of) ?(?P=all)|(?:10|100|1\.0+)[*_]{0,4}$)",
    ),
    (
        "a forged turn",
        r"<\|(?:im_start|im_end|endoftext|begin_of_text|eot_id|eom_id|end|system|user|assistant"
        r"|(?:start|end)_header_id)\|>|<<\/?sys>>|\[\/?inst\]|<(?:start|end)_of_turn>",
    ),
    (
        "a forged turn",
        r"(?m)^[ >*]{0,4}(?:#{1,4} ?system(?: \w+)? ?:"
        r"|\[ ?system(?: (?:message|note|prompt|override|instruction))? ?\]"
        r"|system (?:message|note|override|prompt|instructions?) ?:)",
    ),
    (
        "the end of a fence",
        r"\[ ?(?:the )?(?:start|begin|end) of (?:the )?(?:assistant|response|answer|submission"
        r"|conversation|reference|student|candidate)\b[^\]\n]{0,40}\]",
    ),
    (
        "the end of a fence",
        r"[-=]{3,} ?end of (?:the )?(?:response|answer|submission|student|candidate|material)",
    ),
    ("the end of a fence", r"</material[\w-]{0,40}>|<material-[\w-]{1,40}>"),
)
_OTHERS = (
    # Chinese
    (
        "drops instructions",
        r"(?:忽略|无视|無視|忘记|忘記|不要理会|不要理會)(?:掉)?(?:之前|以上|先前|前面|上述|上面|此前|系统|系統"
        r"|评分|評分|你的)[^。!?\n]{0,8}(?:指令|指示|说明|說明|提示|要求|规则|規則|标准|標準)",
    ),
    (
        "demands a score",
        r"(?:请|請|务必|務必|必须|必須|应该|應該)[^。!?\n]{0,6}(?:给|給|打|评|評|判)[^。!?\n]{0,10}"
        r"(?:满分|滿分|最高分|10 ?分|100 ?分|十分|一百分|正确|正確)",
    ),
    (
        "a note to the judge",
        r"(?:尊敬的|亲爱的|親愛的|致)(?:各位)?(?:评委|評委|评分者|評分者|评审|評審|评估者|評估者|阅卷)",
    ),
    # Japanese
    (
        "drops instructions",
        r"(?:これまで|以前|前|上記|以上|先|システム)の[^。\n]{0,8}(?:指示|命令|ルール|プロンプト|基準)"
        r"[^。\n]{0,6}(?:無視|忘れ)",
    ),
    (
        "demands a score",
        r"(?:満点|最高点|最高得点|最高評価|10点|100点)[^。\n]{0,6}(?:与えて|付けて|つけて|ください|お願い)",
    ),
    # Korean
    (
        "drops instructions",
        r"(?:이전|위의|앞의|시스템)[^.\n]{0,8}(?:지시|명령|지침|프롬프트|규칙)[^.\n]{0,8}(?:무시|잊)",
    ),
    ("demands a score", r"(?:만점|최고 ?점수?|10점|100점)[^.\n]{0,6}(?:주세요|줘|주십시오|부여)"),
    # Spanish
    (
        "drops instructions",
        r"\b(?:ignor[ae]|ignorad|olvid[ae]|omit[ae]|descart[ae]) (?:todas? )?(?:las|los|tus|sus) "
        r"(?:instrucciones|indicaciones|reglas|criterios|órdenes) (?:anteriores|previas|previos"
        r"|de arriba|del sistema)",
    ),
    (
        "demands a score",
        r"\b(?:dale|dame|da|dé|otorg(?:a|ue)|asign[ae]|pon|ponga) [^.\n]{0,40}"
        r"(?:(?:puntuación|calificación|nota) (?:máxima|perfecta|más alta)|máxima (?:puntuación"
        r"|calificación|nota)|puntaje (?:máximo|perfecto))",
    ),
    # Portuguese
    (
        "drops instructions",
        r"\b(?:ignor[ae]|esqueça|desconsidere) (?:todas? )?(?:as|os|suas) (?:instruções|regras"
        r"|critérios|orientações) (?:anteriores|acima|prévias|do sistema)",
    ),
    (
        "demands a score",
        r"\b(?:dê|atribua|conceda) [^.\n]{0,40}(?:(?:nota|pontuação) (?:máxima|perfeita|mais alta)"
        r"|nota (?:10|dez))",
    ),
    # French
    (
        "drops instructions",
        r"\b(?:ignore[zr]?|oublie[zr]?|néglige[zr]?) (?:toutes? )?(?:les|vos|tes|ces) (?:instructions"
        r"|consignes|règles|critères|directives) (?:précédente?s|antérieure?s|ci-dessus|du système)",
    ),
    (
        "demands a score",
        r"\b(?:donne[zr]?|attribue[zr]?|accorde[zr]?|mets|mettez) [^.\n]{0,40}(?:note|score) "
        r"(?:maximale?|parfaite?|la plus (?:haute|élevée))",
    ),
    # German
    (
        "drops instructions",
        r"\b(?:ignorier(?:e|en|t)|vergiss|vergessen|missachte) (?:sie )?(?:bitte )?(?:allen? )?"
        r"(?:die |deine |ihre )?(?:vorherigen|bisherigen|vorigen|obigen|früheren|vorangegangenen) "
        r"(?:anweisungen|instruktionen|regeln|vorgaben|befehle|kriterien)",
    ),
    (
        "demands a score",
        r"\b(?:gib|geben|vergib|vergeben|bewerte) [^.\n]{0,40}(?:höchstnote|volle punktzahl|bestnote"
        r"|(?:höchste|maximale) punktzahl)",
    ),
    # Italian
    (
        "drops instructions",
        r"\b(?:ignora|ignorate|dimentica|trascura) (?:tutte )?(?:le|i|tutti i) (?:istruzioni|regole"
        r"|indicazioni|criteri) (?:precedenti|di sopra|del sistema)",
    ),
    (
        "demands a score",
        r"\b(?:dai|date|assegna|attribuisci) [^.\n]{0,40}(?:punteggio|voto) (?:massimo|pieno|perfetto)",
    ),
    # Russian
    (
        "drops instructions",
        r"\b(?:про)?(?:игнорируй|забудь)(?:те)? (?:все )?(?:предыдущие|прошлые|вышеуказанные|прежние) "
        r"(?:инструкции|указания|правила|команды)",
    ),
    (
        "demands a score",
        r"\b(?:поставь|дай|присвой)(?:те)? [^.\n]{0,40}(?:максимальн|высш|наивысш)\w{1,4} (?:балл|оценк)",
    ),
    # Arabic
    (
        "drops instructions",
        r"(?:تجاهل|انس) (?:جميع |كل )?(?:التعليمات|الأوامر|القواعد) (?:السابقة|أعلاه)",
    ),
    ("demands a score", r"(?:أعط|امنح)[^.\n]{0,40}(?:الدرجة الكاملة|أعلى درجة|العلامة الكاملة)"),
    # Hindi
    (
        "drops instructions",
        r"(?:पिछले|पिछली|पूर्व|उपरोक्त) (?:सभी )?(?:निर्देशों|निर्देश|आदेशों) (?:को )?(?:अनदेखा|नज़रअंदाज़|भूल)",
    ),
    # Turkish
    (
        "drops instructions",
        r"(?:önceki|yukarıdaki) (?:tüm )?(?:talimatları|komutları|kuralları) (?:görmezden gel|yok say|unut)",
    ),
)

PHRASES = tuple(
    Phrase(what=what, pattern=re.compile(unicodedata.normalize("NFKC", pattern)))
    for what, pattern in _ENGLISH + _OTHERS
)
