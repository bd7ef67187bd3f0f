"""Spelling out: the reference's table, the docs' differences, and what never happens."""

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.goldens import load_json, needs_goldens
from trt_runtime import text_normalization
from trt_runtime.errors import UserError
from trt_runtime.text_normalization import spell_out

DOCS = Path(__file__).resolve().parents[2] / "docs" / "text-normalization.md"


def documented():
    """{input: (reference, ours, reason)} of the table between the markers."""
    page = DOCS.read_text(encoding="utf-8")
    table = page.split("<!-- differences: begin -->")[1].split("<!-- differences: end -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    found = {}
    for *cells, reason in rows:
        source, reference, ours = (json.loads(cell.strip("`")) for cell in cells)
        found[source] = reference, ours, reason
    return found


@pytest.mark.parametrize(("text", "row"), documented().items())
def test_the_docs_say_what_comes_out(text, row):
    reference, ours, reason = row
    assert spell_out(text) == ours
    assert reference != ours, "a row that is no difference"
    assert reason.strip()


@needs_goldens
def test_each_row_of_the_reference_is_equal_or_documented():
    rows = {row["input"]: row["normalized"] for row in load_json("text_norm")["rows"]}
    different = {text: said for text, said in rows.items() if spell_out(text) != said}
    listed = {text: reference for text, (reference, _, _) in documented().items()}
    assert listed == different


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # The reference's own readings.
        ("我有3个苹果和12.5元钱。", "我有三个苹果和十二点五元钱。"),
        ("2024年5月6日 14:30", "二零二四年五月六日 十四点半"),
        ("8:30-12:30开会", "八点半至十二点半开会"),
        ("电话13812345678，请拨打", "电话幺三八幺二三四五六七八，请拨打"),
        ("总价￥1,234.56元", "总价一千二百三十四点五六元"),
        ("气温-5℃到10℃", "气温零下五度到十度"),
        ("血压120mmHg，50ml水", "血压一百二十毫米汞柱，五十毫升水"),
        ("x=5且y<3>2", "x等于五且y小于三大于二"),
        ("北京市朝阳区1号楼2单元301室", "北京市朝阳区一号楼两单元三零幺室"),
        ("航班CA1234在T3航站楼", "航班CA幺二三四在T三航站楼"),
        ("12" * 30, "幺二" * 30),
        # Numbers that are names.
        ("010-12345678或+86 138-1234-5678", "零幺零幺二三四五六七八或加八六幺三八幺二三四五六七八"),
        ("验证码是123456，QQ：10001", "验证码是幺二三四五六，QQ：幺零零零幺"),
        ("服务器192.168.1.1和版本1.10.3", "服务器幺九二点幺六八点幺点幺和版本一点十点三"),
        ("GPT-4比GPT-3.5强", "GPT-四比GPT-三点五强"),
        # Quantities.
        ("$3,000和¥50万，HK$20，5%", "三千美元和五十万元，二十港元，百分之五"),
        ("涨了5-10%，共2-3个", "涨了百分之五至百分之十，共两至三个"),
        ("1998-2008年，90后", "一九九八至二零零八年，九零后"),
        ("今年是2024，96年5月，2000人", "今年是二零二四，九六年五月，两千人"),
        ("下午2:30，负债率-3.2%", "下午两点半，负债率负百分之三点二"),
        ("-10~-5℃，-3度，100$", "零下十至零下五度，零下三度，一百美元"),
        ("HTTP 404错误，股票600519", "HTTP 四零四错误，股票六零零五幺九"),
        ("-5℃~10℃，第1-3章，10—20人", "零下五度至十度，第一至三章，十至二十人"),
        ("第2个，2月2日，2个", "第二个，二月二日，两个"),
        ("1/2，0.001，-0.5", "二分之一，零点零零一，负零点五"),
        ("3-2=1，6÷2=3，比分2-1", "三减二等于一，六除以二等于三，比分二比一"),
        ("60km/h，50㎡，3‰", "每小时六十公里，五十平方米，千分之三"),
        ("５０％和１２３元", "百分之五十和一百二十三元"),
        ("你好,世界!真的?", "你好，世界！真的？"),
        ("联系a.b@x.com.cn或www.baidu.com。", "联系a点b艾特x点com点cn或www点baidu点com。"),
        # Extensions are read digit by digit, money sent on is not.
        ("转8012", "转八零幺二"),
        ("拨010-12345678转8012", "拨零幺零幺二三四五六七八转八零幺二"),
        ("请转8012分机", "请转八零幺二分机"),
        ("分机号801，总机转302", "分机号八零幺，总机转三零二"),
        ("我转800元，微信转500给他，转1000", "我转八百元，微信转五百给他，转一千"),
        # Units side by side, and x between numbers.
        ("用了3h 45m，2m 30s，高5ft 9in", "用了三小时 四十五分，两分 三十秒，高五英尺 九英寸"),
        ("5 x 3 = 15", "五乘三等于十五"),
        ("屏幕1920x1080，墙2m x 4m", "屏幕一千九百二十乘一千零八十，墙两米乘四米"),
        ("100 × 2000，x=5，0x10", "一百乘两千，x等于五，零x十"),
    ],
)  # fmt: skip
def test_chinese(text, said):
    assert spell_out(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It costs $3,000 or $1,000.", "It costs three thousand dollars or one thousand dollars."),
        ("At 3:45 p.m. He left.", "At three forty five PM. He left."),
        ("In 1999, the 1990s", "In nineteen ninety nine, the nineteen nineties"),
        ("On Jan 2, 2023", "On the second of January, twenty twenty three"),
        ("the 1st and 22nd, No. 5, #6", "the first and twenty second, number five, number six"),
        ("about 50%, 5-10%", "about fifty percent, five to ten percent"),
        ("10–20 people, $5-$10", "ten to twenty people, five dollars to ten dollars"),
        ("Call 555-1234 now", "Call five five five, one two three four now"),
        ("100 m at 10 km/h, 1m", "one hundred meters at ten kilometers per hour, one meter"),
        ("GPT-4, a 100-year-old, -5", "GPT-four, a one hundred-year-old, negative five"),
        ("v1.2.3 is out 24/7", "v one point two point three is out twenty four seven"),
        ("mail a.b@c.org.", "mail a dot b at c dot org."),
        ("https://x.io/a1!", "https colon slash slash x dot io slash a one!"),
        ("£1.5m and 5€", "one point five million pounds and five euros"),
        # Units side by side.
        ("3h 45m, 1 h 1 m late", "three hours forty five minutes, one hour one minute late"),
        ("3h and 45m late", "three hours and forty five minutes late"),
        ("at 1h1m1s or 2d 4h", "at one hour one minute one second or two days four hours"),
        ("after 5m 30.5s", "after five minutes thirty point five seconds"),
        ("run 100 m 10 s, 45 m", "run one hundred meters ten seconds, forty five meters"),
        ("He is 5 ft 9 in tall", "He is five feet nine inches tall"),
        ("He is 6ft2in.", "He is six feet two inches."),
        ("He is 5 ft. 1 in. tall", "He is five feet one inch tall"),
        ("5 ft in the air, 5 in 2020", "five feet in the air, five in twenty twenty"),
        # Between numbers.
        ("so 5 x 3 = 15", "so five times three equals fifteen"),
        ("a 5×3 box, 6 ÷ 2", "a five times three box, six divided by two"),
        ("2m x 4m, a 2x zoom", "two meters times four meters, a two times zoom"),
        # Capitals.
        ("July 1969, JULY 1969", "July nineteen sixty nine, JULY nineteen sixty nine"),
        ("in Jan 1999, july 1999", "in January nineteen ninety nine, july nineteen ninety nine"),
        ("He may leave in May 1999", "He may leave in May nineteen ninety nine"),
        ("No. 5 is. No. 6 and No. 7", "Number five is. Number six and number seven"),
        ("speaker_1: No. 5 is", "speaker_1: Number five is"),
        # Codes and extensions.
        ("Gate of BA2490.", "Gate of BA two four nine zero."),
        ("Ext. 8012, extension 801", "Extension eight zero one two, extension eight zero one"),
        ("an extension 100 meters long", "an extension one hundred meters long"),
        # A fraction of zeros.
        ("about 100.00, 2.0", "about one hundred point zero zero, two point oh"),
        ("about 1.05, 1.005", "about one point oh five, one point oh oh five"),
    ],
)  # fmt: skip
def test_english(text, said):
    assert spell_out(text) == said


