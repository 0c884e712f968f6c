"""The phrases that announce a final answer, in several languages, and those that end what counts."""

import re

RUN_ON = re.compile(
    r"^[ \t>*#]{0,12}(?:(?:Question|Q|Problem|Human|User|\u95ee\u9898|\u95ee)\s*\d*[*_]*\s*[:\uff1a]"
    r"|#{2,6}[ \t]{0,4}(?:Question|Problem|Instruction|Input|User|Human)s?[ \t]{0,4}\d{0,4}[ \t]{0,4}:?[ \t]{0,4}$)"
    r"|<\|(?:im_start|im_end|eot_id|end_of_text|endoftext|end|user|start_header_id)\|>|</s>|\[INST\]",
    re.MULTILINE | re.IGNORECASE,
)
"""Where an invented next question or turn begins."""

_SEPARATOR = r"[:=\uff1a]|[-\u2013\u2014](?=\s)|\u2192"
_CHECK = (
    r"(?P<check>\b(?:check(?:ing)?|verify(?:ing)?|confirm(?:ing)?|test(?:ing)?)\s+(?:our|the|this|my|that\s+the)\s+"
    r"(?:final\s+)?(?:answer|solution)\b)"
)
"""Words that would else announce an answer."""
_FINAL = (
    r"(?P<final>\bfinal[\s_]+(?:(?:numerical|numeric)\s+)?(?:answer|result|value|ans)\b[*_`]*\s*"
    r"(?:\([^()\n]{1,40}\)\s*)?(?:is|was|equals)?[*_`]*\s*"
    rf"(?:{_SEPARATOR}|(?<=is)|(?<=was)|(?<=equals)|(?=[$\\*]?\d))[*_`]*)"
)
_HASH = r"(?P<hash>#{4}(?!#))"
_CHINESE = (
    r"(?P<chinese>\u6545\u9009[:\uff1a]?|(?:\u6700\u7ec8|\u6700\u7d42|\u6700\u540e|\u6b63\u786e)?(?:\u7b54\u6848|\u7b54|\u7ed3\u679c)"
    r"(?:\u5e94\u8be5|\u5e94)?(?:\u662f|\u4e3a|\u70ba|\u9009|[*_`]*\s*[:\uff1a])[*_`]*\s*[:\uff1a]?)"
)
_FOREIGN = (
    r"(?P<foreign>\b(?:antwort|endergebnis|l\xf6sung|r\xe9ponse|respuesta|risposta|resposta|\u043e\u0442\u0432\u0435\u0442)"
    r"(?:\s+(?:finale?|d\xe9finitive|correcta|correcte|lautet))?\s*"
    r"(?:(?:ist|lautet|est|es|\xe8|\xe9)\b\s*:?|(?<=lautet)|[:\uff1a]|\u2014(?=\s))"
    r"|(?:\u7b54\u3048|\u6700\u7d42\u7684\u306a\u7b54\u3048|\uc815\ub2f5|\ub2f5)(?:\u306f|\u306f\u3001|\uc740|\ub294|\s*[:\uff1a]))"
)
_ANSWER = (
    r"(?P<answer>\b(?:answer|solution|(?:correct|right)\s+(?:option|choice))[*_`]*\s*"
    r"(?:to\s+[^.:\n]{1,60}\s+)?(?:is(?!\w)|was(?!\w)|equals|(?:would|should|must)\s+be|[:=\uff1a]|[-\u2013\u2014](?=\s))[*_`]*\s*[:\uff1a]?"
    r"|^[ \t*#]{0,12}answer[*_`]{0,4}[ \t]{0,8}(?=\\[\[(]|\$))"
)
_CORRECTION = (
    r"(?P<correction>(?:\b(?:wait|oops|sorry|hmm|correction|actually|rather|scratch\s+that|my\s+mistake|i\s+mean|make\s+that"
    r"|hold\s+on|no(?=[,:]|\s+wait)|that(?:'s|\s+is|\s+was)\s+wrong|i\s+was\s+wrong)\b[\s,.:;!\u2014-]{0,8}){1,5}"
    r"(?:(?:(?:it|that|this|the\s+(?:answer|total|result|value))\s*)?"
    r"(?:is|was|'s|=|(?:should|must|would)\s+(?:be|have\s+been))\s+)?(?:actually\s+|really\s+)?"
    r"(?=[-+\u2212$\u20ac\xa3]{0,2}\d[\d,./]*(?:\s?%|\s[a-z]+){0,2}[*_`]*\s*(?:[.!]?\s*$|[.!]\s)|\$?\\boxed))"
)
STATED = re.compile(
    "|".join((_CHECK, _FINAL, _HASH, _CHINESE, _FOREIGN, _ANSWER, _CORRECTION)),
    re.IGNORECASE | re.MULTILINE,
)
"""An announcement; the group's name says which kind."""

_LETTER = r"[*_`]*[(\[]?(?P<letter>[A-J])[)\]]?(?![a-zA-Z'])"
CHOSEN = re.compile(
    rf"\b(?:[Ii]|[Ww]e)(?:'ll|\s+would|\s+will|'d)?\s+(?:choose|pick|select|go\s+with|chose)\s+(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?{_LETTER}"
    r"|\b(?:[Oo]ption|[Cc]hoice)\s+[*_`]*[(\[]?(?P<named>[A-J])[)\]]?[*_`]*\s+is\s+(?:the\s+)?(?:correct|right|best)\b(?!\s+(?:only|if))"
    r"|\u9009(?:\u62e9|\u9879)?\s*(?P<chosen>[A-J])(?![a-zA-Z])"
)
"""A choice that is named as the one taken."""

NOT_AN_ANSWER = re.compile(
    r"(?:not|correct|right|wrong|incorrect|clear|obvious|reasonable|confirmed|verified|unknown|that"
    r"|as follows|below|above|given|whatever|in|therefore|thus)\b",
    re.IGNORECASE,
)
"""What follows "the answer is" where no answer is stated."""
