"""What corpora there are: their files, where those are, and the hashes they are known by."""

from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class File:
    """A file to fetch. Of its hashes one must be right: `sha256:…` or `md5:…` of the file, or
    `text:…`, the sha256 of what is gzipped in it.
    """

    path: str  # in a mirror
    address: str | None  # None: in mirrors only
    size: int  # bytes; about as many if it is known by its text, which can be packed in many ways
    hashes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the size is known to the byte."""
        return all(known.startswith("sha256:") for known in self.hashes)


@dataclass(frozen=True)
class Text:
    """One side of a bitext: a gzip file, or a member of an archive."""

    file: File
    member: str | None = None


@dataclass(frozen=True)
class PublicBitext:
    """Files whose lines translate each other: NAME.LANGUAGE.gz when they are ready."""

    name: str
    lines: int  # for people to know; the empty ones too
    ways: tuple[Mapping[str, Text], ...]  # text by language; the first way that is there is taken

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]

    @property
    def files(self) -> dict[str, str]:
        """Names of the ready files by language."""
        return {language: f"{self.name}.{language}.gz" for language in self.ways[0]}


@dataclass(frozen=True)
class PublicCorpus:
    """Bitexts to train, validate and test on; the first language is the one to translate from."""

    name: str
    about: str
    home: str
    languages: tuple[str, ...]
    bitexts: tuple[PublicBitext, ...]

    @property
    def pairs(self) -> int:
        """How many there are to train on, the empty ones included."""
        return sum(bitext.lines for bitext in self.bitexts if bitext.part == "train")

    @property
    def size(self) -> int:
        """How many bytes are fetched from the public addresses."""
        files = {
            text.file
            for bitext in self.bitexts
            for way in bitext.ways
            for text in way.values()
            if text.file.address is not None
        }
        return sum(file.size for file in files)


def _multi30k(name: str, size: int, md5: str | None, text: str) -> Text:
    address = f"https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{name}"
    hashes = (f"text:{text}",) if md5 is None else (f"text:{text}", f"md5:{md5}")
    return Text(File(f"multi30k/{name}", address, size, hashes))


def _archive(address: str, size: int, sha256: str) -> File:
    """An archive: a mirror has it at the path that it has at its public host."""
    path = address.split("/", 3)[3]
    return File(path, address, size, (f"sha256:{sha256}",))


def _members(file: File, pattern: str, *languages: str) -> dict[str, Text]:
    return {language: Text(file, pattern.format(language)) for language in languages}


def _newstest(name: str, size: int, text: str) -> Text:
    return Text(File(f"newstest/{name}", None, size, (f"text:{text}",)))


# The md5 are torchtext's (torchtext/experimental/datasets/raw/multi30k.py); the sha256 of the texts
# are of a copy of that repository, whose files were packed anew. It has none of the tests of 2017.
# fmt: off
_MULTI30K = (
    PublicBitext("train", 29_000, ({
        "en": _multi30k("train.en.gz", 562_688, "0065d13af80720a55ca8153d126e6627",
            "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
        "de": _multi30k("train.de.gz", 626_192, "81ff90b99829c0cd4b1b587d394afd39",
            "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
        "fr": _multi30k("train.fr.gz", 595_900, "6cb767741dcad3931f966fefbc05203f",
            "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d"),
    },)),
    PublicBitext("valid", 1_014, ({
        "en": _multi30k("val.en.gz", 21_514, "2b69aa9253948ac9f67e94917272dd40",
            "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
        "de": _multi30k("val.de.gz", 24_435, "6e0e229eb049e3fc99a1ef02fb2d5f91",
            "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
        "fr": _multi30k("val.fr.gz", 22_798, "93fc564584b7e5ba410c761ea5a1c682",
            "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc"),
    },)),
    PublicBitext("test", 1_000, ({
        "en": _multi30k("test_2016_flickr.en.gz", 20_933, "ff2c0fcb4893a13bd73414306bc250ae",
            "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
        "de": _multi30k("test_2016_flickr.de.gz", 22_645, "efd67d314d98489b716b145475101932",
            "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
        "fr": _multi30k("test_2016_flickr.fr.gz", 22_144, "08dc7cd4a662f31718412de95ca9bfe3",
            "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"),
    },)),
    PublicBitext("test.2017_flickr", 1_000, ({
        "en": _multi30k("test_2017_flickr.en.gz", 19_138, None,
            "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98"),
        "de": _multi30k("test_2017_flickr.de.gz", 21_471, None,
            "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081"),
        "fr": _multi30k("test_2017_flickr.fr.gz", 20_434, None,
            "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6"),
    },)),
    PublicBitext("test.2017_mscoco", 461, ({
        "en": _multi30k("test_2017_mscoco.en.gz", 8_844, None,
            "43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2"),
        "de": _multi30k("test_2017_mscoco.de.gz", 10_230, None,
            "58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22"),
        "fr": _multi30k("test_2017_mscoco.fr.gz", 9_751, None,
            "39cde3f43f32b0a6bf29ce4917a46329ff32e53070c2fac87506695a740ae0a0"),
    },)),
)

# Sizes and sha256 are those of TensorFlow Datasets (tensorflow_datasets/url_checksums/
# wmt14_translate.txt; of UN and Giga, wmt15_translate.txt), as are the names in dev.tgz.
_EUROPARL = _archive(
    "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz", 657_632_379,
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7")
_COMMONCRAWL = _archive(
    "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz", 918_311_367,
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5")
_NEWS_COMMENTARY = _archive(
    "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz", 80_418_416,
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485")
_UN = _archive(
    "https://www.statmt.org/wmt13/training-parallel-un.tgz", 2_365_634_246,
    "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47")
_GIGA = _archive(
    "https://www.statmt.org/wmt10/training-giga-fren.tar", 2_595_102_720,
    "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a")
_DEV = _archive(
    "https://data.statmt.org/wmt19/translation-task/dev.tgz", 38_654_961,
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7")

_WMT14_EN_DE = (
    PublicBitext("train.europarl-v7", 1_920_209,
        (_members(_EUROPARL, "training/europarl-v7.de-en.{}", "en", "de"),)),
    PublicBitext("train.commoncrawl", 2_399_123,
        (_members(_COMMONCRAWL, "commoncrawl.de-en.{}", "en", "de"),)),
    PublicBitext("train.news-commentary-v9", 201_288,
        (_members(_NEWS_COMMENTARY, "training/news-commentary-v9.de-en.{}", "en", "de"),)),
    PublicBitext("valid", 3_000, ({
        "en": _newstest("newstest2013.en-de.en.gz", 129_266,
            "ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e"),
        "de": _newstest("newstest2013.en-de.de.gz", 147_953,
            "d7ea35ab91ff3709e03ad9cb6bf5b4f2cc775cd2d72efd5254c4aec5e69663ca"),
    }, _members(_DEV, "dev/newstest2013.{}", "en", "de"))),
    PublicBitext("test", 3_003, ({
        "en": _newstest("newstest2014.en-de.en.gz", 140_794,
            "7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971"),
        "de": _newstest("newstest2014.en-de.de.gz", 156_142,
            "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e"),
    }, {
        "en": Text(_DEV, "dev/newstest2014-deen-ref.en.sgm"),
        "de": Text(_DEV, "dev/newstest2014-deen-src.de.sgm"),
    })),
)

_WMT14_EN_FR = (
    PublicBitext("train.europarl-v7", 2_007_723,
        (_members(_EUROPARL, "training/europarl-v7.fr-en.{}", "en", "fr"),)),
    PublicBitext("train.commoncrawl", 3_244_152,
        (_members(_COMMONCRAWL, "commoncrawl.fr-en.{}", "en", "fr"),)),
    PublicBitext("train.news-commentary-v9", 183_251,
        (_members(_NEWS_COMMENTARY, "training/news-commentary-v9.fr-en.{}", "en", "fr"),)),
    PublicBitext("train.un", 12_886_831, (_members(_UN, "un/undoc.2000.fr-en.{}", "en", "fr"),)),
    PublicBitext("train.giga", 22_520_376,
        (_members(_GIGA, "giga-fren.release2.fixed.{}.gz", "en", "fr"),)),
    PublicBitext("valid", 3_000, ({
        "en": _newstest("newstest2013.en-fr.en.gz", 129_266,
            "ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e"),
        "fr": _newstest("newstest2013.en-fr.fr.gz", 144_824,
            "909b63be5df3eb8c13e1d5967bf3f0adfdb9f6ed5e638c5bffff563ee2ff7f41"),
    }, _members(_DEV, "dev/newstest2013.{}", "en", "fr"))),
    PublicBitext("test", 3_003, ({
        "en": _newstest("newstest2014.en-fr.en.gz", 147_123,
            "9a12cb6e8efb3509ebede627e4a9c83ee64935509d561ff70f4b7bd5f93f6096"),
        "fr": _newstest("newstest2014.en-fr.fr.gz", 164_043,
            "2bd07dc204f965bf88e90adb6223a8cb850f9bf9840df6af1f4945195936656e"),
    }, {
        "en": Text(_DEV, "dev/newstest2014-fren-ref.en.sgm"),
        "fr": Text(_DEV, "dev/newstest2014-fren-src.fr.sgm"),
    })),
)
# fmt: on

CORPORA = {
    corpus.name: corpus
    for corpus in (
        PublicCorpus(
            "multi30k",
            "captions of pictures, English to German and French",
            "https://github.com/multi30k/dataset",
            ("en", "de", "fr"),
            _MULTI30K,
        ),
        PublicCorpus(
            "wmt14-en-de",
            "parliament, web and news, English to German, as in the paper",
            "https://www.statmt.org/wmt14/translation-task.html",
            ("en", "de"),
            _WMT14_EN_DE,
        ),
        PublicCorpus(
            "wmt14-en-fr",
            "parliament, web, news, UN and Canada, English to French, as in the paper",
            "https://www.statmt.org/wmt14/translation-task.html",
            ("en", "fr"),
            _WMT14_EN_FR,
        ),
    )
}
