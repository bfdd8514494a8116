"""piper's diacritizers, with the models in its wheel: vowel marks for Arabic and Hebrew text."""

from harness import measure
from piper.hebrew import NakdimonDiacritizer
from piper.tashkeel import TashkeelDiacritizer

ARABIC = """اللغة العربية هي أكثر اللغات السامية تحدثا
يولد جميع الناس أحرارا متساوين في الكرامة والحقوق
ذهب الولد إلى المدرسة في الصباح الباكر
العلم نور والجهل ظلام
كتب الطالب الدرس ثم عاد إلى البيت
الشمس تشرق كل يوم من الشرق وتغرب في الغرب
قرأت كتابا مفيدا عن تاريخ العلوم عند العرب
الصبر مفتاح الفرج""".splitlines()
HEBREW = """כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם
הילד הלך לבית הספר בבוקר
השמש זורחת במזרח ושוקעת במערב
ספר טוב הוא חבר טוב
ירושלים היא עיר עתיקה מאוד
אני לומד לכתוב ולקרוא עברית
המים קרים והשמיים כחולים היום
שלום לכולם וברוכים הבאים""".splitlines()


def work(models: tuple) -> dict:
    arabic, hebrew = models
    return {
        **{text: arabic(text) for text in [*ARABIC, " ".join(ARABIC)]},
        **{text: hebrew(text) for text in [*HEBREW, " ".join(HEBREW)]},
    }


measure(lambda: (TashkeelDiacritizer(), NakdimonDiacritizer()), work)
