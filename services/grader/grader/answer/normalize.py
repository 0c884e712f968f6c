r"""Turns the many ways of writing one thing into one: Unicode forms, LaTeX wrappers, markdown, math delimiters.

What is left is plain text in which `*`, `/`, `^`, `<=`, `>=`, `!=` and a few LaTeX commands (`\frac`, `\sqrt`,
`\pi`, `\infty`, ...) remain. A dollar that means money becomes DOLLAR, a set brace becomes SET_OPEN or SET_CLOSE.
"""

import re
import unicodedata

DOLLAR = "\u00a4"
"""Stands for a dollar sign that means money; a bare `$` delimits mathematics."""
ROW = "\u21b5"
"""Stands for the end of a matrix's row."""
SET_OPEN = "\u2983"
SET_CLOSE = "\u2984"

_VULGAR = {
    "\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2150": "1/7", "\u2151": "1/9",
    "\u2152": "1/10", "\u2153": "1/3", "\u2154": "2/3", "\u2155": "1/5", "\u2156": "2/5",
    "\u2157": "3/5", "\u2158": "4/5", "\u2159": "1/6", "\u215a": "5/6", "\u215b": "1/8",
    "\u215c": "3/8", "\u215d": "5/8", "\u215e": "7/8",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b", "0123456789+-"
)
_RAISED = re.compile("[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_TRANSLATION = {
    **{ord(c): "-" for c in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"},
    **{ord(c): "'" for c in "\u2018\u2019\u02bc\u2032"},
    **{ord(c): '"' for c in "\u201c\u201d"},
    **{ord(c): "*" for c in "\u00d7\u22c5\u00b7\u2217\u2715\u2a2f"},
    ord("\u00f7"): "/", ord("\u2044"): "/", ord("\u2215"): "/",
    ord("\u2264"): "<=", ord("\u2265"): ">=", ord("\u2a7d"): "<=", ord("\u2a7e"): ">=",
    ord("\u2260"): "!=", ord("\u03c0"): "\\pi ", ord("\u221e"): "\\infty ",
    ord("\u00ba"): "\u00b0", ord("\u3001"): ",", ord("\u3002"): ".",
}  # fmt: skip
_LATEX = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"\\(?:left|right|bigg?l?r?|Bigg?l?r?|displaystyle|limits|[lL]arge|LARGE|[hH]uge|bf|it|rm|underline|mathopen|mathclose)(?![a-zA-Z])",
            "",
        ),
        (r",\s*\\!\s*", ","),
        (r"\\!", ""),
        (r"\\[,;:> ]|\\q?quad(?![a-zA-Z])|(?<!\\)~", " "),
        (r"\\\$", DOLLAR),
        (r"\\([%#&_])", r"\1"),
        (r"\\[()\[\]]", " "),
        (r"\\\{", SET_OPEN),
        (r"\\\}", SET_CLOSE),
        (r"\\(?:[dtc]|nice|s)frac(?![a-zA-Z])", r"\\frac"),
        (r"\{\s*([^{}]+?)\s*\\over(?![a-zA-Z])\s*([^{}]+?)\s*\}", r"\\frac{\1}{\2}"),
        (r"\\(?:text)?color\s*\{[a-zA-Z]+\}", ""),
        (r"\\begin\{(?:aligned|align\*?|split|gathered|equation\*?)\}", " "),
        (r"\\end\{(?:aligned|align\*?|split|gathered|equation\*?)\}", " "),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s+\{", r"\\frac{"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", "\u00b0"),
        (r"\\(?:times|cdot|ast)(?![a-zA-Z])", " * "),
        (r"\\div(?![a-zA-Z])", " / "),
        (r"\\pm(?![a-zA-Z])", "\u00b1"),
        (r"\\cup(?![a-zA-Z])", " \u222a "),
        (r"\\geq?(?:slant)?(?![a-zA-Z])", " >= "),
        (r"\\leq?(?:slant)?(?![a-zA-Z])", " <= "),
        (r"\\neq?(?![a-zA-Z])", " != "),
        (r"\\gt(?![a-zA-Z])", " > "),
        (r"\\lt(?![a-zA-Z])", " < "),
        (r"\\approx(?![a-zA-Z])", " \u2248 "),
        (r"\\in(?![a-zA-Z])", " \u2208 "),
        (r"\\mid(?![a-zA-Z])", " | "),
        (r"\\(?:ldots|dots|cdots)(?![a-zA-Z])", "..."),
        (r"\\(?:euro)(?![a-zA-Z])", "\u20ac"),
        (r"\\(?:pounds)(?![a-zA-Z])", "\u00a3"),
    )
)
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textnormal|textrm|textbf|textit|textsf|mathrm|mathbf|mathit|mathsf|mbox|hbox|emph)\s*\{([^{}]*)\}"
)
_SQRT_CALL = re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)|\u221a\s*\(([^()]*)\)")
_SQRT_SIGN = re.compile(r"\u221a\s*(\d+|[a-zA-Z])")
_GOES_ON = re.compile(r"(\d*\.\d*?)(\d)\2{2,}(?:\.\.\.|\\ldots|\\dots)")
_BRACED_SIGN = re.compile(r"\s*\{\s*([-+,])\s*\}\s*")
_POWER_SIGN = re.compile(r"(?<=[\w)])\*\*(?=[\w({-])")
_CALL = re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|ln|log|exp)(?=\s?\()")
_PLUS_MINUS = re.compile(r"\+\s?/\s?-|\+-(?=\s?\d)")
_PI = re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])")
_ALIGNMENT = re.compile(r"&(?=\s*[=<>])|(?<=[=<>])\s*&")
_SPACES = re.compile(r"\s+")
MAX_EXPANSION = 3
"""A text becomes so many times longer at most; some characters stand for a whole sentence."""
_ENDS = " \t\r\n.,;!?\"'`"


