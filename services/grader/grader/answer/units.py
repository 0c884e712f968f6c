"""Units of measure and currencies by their many names, and whether two stated units can be the same.

Units are named, not converted: 5 kg is not 5000 g here. An unknown noun ("clips") is kept as words.
"""

import re

_ALIASES = {
    "km": "km kilometer kilometers kilometre kilometres \u516c\u91cc \u5343\u7c73",
    "m": "m meter meters metre metres \u7c73",
    "cm": "cm centimeter centimeters centimetre centimetres \u5398\u7c73",
    "mm": "mm millimeter millimeters millimetre millimetres \u6beb\u7c73",
    "mi": "mi mile miles \u82f1\u91cc",
    "ft": "ft foot feet",
    "in": "inch inches in",
    "yd": "yd yard yards",
    "kg": "kg kgs kilogram kilograms kilo kilos \u5343\u514b \u516c\u65a4",
    "g": "g gram grams gramme grammes \u514b",
    "mg": "mg milligram milligrams",
    "t": "t tonne tonnes ton tons \u5428",
    "lb": "lb lbs",
    "pound": "pound pounds",
    "oz": "oz ounce ounces",
    "l": "l liter liters litre litres \u5347",
    "ml": "ml milliliter milliliters millilitre millilitres \u6beb\u5347",
    "gal": "gal gallon gallons",
    "h": "h hr hrs hour hours \u5c0f\u65f6",
    "min": "min mins minute minutes \u5206\u949f",
    "s": "s sec secs second seconds \u79d2",
    "ms": "ms millisecond milliseconds",
    "d": "day days \u5929 \u65e5",
    "wk": "week weeks \u5468",
    "mo": "month months \u6708",
    "y": "yr yrs year years \u5e74",
    "deg": "\u00b0 deg degs degree degrees \u5ea6",
    "rad": "rad rads radian radians",
    "degc": "\u00b0c c celsius degc \u2103 \u6444\u6c0f\u5ea6",
    "degf": "\u00b0f f fahrenheit degf \u2109",
    "k": "kelvin kelvins",
    "mph": "mph",
    "kmh": "kmh kph km/h",
    "hz": "hz hertz",
    "khz": "khz kilohertz",
    "mhz": "mhz megahertz",
    "ghz": "ghz gigahertz",
    "w": "w watt watts",
    "kw": "kw kilowatt kilowatts",
    "kwh": "kwh",
    "v": "v volt volts",
    "a": "amp amps ampere amperes",
    "n": "n newton newtons",
    "j": "j joule joules",
    "pa": "pa pascal pascals",
    "usd": "\u00a4 $ usd us$ dollar dollars buck bucks \u7f8e\u5143",
    "eur": "\u20ac eur euro euros \u6b27\u5143",
    "gbp": "\u00a3 gbp quid \u82f1\u9551",
    "krw": "\u20a9 krw won",
    "rub": "\u20bd rub ruble rubles rouble roubles",
    "jpy": "jpy yen \u65e5\u5143",
    "cny": "cny rmb yuan \u5143 \u5757 \u5757\u94b1 \u4eba\u6c11\u5e01",
    "inr": "\u20b9 inr rs rupee rupees",
    "chf": "chf franc francs",
    "cent": "cent cents \u00a2",
}
CURRENCY_PREFIXES = (
    "us$", "\u00a4", "$", "\u20ac", "\u00a3", "\u00a5", "\uffe5", "\u20b9", "usd", "eur", "gbp",
    "cny", "rmb", "jpy", "inr", "chf", "rs.", "rs", "\u20a9", "\u20bd", "krw",
)  # fmt: skip
"""What may stand before an amount, lower case."""
CURRENCIES = frozenset(
    ("usd", "eur", "gbp", "jpy", "cny", "inr", "chf", "krw", "rub", "cent", "yen", "pound")
)
COMPOUND_UNITS = tuple(
    frozenset(family)
    for family in (
        ("y", "mo", "wk", "d", "h", "min", "s"),
        ("mi", "yd", "ft", "in"),
        ("km", "m", "cm", "mm"),
        ("kg", "g", "mg"),
        ("lb", "oz"),
        ("l", "ml"),
        ("usd", "cent"),
        ("eur", "cent"),
    )
)
"""Units that one measure may be stated in together."""
_CANONICAL = {alias: unit for unit, names in _ALIASES.items() for alias in names.split()}
KNOWN_UNITS = frozenset(_ALIASES) | {f"{unit}^{power}" for unit in _ALIASES for power in "23"}
"""Canonical names of single units and their squares and cubes."""
_POWER = re.compile(r"(.+?)\s*\^?\s*\{?([23])\}?")
_POWER_WORDS = (("square ", "2"), ("sq. ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3"))
_POWER_SUFFIXES = ((" squared", "2"), (" cubed", "3"))
_SEPARATOR = re.compile(
    r"\s+per\s+|\s*/\s*|\s+an?\s+(?=(?:hour|day|week|month|year|minute|second)s?$)"
)
_WORDS = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*\.?(?:\s+[^\W\d_]+(?:['-][^\W\d_]+)*)*")
_DEGREES = re.compile(r"^(?:degrees?|deg\.?)\s+(?=c$|f$|celsius|fahrenheit|kelvin)")
_RATE = re.compile(r"([a-z]{3,}(?: [a-z]+)*)\s?/\s?([a-z]+(?: [a-z]+)*)")
_RAISED_WORD = re.compile(r"([a-z]{3,})\s?\^\s?\{?([23])\}?")
_SI_PRODUCT = re.compile(r"(?:[a-z]{1,3}(?:\^\{?-?\d\}?[\s*]*|[\s*]+))*[a-z]{1,3}\^\{?-\d\}?")
_UNIT_AT_END = re.compile(
    r"(?<=[\w}])\s+((?:(?:square|cubic|sq\.?)\s+)?[a-zA-Z]{2,}(?:\s*/\s*[a-zA-Z]+)?(?:\s*\^\s*\{?\s*[23]\s*\}?)?|\u00b0)$"
)
_FILLERS = frozenset(
    (
        "a", "an", "the", "of", "in", "at", "total", "altogether", "overall", "all", "each",
        "more", "left", "remaining", "exactly", "only", "per", "currently", "together", "long",
        "old", "tall", "high", "wide", "deep", "away", "they", "them", "this", "that", "these",
        "those", "now", "worth", "was", "were", "are", "is", "on", "his", "her", "its", "their",
        "our", "my", "your", "whole",
    )
)  # fmt: skip
_REFUSED = frozenset(
    (
        "or", "and", "nor", "not", "no", "but", "than", "to", "between", "unless", "except",
        "minus", "plus", "times", "divided", "multiplied", "by", "less", "fewer", "greater",
        "through", "until", "from", "versus", "vs", "if", "either", "neither", "percent",
        "half", "dozen", "hundred", "thousand", "million", "billion", "trillion", "point",
        "squared", "over", "under", "wrong", "incorrect", "mistaken",
    )
)  # fmt: skip


def currency_of(symbol: str) -> str:
    """Return the canonical currency of a prefix; the yen sign says nothing sure and yields no unit."""
    return _CANONICAL.get(symbol.rstrip("."), "")


def read_unit(text: str) -> str | None:
    """Return the canonical unit of what follows a number, empty for none, None if it is not a unit."""
    phrase = text.strip().strip("()").strip().lower().removeprefix("/").lstrip()
    if not phrase:
        return ""
    if len(phrase) > 80:
        return None
    phrase = _DEGREES.sub("", phrase)
    known = _measure(phrase)
    if known is not None:
        return known
    rate = _RATE.fullmatch(phrase)
    if rate:
        upper, lower = read_unit(rate.group(1)), read_unit(rate.group(2))
        return f"{upper}/{lower}" if upper and lower else None
    raised = _RAISED_WORD.fullmatch(phrase)
    if raised:
        return f"{_stem(raised.group(1))}^{raised.group(2)}"
    if not _WORDS.fullmatch(phrase):
        return None
    words = phrase.replace("-", " ").rstrip(".").split()
    if len(words) > 8 or any(word in _REFUSED for word in words):
        return None
    kept = [word for word in words if word not in _FILLERS]
    if len(kept) < len(words):
        known = _measure(" ".join(kept)) if kept else ""
        if known is not None:
            return known
    return " ".join(_stem(word) for word in kept)


def trailing_unit(text: str) -> tuple[str, str]:
    """Split a known unit of measure off the end of a formula: what is before it, and its canonical name."""
    match = _UNIT_AT_END.search(text)
    if match is None:
        return text, ""
    unit = _measure(match.group(1).strip().lower())
    return (text[: match.start()].strip(), unit) if unit else (text, "")


def same_unit(one: str, other: str) -> bool:
    """Whether two units can mean the same; a missing unit fits any."""
    if not one or not other or one == other:
        return True
    if "pound" in (one, other):
        # Of weight or of money.
        return bool({one, other} & {"lb", "gbp"})
    if one in _ALIASES or other in _ALIASES:
        return False
    first, second = set(one.split()), set(other.split())
    return first <= second or second <= first


def _measure(phrase: str) -> str | None:
    direct = _CANONICAL.get(phrase) or _CANONICAL.get(phrase.rstrip("."))
    if direct:
        return direct
    if _SI_PRODUCT.fullmatch(phrase):
        factors = re.findall(r"([a-z]{1,3})(?:\^\{?(-?\d)\}?)?", phrase)
        if all(name in _CANONICAL for name, _ in factors):
            return " ".join(f"{_CANONICAL[name]}^{power or 1}" for name, power in factors)
    parts = _SEPARATOR.split(phrase)
    if len(parts) == 2:
        upper, lower = _measure(parts[0]), _measure(parts[1])
        if upper is not None and lower is not None:
            joined = f"{upper}/{lower}"
            return {"mi/h": "mph", "km/h": "kmh"}.get(joined, joined)
        return None
    for prefix, power in _POWER_WORDS:
        if phrase.startswith(prefix):
            base = _CANONICAL.get(phrase.removeprefix(prefix).strip())
            return f"{base}^{power}" if base else None
    for suffix, power in _POWER_SUFFIXES:
        if phrase.endswith(suffix):
            base = _CANONICAL.get(phrase.removesuffix(suffix).strip())
            return f"{base}^{power}" if base else None
    match = _POWER.fullmatch(phrase)
    if match:
        base = _CANONICAL.get(match.group(1))
        return f"{base}^{match.group(2)}" if base else None
    return None


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word
