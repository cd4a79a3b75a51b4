"""Short texts with a negation, made from templates and lists of words: training texts only.

Phrases of SST teach negation ("not bad"), but have few of the forms that people use in short
messages ("No complaints.", "It lacks charm."). `texts` draws some of all combinations.
"""

import random


def _words(text: str) -> list[str]:
    return text.split()


GOOD = _words("""
good great nice fun useful helpful funny clever original convincing interesting exciting
reliable comfortable friendly fresh tasty clean easy fast sturdy beautiful impressive enjoyable
entertaining smart sharp bright honest charming worth_it memorable satisfying professional
polite happy pleased satisfied impressed excited amazing special realistic engaging warm
""")
BAD = _words("""
bad terrible awful boring dull slow ugly dirty cheap weak stupid annoying painful silly
predictable disappointing difficult expensive noisy rude unpleasant confusing tedious lame flat
horrible poor mediocre broken useless overpriced sad shabby unreliable uncomfortable bland
disappointed bored upset angry worried sorry frustrated
""")
GOOD_NOUNS = _words("""
charm humor wit depth heart quality flavor style energy warmth originality suspense chemistry
substance value taste comfort support focus logic soul imagination magic class charisma
personality tension sense ambition polish
""")
BAD_NOUNS = _words("""
complaints problems issues flaws regrets defects faults mistakes worries trouble weaknesses
errors drawbacks downsides delays surprises_of_the_bad_kind hassle clichés damage noise doubts
disappointments
""")
GOOD_VERBS = _words("""
impress entertain deliver work please convince surprise engage satisfy amuse help inspire charm
fit last excite
""")
BAD_VERBS = _words("""
disappoint bore annoy fail break irritate bother crash confuse leak
""")
SUBJECTS = """it|this|the film|the movie|the food|the service|the phone|the plot|the book|the show|
the staff|the story|the app|the room|this product|that|the acting|the ending|my day|
the game""".replace("\n", "").split("|")

# With a good word negative, with a bad one positive; then those whose meaning is the word's own.
TURNS = (
    "not {a}",
    "not {a} at all",
    "not very {a}",
    "not that {a}",
    "{s} is not {a}",
    "{s} isn't {a}",
    "{s} was not {a}",
    "{s} wasn't {a} at all",
    "{s} is never {a}",
    "{s} was not at all {a}",
    "{s} was hardly {a}",
    "{s} is far from {a}",
    "anything but {a}",
    "{s} was anything but {a}",
    "{s} is no longer {a}",
    "i don't think {s} is {a}",
    "i would not call {s} {a}",
    "i wouldn't say {s} was {a}",
    "nobody could call {s} {a}",
    "there is nothing {a} about {s}",
    "nothing {a} here",
    "{s} ain't {a}",
    "{s} is neither {a} nor {b}",
    "not a {a} moment",
)
KEEPS = (
    "{s} is {a}",
    "{s} was really {a}",
    "{s} is so {a}",
    "not only {a}, but {b}",
    "i can't believe how {a} {s} is",
    "{s} could not be more {a}",
    "{s} couldn't be more {a}",
    "{s} is {a}, no doubt",
    "never seen anything so {a}",
    "{s} was never less than {a}",
    "without a doubt {a}",
)
NOUN_TURNS = (
    "no {n}",
    "no {n} at all",
    "no {n} whatsoever",
    "zero {n}",
    "not any {n}",
    "{s} lacks {n}",
    "{s} lacked any {n}",
    "{s} has no {n}",
    "{s} had no {n} at all",
    "{s} doesn't have any {n}",
    "without any {n}",
    "there is no {n} in {s}",
    "i had no {n} with {s}",
    "free of {n}",
    "devoid of {n}",
    "{s} is short on {n}",
)
NOUN_KEEPS = (
    "{s} has {n}",
    "full of {n}",
    "{s} is full of {n}",
    "plenty of {n}",
    "a lot of {n}",
    "{s} does not lack {n}",
    "nothing but {n}",
)
VERB_TURNS = (
    "{s} does not {v}",
    "{s} doesn't {v}",
    "{s} did not {v}",
    "{s} didn't {v}",
    "{s} didn't {v} at all",
    "{s} never {v}s",
    "{s} won't {v} you",
    "{s} fails to {v}",
    "{s} failed to {v}",
    "does not {v}",
    "will not {v}",
    "didn't {v} me",
)
VERB_KEEPS = ("{s} never fails to {v}", "{s} did {v}", "{s} does {v}", "{s} cannot fail to {v}")
# Fixed turns of phrase: negative, then positive.
IDIOMS = {
    "negative": """could be better|could have been better|should have been better|don't bother|
do not buy this|don't waste your money|would not recommend|wouldn't recommend it to anyone|
not worth it|not worth the money|not my cup of tea|i expected more|never again|
i will not be back|won't buy again|no thanks|i didn't like it|i did not enjoy {s}|i don't like {s}|
i couldn't finish {s}|i can't recommend {s}|nothing works|nothing special|doesn't work|
stopped working|not what i wanted|not as described|{s} never arrived|no one helped|
i don't care for {s}|i have never been so let down|less than good|not good enough|
i wish {s} were better|{s} is not for me|if only {s} were good|too good to be true""",
    "positive": """could not be better|couldn't be better|couldn't ask for more|can't complain|
nothing to complain about|no regrets|not bad|not bad at all|not half bad|can't go wrong|
i could not stop laughing|couldn't put it down|can't wait to go back|i can't get enough of {s}|
never a dull moment|never disappoints|don't miss it|do not miss {s}|i wouldn't change a thing|
would not hesitate to buy again|nothing not to like|what's not to like|no problem at all|
works without a problem|i have never been happier|i have never had a problem with {s}|
it doesn't get better than this|nothing beats {s}|second to none|not a bad choice|
i didn't want it to end|i don't regret it|better than i expected|i can't say anything bad|
won't regret it|i would not want to be without {s}|no longer a problem""",
}


def _write(random_: random.Random, template: str, words: dict[str, str]) -> str:
    return template.format(s=random_.choice(SUBJECTS), **words).replace("_", " ")


def texts(seed: int, count: int) -> list[tuple[str, str]]:
    """Draw (text, label) pairs: half of them positive."""
    random_ = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        is_good = random_.random() < 0.5
        kind = random_.choice(["adjective", "adjective", "noun", "verb", "idiom"])
        turns = random_.random() < 0.75
        if kind == "idiom":
            label = "positive" if is_good else "negative"
            idiom = random_.choice(IDIOMS[label].replace("\n", "").split("|"))
            drawn.append((_write(random_, idiom, {}), label))
            continue
        if kind == "adjective":
            some = GOOD if is_good else BAD
            words = {"a": random_.choice(some), "b": random_.choice(some)}
            template = random_.choice(TURNS if turns else KEEPS)
        elif kind == "noun":
            words = {"n": random_.choice(GOOD_NOUNS if is_good else BAD_NOUNS)}
            template = random_.choice(NOUN_TURNS if turns else NOUN_KEEPS)
        else:
            words = {"v": random_.choice(GOOD_VERBS if is_good else BAD_VERBS)}
            template = random_.choice(VERB_TURNS if turns else VERB_KEEPS)
        label = "positive" if is_good != turns else "negative"
        drawn.append((_write(random_, template, words), label))
    return drawn
