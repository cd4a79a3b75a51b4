"""Short texts with a negation, made from templates and lists of words: training texts only.

Phrases of SST teach negation ("not bad"), but have few of the forms that people use in short
messages ("No complaints.", "It lacks charm."). negation_words.txt has words by domain and
constructions, negation_idioms.txt turns of phrase. `texts` draws pairs of a negative and a positive
text that differ in little: in the word, or in whether it is negated.
"""

import random
import re
from pathlib import Path

# Of the draws; those of the constructions with words are about by their number.
KINDS = {
    "adjective": 25,
    "self": 7,
    "predicate": 5,
    "noun": 12,
    "one": 4,
    "verb": 10,
    "life": 6,
    "deed": 4,
    "feeling": 8,
    "pairs": 18,
    "twins": 7,
    "idioms": 9,
    "neutral": 1,
}
DOMAINS = ("film", "food", "place", "person", "thing", "app", "event")
TEMPLATES = [name for name in KINDS if name not in ("idioms", "neutral")]
# Which two of four texts make a pair: (turned?, good word?), the negative text first.
TWINS = (
    ((True, True), (True, False)),
    ((True, True), (True, False)),
    ((True, True), (False, True)),
    ((False, False), (True, False)),
    ((False, False), (False, True)),
)
SINGULAR = {"is": "is", "was": "was", "has": "has", "does": "does", "z": "s"}
PLURAL = {"is": "are", "was": "were", "has": "have", "does": "do", "z": ""}
OBJECTS = {"he": "him", "she": "her", "they": "them"}
POSSESSIVES = {"he": "his", "she": "her", "they": "their", "it": "its"}
BRITISH = {
    "humor": "humour",
    "flavor": "flavour",
    "favorite": "favourite",
    "neighbor": "neighbour",
    "honor": "honour",
    "color": "colour",
    "apologize": "apologise",
    "organized": "organised",
    "customiz": "customis",
    "patroniz": "patronis",
    "organization": "organisation",
    "savor": "savour",
    "cozy": "cosy",
    "mold": "mould",
    "odor": "odour",
    "criticize": "criticise",
    "skeptic": "sceptic",
    "pretense": "pretence",
    "a favor": "a favour",
}


def _read(name: str) -> dict[str, list[str]]:
    """Return the lines of each section of a file beside this one."""
    sections: dict[str, list[str]] = {}
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


LINES = _read("negation_words.txt")
IDIOMS = _read("negation_idioms.txt")


def _by_domain(lines: list[str]) -> dict[str, list[str]]:
    """Return the words of each domain, those of "any" included."""
    words: dict[str, list[str]] = {domain: [] for domain in (*DOMAINS, "self")}
    for line in lines:
        domains, listed = line.split(": ", 1)
        for domain in DOMAINS if domains == "any" else domains.split():
            words[domain] += listed.split(", ")
    return words


WORDS = {name: _by_domain(lines) for name, lines in LINES.items() if name not in TEMPLATES}


def _comparative(word: str) -> tuple[str, str]:
    stem = word
    if word.endswith("y"):
        stem = word[:-1] + "i"
    elif word in ("hot", "sad", "flat", "thin", "big", "grim"):
        stem = word + word[-1]
    elif word.endswith("e"):
        stem = word[:-1]
    return stem + "er", stem + "est"


TAILS = LINES["tails of texts"][0].removeprefix("any: ").split(", ")
COMPARED = {word: _comparative(word) for word in WORDS["short"]["film"]}
COMPARED |= {"good": ("better", "best"), "bad": ("worse", "worst")}


def _two(random_: random.Random, words: list[str]) -> list[str]:
    return random_.sample(sorted(set(words)), 2)


def _forms(verb: str) -> dict[str, str]:
    """Return base, third person, past and -ing of a verb: "break/broke down"."""
    first, _, rest = verb.partition(" ")
    base, *others = first.split("/")
    rest = rest and " " + rest
    ending = base[-2:]
    consonant_y = ending.endswith("y") and ending[0] not in "aeiou"
    third = base + "s"
    past = base + "ed"
    if base == "have":
        third = "has"
    elif consonant_y:
        third = base[:-1] + "ies"
        past = base[:-1] + "ied"
    elif base.endswith(("s", "sh", "ch", "x", "o")):
        third = base + "es"
    elif base.endswith("e"):
        past = base + "d"
    ing = (base[:-1] if base.endswith("e") else base) + "ing"
    if others:
        past = others[0]
    if len(others) > 1:
        ing = others[1]
    return {"v": base + rest, "v1": third + rest, "ved": past + rest, "ving": ing + rest}


