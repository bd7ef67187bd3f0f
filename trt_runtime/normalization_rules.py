"""The tables of text normalisation: what the grammars get wrong in Chinese and in English.

`docs/text-normalization.md` says why. Rules are applied in their order, before and after a clause
goes through the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

HAN = r"\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_NUMBER = r"\d+(?:\.\d+)?"


#: In telephone numbers and codes 1 is read yao, for yi sounds like qi.
_ZH_CODE = dict(zip("0123456789", "零幺二三四五六七八九", strict=True))
_ZH_DIGIT = _ZH_CODE | {"1": "一"}
_EN_DIGIT = {
    "0": "zero", "1": "one", "2": "two", "3": "three", "4": "four",
    "5": "five", "6": "six", "7": "seven", "8": "eight", "9": "nine",
}  # fmt: skip

FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F) if chr(code - 0xFEE0).isalnum()}
FULL_WIDTH |= {ord("％"): ord("%"), ord("￥"): ord("¥"), ord("\u2212"): ord("-")}

#: Labels, tags and control tokens, which are names and never read as numbers.
_NAME = r"speaker_\d+|<[|/A-Za-z][^<>\s]{0,40}>"
TOP_LEVEL_DOMAINS = "com|org|net|edu|gov|info|cn|io|ai|uk|de|fr|jp|hk|tw|app|dev"
_ADDRESS = (
    r"(?:https?://|ftp://|www\.)[A-Za-z0-9@:%._+~#=/?&-]*[A-Za-z0-9/]"
    # The look-behind keeps a long run from being tried again at each of its letters.
    r"|(?<![A-Za-z0-9._%+@-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
    rf"|(?<![A-Za-z0-9._@-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,5}}(?:{TOP_LEVEL_DOMAINS})(?![A-Za-z0-9-])"
)
KEPT_WHOLE = re.compile(rf"(?P<name>{_NAME})|(?P<address>{_ADDRESS})")

_ZH_SIGNS = {
    "@": "艾特", ".": "点", "/": "斜杠", ":": "冒号", "-": "杠", "_": "下划线", "?": "问号",
    "=": "等于", "&": "和", "#": "井号", "%": "百分号", "+": "加", "~": "波浪号",
}  # fmt: skip
_EN_SIGNS = {
    "@": "at", ".": "dot", "/": "slash", ":": "colon", "-": "dash", "_": "underscore",
    "?": "question mark", "=": "equals", "&": "and", "#": "hash", "%": "percent", "+": "plus",
    "~": "tilde",
}  # fmt: skip


def _rules(*rows: tuple[str, str | Callable[[re.Match[str]], str]]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern, re.ASCII), replacement) for pattern, replacement in rows)


def _zh_code(match: re.Match[str]) -> str:
    return "".join(_ZH_CODE.get(c, "") if c in "0123456789- " else c for c in match[0])


def _zh_phone(match: re.Match[str]) -> str:
    return _zh_code(match).replace("+", "加")


def _zh_below_hundred(digits: str) -> str:
    """One or two digits as a cardinal, anything else digit by digit."""
    if len(digits) != 2 or digits[0] == "0":
        return "".join(_ZH_CODE[d] if len(digits) > 1 else _ZH_DIGIT[d] for d in digits)
    tens = "" if digits[0] == "1" else _ZH_DIGIT[digits[0]]
    return f"{tens}十" + ("" if digits[1] == "0" else _ZH_DIGIT[digits[1]])


def _zh_dotted(match: re.Match[str]) -> str:
    """A version has cardinals between its dots, an IP address single digits."""
    parts = match[0].split(".")
    if len(parts) == 4 and any(len(part) == 3 for part in parts):
        return "点".join("".join(_ZH_CODE[d] for d in part) for part in parts)
    return "点".join(_zh_below_hundred(part) for part in parts)


def _en_digits(match: re.Match[str]) -> str:
    """Digit by digit, a comma where a space, hyphen or bracket was: a telephone number."""
    groups = re.findall(r"\+|\d+", match[0])
    said = ["plus" if g == "+" else " ".join(_EN_DIGIT[d] for d in g) for g in groups]
    return ", ".join(said).replace("plus, ", "plus ")


def _en_code(match: re.Match[str]) -> str:
    return " " + _en_digits(match)


def _en_decade(match: re.Match[str]) -> str:
    names = "hundreds tens twenties thirties forties fifties sixties seventies eighties nineties"
    if match[1] == "20" and match[2] == "0":
        return "two thousands"
    return f"{match[1]} {names.split()[int(match[2])]}"


def _zh_digits(match: re.Match[str]) -> str:
    return "".join(_ZH_DIGIT[d] for d in match[0])


def _zh_half_hour(match: re.Match[str]) -> str:
    return ("两" if int(match[1]) == 2 else match[1]) + "点半"


#: h, m and s next to each other are times (3h 45m), ft and in lengths (5 ft 9 in).
_BELOW_60 = r"[0-5]?\d(?:\.\d+)?"
_DURATION = (
    rf"(?<![\w.$€£¥-])(?:\d+ ?d,? ?(?:\d+ ?h)|(?:\d+ ?d,? ?)?\d+ ?h(?:,? (?:and )?)?"
    rf"{_BELOW_60} ?m(?:in)?(?: ?{_BELOW_60} ?s(?:ec)?)?"
    rf"|\d{{1,2}} ?m(?:in)? ?{_BELOW_60} ?s(?:ec)?)(?![\w/'’²³])"
)
_LENGTH = rf"(?<![\w.$€£¥-])({_NUMBER}) ?ft\.?( ?)({_NUMBER}) ?in(?:\.(?= [a-z])|(?![\w/'’²³]))"
_EN_PERIODS = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_ZH_PERIODS = {"d": "天", "h": "小时", "m": "分", "s": "秒"}


def _en_plural(number: str, one: str, more: str) -> str:
    return f"{number} {one if float(number) == 1 else more}"


def _periods(match: re.Match[str]) -> list[tuple[str, str, str]]:
    """Number, unit and what stands behind, of each part of a duration."""
    return re.findall(rf"({_NUMBER}) ?([dhms])(?:in|ec)?(\D*)", match[0])


def _en_duration(match: re.Match[str]) -> str:
    return "".join(
        _en_plural(number, name := _EN_PERIODS[unit], f"{name}s") + (gap or " ")
        for number, unit, gap in _periods(match)
    ).strip(" ")


def _zh_duration(match: re.Match[str]) -> str:
    return "".join(number + _ZH_PERIODS[unit] + gap for number, unit, gap in _periods(match))


def _en_length(match: re.Match[str]) -> str:
    feet, inches = _en_plural(match[1], "foot", "feet"), _en_plural(match[3], "inch", "inches")
    return f"{feet} {inches}"


def _en_extension(match: re.Match[str]) -> str:
    return f"{match[1]}xtension " + " ".join(_EN_DIGIT[d] for d in match[2])


def _en_number_sign(match: re.Match[str]) -> str:
    """The word for No., with its capital where a sentence starts."""
    before = match.string[: match.start()].rstrip(" \t\"'“‘(:")
    return "Number " if not before or before[-1] in ".!?" else "number "


_UNITS_ZH = {
    "mmHg": "毫米汞柱", "Hz": "赫兹", "kHz": "千赫", "MHz": "兆赫", "GHz": "吉赫", "kWh": "千瓦时",
    "kW": "千瓦", "mAh": "毫安时", "kPa": "千帕", "dB": "分贝", "㎡": "平方米", "㎥": "立方米",
    "㎝": "厘米", "㎜": "毫米", "㎞": "公里", "㎏": "千克",
}  # fmt: skip
_MONEY_ZH = {"¥": "元", "$": "美元", "€": "欧元", "£": "英镑", "HK$": "港元", "US$": "美元"}
_COMPARED = {
    "=": "等于", "<": "小于", ">": "大于", "≥": "大于等于", "≤": "小于等于", "≠": "不等于",
    "≈": "约等于",
}  # fmt: skip
_TIME = r"(?:[01]?\d|2[0-4]):[0-5]\d"
#: What a number is that stands after one of these, with a mark or two between them.
_CODE_WORD = (
    "电话|热线|拨打|致电|手机|传真|号码|编号|学号|工号|账号|帐号|卡号|密码|口令|邮编|证号|验证码|"
    "分机|内线|房间号|航班|车次|QQ|微信|编码|代码|订单|股票"
)
_COUNTED = "个人名位只条张件岁天年月日周次元块角分秒点章节页号楼层度倍米斤克万亿％%℃°"

#: Times, maybe as the Latin letter: 1920x1080, 2 m x 4 m. The x of 0x10 is none.
_MULTIPLIED = r"(\d(?: ?(?:[ckm]?m|ft|in))?) ?(?:×|(?<!\b0)[xX]) ?(?=\d)"
#: In order; what an earlier row wrote out, a later row sees.
_ZH_BEFORE = _rules(
    # The grammar stops at a thousands comma.
    (r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)", lambda m: m[0].replace(",", "")),
    (_MULTIPLIED, r"\1×"),
    (_DURATION, _zh_duration),
    (_LENGTH, r"\1英尺\2\3英寸"),
    # Telephone numbers, and numbers that are names.
    (
        r"(?<![\d.-])(?:\+?86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}(?![.-]?\d)"
        r"|(?<![\d.-])(?:0\d{2,3}-\d{7,8}(?:-\d{1,6})?|[48]00-\d{3,4}-\d{3,4})(?![.-]?\d)",
        _zh_phone,
    ),
    (r"(?<![\d.])\d{3,4}(?=[室房]|号[房室院]|路(?![程口])|次(?:列车|航班|高铁|动车))", _zh_code),
    # An extension. A round number after 转 alone is money that is sent on.
    (
        rf"(?:(?<=[请机线话零幺二三四五六七八九])转接?|(?<![{HAN}])转(?!\d*00(?!\d)))\d{{3,6}}"
        rf"(?:(?=分机)|(?![\d.,%{_COUNTED}]|-\d))",
        _zh_code,
    ),
    (rf"(?:{_CODE_WORD})[是为:：号 ]{{0,3}}\d{{3,}}(?![\d.,%:年月元个人次位]|-\d)", _zh_code),
    (r"(?<=[A-Za-z])\d{3,}(?![\d%]|\.\d)|(?<![\d.])\d{3}(?=错误)", _zh_code),
    (r"(?<![\d.])\d{12,}(?!\.?\d)", _zh_code),
    # An IPv6 address.
    (r"(?<![\w:])(?=[0-9A-Fa-f:]{0,36}::)[0-9A-Fa-f:]{4,39}(?![\w:])", _zh_code),
    (r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){2,}(?!\.?\d)", _zh_dotted),
    # Money: the sign goes where the word already stands, and behind a following 万 or 亿.
    (rf"[¥$](?={_NUMBER}[万亿]?(?:美元|元|块))", ""),
    (
        rf"(HK\$|US\$)({_NUMBER}[万亿]?)|([¥$€£])({_NUMBER}[万亿])|({_NUMBER})([¥$€£])(?!\d)",
        lambda m: (m[2] or m[4] or m[5]) + _MONEY_ZH[m[1] or m[3] or m[6]],
    ),
    # Ranges, then the half hours in them. A year is read digit by digit.
    (r"(?<!\d)\d{4}(?=[-~～–—至到]\d{4}年)|(?<!\d)\d\d(?=年\d{1,2}月)", _zh_digits),
    (
        rf"(?<![\d.:/A-Za-z¥$€£+×÷*共约近超达满有-])(?:19|20)\d\d"
        rf"(?=[届款级版]|[^{HAN}\w.:/%‰℃°$€£¥~～+=<>×÷*㎡㎥–—,-]|$)(?! [A-Za-z])",
        _zh_digits,
    ),
    (r"(?<=[零一二三四五六七八九])[-~～–—](?=\d{4}年)", "至"),
    (rf"(?<![\d:])({_TIME})\s?[-~～–—]+\s?(?={_TIME}(?![\d:]))", r"\1至"),
    (rf"(?<![\d.-])({_NUMBER})[-~～–—]({_NUMBER})([%‰])", r"\1\3至\2\3"),
    (
        rf"(?<![\d.])({_NUMBER}(?:[%℃°C]{{1,2}}|[{HAN}A-Za-z]{{1,2}})?)\s?[~～–—]+\s?"
        rf"(?=-?{_NUMBER}(?![\d-]))",
        r"\1至",
    ),
    (rf"(?<![\d.-])({_NUMBER}[{_COUNTED}]+)-(?={_NUMBER}[{_COUNTED}])", r"\1至"),
    (rf"(?<![\d.-])({_NUMBER})-(?={_NUMBER}[{_COUNTED}])", r"\1至"),
    (r"((?:比分|比例|比率|比)[是为:： ]?\d+)[:-](?=\d+(?![\d:-]))", r"\1比"),
    (
        rf"(?<![\d.+×÷*=-])({_NUMBER})-({_NUMBER})(?![\d.=+-])",
        lambda m: f"{m[1]}至{m[2]}" if float(m[1]) < float(m[2]) else m[0],
    ),
    (r"(?<![\d.])2(?=至\d+[个名位只条张件天])", "两"),
    (r"(?<![\d:])([01]?\d|2[0-4]):30(?![\d:%]|\s?[apAP]\.?[mM])", _zh_half_hour),
    # Degrees are said without their scale, below zero as 零下.
    (rf"(?<![\d.A-Za-z])-(?={_NUMBER}(?:至-?{_NUMBER})?\s?(?:℃|°C|度|摄氏度))", "零下"),
    (rf"(?<![\d.A-Za-z])-(?={_NUMBER}%)", "负"),
    (rf"({_NUMBER})\s?(?:℃|°C)", r"\1度"),
    (
        rf"(?<=\d)\s?({'|'.join(sorted(_UNITS_ZH, key=len, reverse=True))})(?![A-Za-z])",
        lambda m: _UNITS_ZH[m[1]],
    ),
    (r"[㎡㎥]", lambda m: _UNITS_ZH[m[0]]),
    (rf"({_NUMBER})‰", r"千分之\1"),
    # 二, not 两, in an ordinal and in a date.
    (r"第2(?![\d.])|(?<![\d.])2(?=日)", lambda m: m[0].replace("2", "二")),
    # Arithmetic, where a digit is next to the sign.
    (
        r"(?<=\d) ?([=<>≥≤≠≈]) ?(?=[\dA-Za-z-])|(?<=[A-Za-z]) ?([=<>≥≤≠≈]) ?(?=-?\d)",
        lambda m: _COMPARED[m[1] or m[2]],
    ),
    (r"(?<=\d) ?÷ ?(?=\d)", "除以"),
    (r"(?<=[\dmtn]) ?[×*] ?(?=\d)", "乘"),
    (r"±(?=\d)", "正负"),
)
_ZH_AFTER = _rules(
    (
        rf"(?<=[{HAN}])[,!?]|[,!?](?=[{HAN}])",
        lambda m: {",": "，", "!": "！", "?": "？"}[m[0]],
    ),
)


MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_EN_BEFORE = _rules(
    (r"(?<![\d/])24/7(?![\d/])", "twenty four seven"),
    (r"(?<![\d/])9/11(?![\d/])", "nine eleven"),
    (r"(?<![\d/])50/50(?![\d/])", "fifty fifty"),
    (r"\bNo\. ?(?=\d)", _en_number_sign),
    (r"#(?=\d)", "number "),
    (_MULTIPLIED, r"\1 times "),
    (r"(?<=\d) ?÷ ?(?=\d)", " divided by "),
    (_DURATION, _en_duration),
    (_LENGTH, _en_length),
    (
        r"\b([Ee])xt(?:\.|ension)? ?(\d{3,6})(?!\w|[.,]\d|%| (?:\w{3,}s|feet|f?t|[ck]?m)\b)",
        _en_extension,
    ),
    (
        r"(?<![\w.-])(?:\+?\d{1,3}[- ])?(?:\(\d{3}\) ?|\d{3}[- ])?\d{3}-\d{4}(?![\w-]|\.\d)"
        r"|(?<![\w.-])\+\d{1,3}(?:[- ]?\d{2,5}){2,5}(?![\w-]|\.\d)",
        _en_digits,
    ),
    (r"(?<=[A-Za-z])\d{3,}(?!\w|\.\d)", _en_code),
    (r"(?<![\d.,])\d{12,}(?!\.?\d|,\d)", _en_digits),
    (r"\b(1[1-9]|20)(\d)0s\b", _en_decade),
    (
        r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){2,}(?!\.?\d)",
        lambda m: m[0] if m[0].count(".") == 3 else m[0].replace(".", " point "),
    ),
    (r"(?<=[vV])(\d{1,3})\.(\d{1,3})(?!\.?\d)", r" \1 point \2"),
    # A full stop after p.m. may end the sentence too.
    (r"(?<=\d) ?([ap])\.m\.(?=\s+[A-Z]|\s*$)", r" \1m."),
    (r"(?<=\d) ?([ap])\.m\.", r" \1m"),
    (rf"({_NUMBER}) ?([$€£])(?![\d])", r"\2\1"),
    (rf"(?<![\d-])([$€£]?{_NUMBER}%?) ?[–—] ?(?=[$€£]?{_NUMBER}(?![\d-]))", r"\1 to "),
    (rf"(?<![\w.-])([$€£]{_NUMBER})-(?=[$€£]{_NUMBER})", r"\1 to "),
    (rf"(?<![\w.-])({_NUMBER}%?)-(?={_NUMBER}%)", r"\1 to "),
    # The grammar takes m for minutes.
    (rf"([$€£]{_NUMBER}) ?m(?!\w)", r"\1 million"),
    (r"(?<![\w.])1 ?m(?![\w/'’])", "1 meter"),
    (r"(?<=\d) ?m(?![\w/'’])", " meters"),
    (r"(?<=\d) ?m/s\b", " meters per second"),
    (
        r"(?<=\d) ?([=<>]) ?(?=[\dA-Za-z-])|(?<=[A-Za-z]) ?([=<>]) ?(?=-?\d)",
        lambda m: {"=": " equals ", "<": " less than ", ">": " greater than "}[m[1] or m[2]],
    ),
)
_NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve teen ty hundred"
_EN_AFTER = _rules(
    (r"\bten hundred\b", "one thousand"),
    # The grammar drops the one of 1,000.
    ("".join(f"(?<!{w} )" for w in _NUMBER_WORDS.split()) + r"\bthousand\b", "one thousand"),
    # It reads 100.00 as point oh oh; two point oh is how a version is said.
    (
        rf"\bpoint((?: oh){{2,}})\b(?! (?:oh|{'|'.join(_EN_DIGIT.values())})\b)",
        lambda m: m[0].replace("oh", "zero"),
    ),
    (rf"(?<=of )(?:{MONTHS})\b", lambda m: m[0].capitalize()),
)


@dataclass(frozen=True)
class Language:
    """One language's tables. `clause` finds what the grammar is given, never more than needed.

    `before` is applied to a passage, `after_call` to what the grammar made, `after` to the passage.
    """

    code: str
    signs: dict[str, str]
    digits: dict[str, str]
    sign_gap: str
    clause: re.Pattern[str]
    before: tuple[Rule, ...]
    after_call: tuple[Rule, ...] = ()
    after: tuple[Rule, ...] = ()


def _clause(word: str, inner: str) -> re.Pattern[str]:
    """Words and single spaces; the marks in `inner` only where they stand next to a digit.

    A hyphen between a letter and a digit ends a clause: it is no minus.
    """
    hyphen = r"(?<![A-Za-z])-(?=[\d.])"
    token = rf"(?:[{word}]|{inner}|{hyphen})"
    return re.compile(rf"{token}+(?: {token}+)*", re.ASCII)


CHINESE = Language(
    "zh",
    _ZH_SIGNS,
    _ZH_DIGIT,
    "",
    _clause(rf"{HAN}A-Za-z0-9¥$€£%°℉²³/", r"[.:](?=\d)|[+×÷](?=\d)"),
    _ZH_BEFORE,
    after=_ZH_AFTER,
)
ENGLISH = Language(
    "en",
    _EN_SIGNS,
    _EN_DIGIT,
    " ",
    _clause("A-Za-zÀ-ÖØ-öø-ɏ0-9¥$€£%°/'’", r"[.:](?=\d)|(?<=\d),(?=\d)|\+(?= ?\d)|(?<=\d)\+"),
    _EN_BEFORE,
    after_call=_EN_AFTER,
)

#: Any other language: nothing is spelled out.
OTHER_LANGUAGE = Language("", {}, {}, "", re.compile(r"(?!)"), ())
