"""Codes of languages (ISO 639-1), their English names, and what names of files tell of them."""

import re

_NAMES = """
af Afrikaans, am Amharic, ar Arabic, as Assamese, az Azerbaijani, ba Bashkir, be Belarusian,
bg Bulgarian, bn Bengali, bo Tibetan, br Breton, bs Bosnian, ca Catalan, ceb Cebuano, co Corsican,
cs Czech, cv Chuvash, cy Welsh, da Danish, de German, dv Divehi, dz Dzongkha, el Greek, en English,
eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fil Filipino, fo Faroese,
fr French, fy Western Frisian, ga Irish, gd Scottish Gaelic, gl Galician, gn Guarani, gu Gujarati,
ha Hausa, haw Hawaiian, he Hebrew, hi Hindi, hr Croatian, ht Haitian Creole, hu Hungarian,
hy Armenian, id Indonesian, ig Igbo, is Icelandic, it Italian, iu Inuktitut, ja Japanese,
jv Javanese, ka Georgian, kk Kazakh, kl Kalaallisut, km Khmer, kn Kannada, ko Korean, ku Kurdish,
ky Kyrgyz, la Latin, lb Luxembourgish, ln Lingala, lo Lao, lt Lithuanian, lv Latvian, mg Malagasy,
mi Maori, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my Burmese,
nb Norwegian Bokmål, ne Nepali, nl Dutch, nn Norwegian Nynorsk, no Norwegian, ny Nyanja, oc Occitan,
om Oromo, or Odia, pa Punjabi, pl Polish, ps Pashto, pt Portuguese, qu Quechua, rm Romansh,
ro Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit, sc Sardinian, sd Sindhi, se Northern Sami,
si Sinhala, sk Slovak, sl Slovenian, sm Samoan, sn Shona, so Somali, sq Albanian, sr Serbian,
st Southern Sotho, su Sundanese, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai,
ti Tigrinya, tk Turkmen, tl Tagalog, tn Tswana, to Tongan, tr Turkish, ts Tsonga, tt Tatar,
ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, vo Volapük, wo Wolof, xh Xhosa,
yi Yiddish, yo Yoruba, zh Chinese, zu Zulu
"""
NAMES: dict[str, str] = {
    code: name for code, _, name in (entry.strip().partition(" ") for entry in _NAMES.split(","))
}


def language_of(file: str) -> str | None:
    """The language that a file's name ends with, as in train.en or train.en.gz; None if none."""
    ending = re.search(r"\.([a-z]{2,3})(?:\.gz)?$", file)
    return ending[1] if ending and ending[1] in NAMES else None