def _adjectives(random_: random.Random, listed: list[str], line: str) -> list[str]:
    """Draw two that fit a template: with "very" ({m}, {k}), before a noun ({t}, {k})."""
    fitting = []
    for word in listed:
        is_extreme = word.endswith("!")
        if is_extreme and re.search(r"{[gd]?[mk]}|(very|so|too|more|less) {", line):
            continue
        if " " in word and re.search(r"{[gd]?[tk]}", line):
            continue
        fitting.append(word.rstrip("!"))
    return _two(random_, fitting)


def _signed(
    random_: random.Random, sign: str, domain: str, line: str, plural: bool
) -> dict[str, str]:
    """Draw the words of a sign, "good" or "bad", for a template."""
    slots = {}
    a, a2 = _adjectives(random_, WORDS[f"{sign} adjectives"][domain], line)
    for name in "amtk":
        slots[name] = a
        slots[name + "2"] = a2
    slots["f"], slots["f2"] = _adjectives(random_, WORDS[f"{sign} adjectives"]["self"], line)
    slots["w"], slots["w2"] = _adjectives(random_, WORDS[f"{sign} pleased"][domain], line)
    predicates = WORDS[f"{sign} predicates"][domain]
    slots["p"] = random_.choice(predicates)
    slots["q"] = random_.choice([word[2:] for word in predicates if word.startswith("a ")])
    slots["o"], slots["o2"] = _two(random_, WORDS[f"{sign} one"][domain])
    noun = random_.choice(WORDS[f"{sign} nouns"][domain])
    is_many = noun.startswith("+")
    for name, form in (PLURAL if is_many else SINGULAR).items():
        slots["n" + name] = form
    slots["n"] = noun.lstrip("+")
    slots["much"] = "many" if is_many else "much"
    slots["little"] = "few" if is_many else "little"
    slots["less"] = "fewer" if is_many else "less"
    for number, verb in zip(("", "2"), _two(random_, WORDS[f"{sign} verbs"][domain]), strict=True):
        forms = _forms(verb)
        forms["vs"] = forms["v" if plural else "v1"]
        slots |= {name + number: form for name, form in forms.items()}
    forms = _forms(random_.choice(WORDS[f"{sign} feelings"][domain]))
    slots |= {"l": forms["v"], "led": forms["ved"], "ling": forms["ving"]}
    for number, verb in zip(("", "2"), _two(random_, WORDS[f"{sign} life"][domain]), strict=True):
        forms = _forms(verb)
        slots |= {"e" + number: forms["v"], "eed" + number: forms["ved"]}
        slots["eing" + number] = forms["ving"]
    forms = _forms(random_.choice(WORDS[f"{sign} deeds"][domain]))
    slots |= {"d_": forms["v"], "ded_": forms["ved"]}
    return slots


def _subject(random_: random.Random, domain: str) -> dict[str, str]:
    """Draw what a sentence is about, and the forms that agree with it."""
    subject, _, pronoun = random_.choice(WORDS["subjects"][domain]).partition("/")
    plural = subject.startswith("+")
    subject = subject.lstrip("+")
    pronoun = "they" if plural else pronoun or "it"
    slots = dict(PLURAL if plural else SINGULAR)
    slots["s"] = subject
    slots["obj"] = OBJECTS.get(subject, subject)
    slots["it"] = pronoun
    slots["it1"] = OBJECTS.get(pronoun, pronoun)
    slots["itis"] = f"{pronoun} {slots['is']}"
    slots["its"] = f"{pronoun}'re" if plural else f"{pronoun}'s"
    slots["its_"] = POSSESSIVES[pronoun]
    return slots


def _compared(text: str) -> str:
    """Write "more nice" as "nicer"."""
    for word, (more, most) in COMPARED.items():
        text = text.replace(f"more {word} ", more + " ").replace(f"most {word} ", most + " ")
        text = re.sub(f"more {word}$", more, text)
    return text