def test_the_language_is_that_of_the_sentence():
    assert spell_out("我有3个。I have 3 apples here. 好2个") == (
        "我有三个。I have three apples here. 好两个"
    )
    assert spell_out("新品iPhone 15 Pro。iPhone 16!") == "新品iPhone 十五 Pro。iPhone 十六！"
    assert spell_out("Call me:\n5\n") == "Call me:\nfive\n"
    assert spell_out("5\n你好") == "五\n你好"
    assert spell_out("5kg") == "五千克"
    for foreign in ("3月に東京へ2回", "Привет 5", "사과 3개"):
        assert spell_out(foreign) == foreign


@pytest.mark.parametrize(
    "text",
    [
        "", " ", " \n\t\u3000", "Hello, world!", "今天天气很好。", "繁體中文轉換",
        "😀笑脸😂👨‍👩‍👧❤️",
        "“引号”‘单引’\"double\" \\ {x} [y]", "《书名》【标题】（括号）(paren)",
        "Tab\tand\nnewline\r\n",
        "  two  spaces  ", "你好……世界~~~——！？!?", "speaker_1:你好\n  speaker_12: hi", "C++和C#",
        "<|im_start|><audio>句<b1>", "a_b_c @某人 #话题# &", "Dr. O'Neil, U.S.A., e.g. this",
        "\ud800\udc00", "e\u0301 \u200b\u200d\ufeff", "²³½①Ⅲ", "1\ufe0f\u20e3"[1:], "\x00\x1b[m",
    ],
)  # fmt: skip
def test_what_is_not_spelled_out_stays(text):
    assert spell_out(text) == text


