"""The fields and values of an instruction that the model's authors document, and their names.

Facts from `cookbooks/instructions.md` of inclusionAI/Ming-omni-tts, in the spelling that goes into
the prompt; the English names are this project's. A table of values maps each to its other names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from trt_runtime.errors import UserError
from trt_runtime.printable import shown
from trt_runtime.spoken_text import check_text

Choices = Mapping[str, tuple[str, ...]]

#: A field's English name → the model's own key. Both may be used.
BACKGROUND_FIELDS = {
    "genre": "Genre",
    "mood": "Mood",
    "instrument": "Instrument",
    "theme": "Theme",
    "environment": "ENV",
    "snr": "SNR",
}
INSTRUCTION_FIELDS = {
    "dialect": "方言",
    "style": "风格",
    "rate": "语速",
    "pitch": "基频",
    "volume": "音量",
    "emotion": "情感",
    "background": "BGM",
    "ip": "IP",
}

EMOTIONS: Choices = {"高兴": ("happy",), "愤怒": ("angry",), "悲伤": ("sad",)}
#: 广粤话 stands in the reference's own test and not in its document.
DIALECTS: Choices = {
    "粤语": ("cantonese",),
    "川渝": ("sichuanese", "sichuan-chongqing"),
    "广粤话": (),
}
RATES: Choices = {"快速": ("fast",), "中速": ("medium",), "慢速": ("slow",)}
#: Pitch and volume.
LEVELS: Choices = {"低": ("low",), "中": ("medium",), "高": ("high",)}

#: `Tap water runnin` is how the document spells it, and so perhaps how the model learnt it.
ENVIRONMENTS: Choices = {
    "City street ambience": (),
    "Tap water runnin": ("Tap water running",),
    "Birds chirping": (),
    "Seagulls crying": (),
    "Wind blowing": (),
    "Bonfire": (),
    "Thunderstorm": (),
    "Restaurant chatter": (),
    "Forest sounds": (),
    "Rainfall": (),
    "Keyboard typing": (),
    "Restaurant ambience": (),
    "Cafe ambience": (),
    "Frogs croaking": (),
    "Stadium crowd cheering": (),
    "Waves crashing": (),
    "Footsteps in snow": (),
    "Waves on a beach": (),
    "River flowing": (),
    "People talking": (),
    "Flipping book pages": (),
    "Ocean waves": (),
    "Traffic hum": (),
    "Beach ambience": (),
}

#: Labels of music, alone or under speech. The document's list for music under speech is short, and
#: the reference's own example steps outside it, so these advise and never refuse.
MUSIC_LABELS: dict[str, tuple[str, ...]] = {
    "genre": (
        "独立民谣", "当代古典音乐", "现代流行抒情曲", "乡村音乐", "流行乐", "流行摇滚", "电子舞曲",
        "雷鬼顿", "迪斯科",
    ),
    "mood": (
        "鼓舞人心 / 充满希望", "壮丽宏大", "快乐", "平静放松", "自信 / 坚定", "轻快无忧无虑",
        "活力四射 / 精力充沛", "活力四射", "悲伤哀愁", "温暖 / 友善", "兴奋",
    ),
    "instrument": ("低音鼓", "电吉他", "合成拨弦", "合成铜管乐器", "架子鼓", "定音鼓"),
    "theme": (
        "励志", "生日", "分手", "旅行", "运动", "剧院音乐厅", "音乐现场", "节日", "好时光",
        "庆典与喜悦",
    ),
}  # fmt: skip

_PLAIN_VOICES = (
    "灵小安 灵语汐 灵小萌 灵小柔 灵小雅 花小呗 灵韵 妩媚妲己 灵婉 灵小月 灵朵儿 灵岩 灵小锋 "
    "灵小川 灵小甄 灵小知 灵小惠 灵小晴 灵小琪 灵梦 灵恬 灵小汐 灵小棠 灵小梨 灵舒 灵娇 灵小芸 "
    "灵锐 灵空 灵宇 灵朗 灵楷 灵旭 灵骁 灵江 悲伤女声 皮六 说唱小哥 蜡笔小新 悟空"
)
#: Each of these is known only with a mood after it: 灵信远_高兴.
_VOICES_WITH_A_MOOD = (
    "灵信远 灵思齐 灵叙柔 灵绮木 灵书悦 灵渊霆 灵素心 灵晓声 灵风信 灵采薇 灵卓然 灵惜梦 灵浅忧 "
    "灵昭野 灵心澜 灵犀言 灵语冰 灵逸风 灵悦澜 灵惊鸿 灵御心 灵语恬 灵心恬 灵惜蕊 灵语萱 灵语烟 "
    "灵律雅 灵惊涛 灵寒陌 灵决冥 灵亦尘 灵语尘 灵慈萱 灵妙音 灵断尘 灵悦兮 灵若虚 灵熙婉 灵旭扬 "
    "灵阅川 灵未央 灵妩月 灵梦瑶 灵妙声 灵烈瑶 灵幽月 灵悦心 灵汐月 灵书意 灵知远 灵温言 灵傲尘 "
    "灵佑安 灵惜晨 灵宛溪 灵言澈 灵溯光 灵惊弦 灵嘉肴 灵黛嗔 灵孤影 灵雨汐"
)
_VOICE_MOODS = ("中性", "厌恶", "恐惧", "悲伤", "惊讶", "生气", "高兴")
_UNDOCUMENTED = {"灵晓声_恐惧", "灵梦瑶_厌恶", "灵妙声_厌恶", "灵傲尘_惊讶", "灵雨汐_厌恶"}
_CHARACTERS = (
    "蜡笔小新_野原新之助 (小新)",
    "蜡笔小新_野原美伢 (美伢)",
    "小猪佩奇_佩奇",
    "康熙王朝_康熙",
    "西游记_唐僧",
    "甄嬛传_四郎",
    "潜伏_余则成",
    "水浒传_武松",
    "水浒传_潘金莲",
    "雍正王朝_雍正",
)

#: The built-in ("IP") voices.
VOICES: Choices = dict.fromkeys(
    [
        *_PLAIN_VOICES.split(),
        *(
            f"{voice}_{mood}"
            for voice in _VOICES_WITH_A_MOOD.split()
            for mood in _VOICE_MOODS
            if f"{voice}_{mood}" not in _UNDOCUMENTED
        ),
        *_CHARACTERS,
    ],
    (),
)

#: A value longer than any name is looked for in no table: nothing in it can be near.
_LONGEST_NAME = 100


def documented(choices: Choices, value: str) -> str | None:
    """The value of `choices` that `value` names, in any case; None where it names none."""
    name = value.strip().casefold()
    for known, others in choices.items():
        if any(name == each.casefold() for each in (known, *others)):
            return known
    return None


def nearest(known: Iterable[str], value: str, most: int = 7) -> list[str]:
    """At most `most` of the names `known` that `value` may have meant: first those that hold it."""
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(name.casefold(), name)
    wanted = value.strip().casefold()
    if not wanted or len(wanted) > _LONGEST_NAME:
        return []
    close = difflib.get_close_matches(wanted, names, most, 0.5)
    holding = [name for name in names if wanted in name]
    return [names[name] for name in dict.fromkeys(holding + close)][:most]


def check_choice(name: str, value: object, choices: Choices) -> str:
    """The value of `choices` that `value` names; raises UserError where it names none."""
    text = check_text(value, name)
    known = documented(choices, text)
    if known is not None:
        return known
    near = nearest([each for own, others in choices.items() for each in (own, *others)], text)
    raise UserError(
        f"{name} is none that the model's authors document",
        expected=_listed(choices),
        found=f"{shown(text)}; near ones are {', '.join(near)}" if near else shown(text),
        do=f"choose {'one of those' if near else 'another'}, or give the whole instruction as a "
        "mapping of the model's own keys, whose values are not checked",
    )


def _listed(choices: Choices) -> str:
    if choices is VOICES:
        return f"one of the {len(VOICES)} names in trt_runtime.instruction_values.VOICES"
    return ", ".join(f"{own} ({others[0]})" if others else own for own, others in choices.items())


def by_english_name(kind: str, fields: Mapping[str, str], given: object) -> dict[str, Any]:
    """What is set of `given`, by the names of `fields`.

    Raises UserError for an unknown name, and for a field that is set by both of its names.
    """
    if not isinstance(given, Mapping):
        raise UserError(
            f"the {kind}'s fields are no mapping",
            expected=f"a mapping of {', '.join(fields)}",
            found=type(given).__name__,
            do="give a dict",
        )
    english = {own: name for name, own in fields.items()}
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = key if key in fields else english.get(key)
        if name is None:
            near = nearest([*fields, *english], str(key), 1)
            raise UserError(
                f"the {kind} has no field {shown(key)}",
                expected=", ".join(f"{name} ({own})" for name, own in fields.items()),
                found=f"{shown(key)}; the nearest is {near[0]}" if near else shown(key),
                do=f"write {near[0]}" if near else "use one of these, or leave it out",
            )
        if value is None:
            continue
        if name in values:
            raise UserError(
                f"the {kind}'s {name} is given twice",
                expected=f"either {name} or {fields[name]}: two names of one field",
                found="both names",
                do="leave one out",
            )
        values[name] = value
    return values


def label_warnings(labels: Mapping[str, str | None]) -> tuple[str, ...]:
    """A warning for each of the labels, by name in :data:`MUSIC_LABELS`, that is not documented.

    A final "." does not count: the reference's examples write some labels with it.
    """
    warnings = []
    for name, known in MUSIC_LABELS.items():
        label = labels.get(name)
        if label is None or label.strip().removesuffix(".").rstrip() in known:
            continue
        near = nearest(known, label, 3)
        warnings.append(
            f"{name} {shown(label)} is not among the labels that the model's authors document and "
            f"may have no effect; {'near ones' if near else 'they'} are {', '.join(near or known)}"
        )
    return tuple(warnings)