def _construct(random_: random.Random, kind: str, domain: str) -> list[tuple[str, str]]:
    """Draw a negative and a positive text of one construction."""
    line = random_.choice(LINES[kind])
    slots = _subject(random_, domain)
    plural = slots["is"] == "are"
    for name, section in (("ill", "ills"), ("tr", "treasures"), ("h", "heads")):
        slots[name] = random_.choice(WORDS[section][domain])
    slots["mg"] = random_.choice(WORDS["mild good"][domain])
    slots["md"] = random_.choice(WORDS["mild bad"][domain])
    words = {}
    for sign in ("good", "bad"):
        words[sign] = _signed(random_, sign, domain, line, plural)
        letter = "g" if sign == "good" else "d"
        slots |= {letter + name: word for name, word in words[sign].items()}
    left, right = line.split(" ~ ")
    if kind in ("pairs", "twins"):
        pair = [left.format(**slots), right.format(**slots)]
    else:
        pair = []
        for is_turned, is_good in random_.choice(TWINS):
            template = left if is_turned else right
            pair.append(template.format(**slots, **words["good" if is_good else "bad"]))
    if re.search(r"(more|most) {[gd]?[mk]}", line) and not re.search(r"{[gd]m} than {", line):
        pair = [_compared(text) for text in pair]
    if random_.random() < 0.15 and re.match(r"({s}|{its}|I|we)\b", left) and line.count(",") < 2:
        tail = random_.choice(
            TAILS if kind in ("self", "life") else WORDS["tails of texts"][domain]
        )
        tail = re.sub(r"^(\w)", r" \1", tail).replace(";", ", ").replace(".", ". ")
        if "?" not in line:
            pair = [text + tail for text in pair]
    return list(zip(pair, ("negative", "positive"), strict=True))


def _styled(random_: random.Random, pair: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Write both texts of a pair in one way: a head, spelling, capitals, apostrophes."""
    head = random_.choice(WORDS["heads of texts"]["film"])
    if random_.random() < 0.9 or head in pair[0][0]:
        head = ""
    elif head.endswith(":"):
        head += " "
    else:
        head += random_.choice([", ", ", ", " "])
    is_british = random_.random() < 0.4
    is_low = random_.random() < 0.25
    has_apostrophes = random_.random() < (0.7 if is_low else 0.98)
    is_loud = random_.random() < 0.04
    styled = []
    for text, label in pair:
        written = re.sub(r"\b([Aa]) (?=[aeiou])(?!use|uniq|unif|univ|one)", r"\1n ", head + text)
        if is_british:
            for american, british in BRITISH.items():
                written = written.replace(american, british)
        if is_low:
            written = written.lower()
        if not has_apostrophes:
            written = written.replace("'", "")
        if is_loud:
            written = re.sub(r"\b(not|no|never|so|don't)\b", lambda word: word[0].upper(), written)
        styled.append((written, label))
    return styled


def _joined(
    random_: random.Random, pair: list[tuple[str, str]], domain: str
) -> list[tuple[str, str]]:
    """Add a sentence of the same label to each."""
    others = _construct(random_, random_.choice(TEMPLATES), domain)
    mark = random_.choice([". ", ". ", ", ", "; ", "! "])
    if all(re.match("(the|my|I|we|it|this|they|he|she) ", text) for text, _ in others):
        mark = random_.choice([mark, " and "])
    joined = []
    for (text, label), (other, _) in zip(pair, others, strict=True):
        joined.append((text + (" " if text[-1] in ".?!" else mark) + other, label))
    return joined


def texts(seed: int, count: int) -> list[tuple[str, str]]:
    """Draw (text, label) pairs: of every two, one is negative and one positive, but for neutral."""
    random_ = random.Random(seed)
    drawn: list[tuple[str, str]] = []
    while len(drawn) < count:
        (kind,) = random_.choices(list(KINDS), list(KINDS.values()))
        if kind == "neutral":
            drawn.append((random_.choice(WORDS["neutral"]["film"]), "neutral"))
            continue
        domain = random_.choice(DOMAINS)
        if kind == "idioms":
            pair = [(random_.choice(IDIOMS[label]), label) for label in ("negative", "positive")]
        else:
            pair = _construct(random_, kind, domain)
        if random_.random() < 0.08:
            pair = _joined(random_, pair, domain)
        drawn += _styled(random_, pair)
    return drawn[:count]