def test_the_rest_of_a_text_stays_where_numbers_are_spelled_out():
    assert spell_out(' 😀 他说:"3个" \\ {a}  (5)\t。\r\n\r\n 《4》 ') == (
        ' 😀 他说:"三个" \\ {a}  (五)\t。\r\n\r\n 《四》 '
    )
    assert spell_out(' She said  "5" (6) \\ {7}…\n') == (' She said  "five" (six) \\ {seven}…\n')
    assert spell_out("speaker_2:有2个<|x3|>") == "speaker_2:有两个<|x3|>"


@pytest.mark.parametrize("seed", range(200))
def test_odd_text_comes_through(seed):
    generator = random.Random(seed)
    alphabet = [
        *"0123456789 .,:;-+/%$¥€°=<>×~～—@#&_'\"\\{}()[]!?\n\t年月日元个好第Aa²½é\u0301\u200d😀",
        *("\ud800", "km/h", "p.m.", "www.", ".com", "GPT-", "℃", "speaker_1"),
    ]
    text = "".join(generator.choices(alphabet, k=generator.randrange(1, 80)))
    said = spell_out(text)
    assert said == spell_out(text)
    # Marks that no rule reads are kept, in order.
    marks = '"\\{}[]\n\t😀\u0301\u200d\ud800;#'
    if "@" not in text and "www" not in text and ".com" not in text:
        kept = [c for c in text if c in marks]
        assert [c for c in said if c in marks] == kept


@pytest.mark.parametrize(
    "unit",
    ["今天是2024年5月6日，我有3个苹果和12.5元钱。", "He paid $3,000 for 5 kg. ", "1", "好", "abc ",
     "a@", "a.", "<a", "12:", "1-", "1,000,", "www.", "a1", "1.", "+1 ", "-", "1~",
     "\n", "１", "=5", "5x", "5 x ", "3h ", "3h 45m ", "5 ft ", "转8", "ext 8", "No. ", "5 in "],
)  # fmt: skip
def test_time_is_linear(unit):
    text = unit * (20_000 // len(unit))
    start = time.perf_counter()
    spell_out(text)
    # Two seconds here at most, so 200,000 characters take twenty.
    assert time.perf_counter() - start < 30


def test_text_without_numbers_takes_no_time():
    start = time.perf_counter()
    assert spell_out("你好，世界。" * 33_000) == "你好，世界。" * 33_000
    assert time.perf_counter() - start < 5


def test_threads_get_what_one_gets():
    texts = [f"有{i}个，$1,{i:03}, at {i % 12}:15" for i in range(40)]
    alone = [spell_out(text) for text in texts]
    results = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: [spell_out(t) for t in texts]}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), alone)


def test_wetext_is_loaded_by_the_first_number_only():
    script = (
        "import sys; from trt_runtime.text_normalization import spell_out as n;"
        "n('你好 world'); assert 'wetext' not in sys.modules;"
        "n('3'); assert 'wetext' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=DOCS.parents[1])


def test_without_wetext_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(text_normalization, "_loaded", [])
    monkeypatch.setitem(sys.modules, "wetext", None)
    assert spell_out("你好") == "你好"
    with pytest.raises(UserError) as caught:
        spell_out("3个")
    assert "pip install wetext" in str(caught.value)