def unify_characters(text: str) -> str:
    """Replace look-alikes: full-width forms, dashes, quotes, vulgar fractions, superscripts, invisible marks."""
    if text.isascii():
        return text
    for sign, fraction in _VULGAR.items():
        if sign in text:
            text = text.replace(sign, f" {fraction} ")
    text = _RAISED.sub(lambda m: f"^{m.group().translate(_SUPERSCRIPTS)}", text)
    text = text.translate(_TRANSLATION)
    plain = unicodedata.normalize("NFKC", text)[: MAX_EXPANSION * len(text)]
    plain = plain.translate(_TRANSLATION)
    return plain.translate({ord(c): _plain_character(c) for c in set(plain) if not c.isascii()})


def _plain_character(character: str) -> str:
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    # Emoji say nothing; the degree sign is of their category.
    return " " if category == "Zs" or (category == "So" and character != "\u00b0") else character


def normalize(span: str) -> str:
    """Return a span in the one plain notation that `reading` understands."""
    text = _BRACED_SIGN.sub(r"\1", unify_characters(span))
    text = _GOES_ON.sub(r"\1\\overline{\2}", text)
    if "\\" in text:
        text = _resolve_latex(text)
    text = _POWER_SIGN.sub("^", _resolve_dollars(text))
    if "(" in text:
        text = _CALL.sub(r"\\\1", text)
    if "pi" in text and len(text) > 2:
        text = _PI.sub(r"\\pi ", text)
    if "+" in text:
        text = _PLUS_MINUS.sub("\u00b1", text)
    if "&" in text and "\\begin" not in text:
        text = _ALIGNMENT.sub("", text)
    if "sqrt" in text or "\u221a" in text:
        text = _SQRT_CALL.sub(lambda m: f"\\sqrt{{{m.group(1) or m.group(2)}}}", text)
        text = _SQRT_SIGN.sub(r"\\sqrt{\1}", text)
    return strip_ends(_SPACES.sub(" ", text))


def strip_ends(text: str) -> str:
    """Remove markdown emphasis, quotes and closing punctuation around a span."""
    while True:
        shorter = text.strip(_ENDS).removesuffix("...")
        if shorter.startswith("*") or shorter.endswith("*"):
            shorter = shorter.strip("*")
        if shorter.startswith("__") and shorter.endswith("__"):
            shorter = shorter.strip("_")
        if text.lstrip(_ENDS.replace(".", "")).startswith(".") and shorter[:1].isdigit():
            # A leading point belongs to a decimal such as .4.
            shorter = f".{shorter}"
            return shorter
        if shorter == text:
            return text
        text = shorter


def _resolve_latex(text: str) -> str:
    if "\\\\" in text:
        # Where there are no rows, a doubled backslash is one that was escaped once too often.
        text = text.replace("\\\\", ROW) if "\\begin" in text else text.replace("\\\\", "\\")
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    for _ in range(4):
        resolved = _TEXT_COMMAND.sub(r" \1 ", text)
        if resolved == text:
            break
        text = resolved
    return text


def _resolve_dollars(text: str) -> str:
    count = text.count("$")
    if not count:
        return text
    if count % 2 == 0:
        return text.replace("$", " ")
    return text.replace("$", DOLLAR)
