"""Short texts with a negation, made from templates and lists of words: training texts only.

Phrases of SST teach negation ("not bad"), but have few of the forms that people use in short
messages ("No complaints.", "It lacks charm."). `texts` draws some of all combinations; half of the
adjectives, and all phrases that begin with an article, are labelled phrases of SST.
"""

import random
from collections.abc import Iterable
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


GOOD = _words("""
good great nice fun useful helpful funny clever original convincing interesting exciting
reliable comfortable friendly fresh tasty clean easy fast sturdy beautiful impressive enjoyable
entertaining smart sharp bright honest charming worth_it memorable satisfying professional
polite happy pleased satisfied impressed excited amazing special realistic engaging warm smooth
quick affordable delicious thoughtful relaxing cozy kind patient safe healthy strong calm brave
proud simple modern elegant creative catchy gripping moving touching readable believable
punctual
""")
BAD = _words("""
bad terrible awful boring dull slow ugly dirty cheap weak stupid annoying painful silly
predictable disappointing difficult expensive noisy rude unpleasant confusing tedious lame flat
horrible poor mediocre broken useless overpriced sad shabby unreliable uncomfortable bland
disappointed bored upset angry worried sorry frustrated late loud sick tired lonely hard heavy
long greasy salty cold stale crowded buggy laggy fragile scary pretentious clichéd forgettable
pointless repetitive unfair dishonest lazy mean jealous scared nervous hungry stressed
""")
GOOD_NOUNS = _words("""
charm humor wit depth heart quality flavor style energy warmth originality suspense chemistry
substance value taste comfort support focus logic soul imagination magic class charisma
personality tension sense ambition polish energy courage manners patience talent rhythm melody
detail variety space light storage durability professionalism kindness friends hope luck sleep
time money help
""")
BAD_NOUNS = _words("""
complaints problems issues flaws regrets defects faults mistakes worries trouble weaknesses
errors drawbacks downsides delays surprises_of_the_bad_kind hassle clichés damage noise doubts
disappointments bugs crashes ads spam queues lines stains scratches bad_smell pain fear stress
drama arguments lies excuses rude_staff hidden_fees waiting wrinkles boring_scenes plot_holes
weak_spots dull_moments side_effects typos
""")
GOOD_VERBS = _words("""
impress entertain deliver work please convince surprise engage satisfy amuse help inspire charm
fit last excite care listen smile shine succeed improve respond arrive
""")
BAD_VERBS = _words("""
disappoint bore annoy fail break irritate bother crash confuse leak hurt complain lie cheat
freeze lag smell stink cry panic quit suffer drag stall break_down let_me_down disappoint_me
get_old wear_out fall_apart mess_up
""")
SUBJECTS = """it|this|the film|the movie|the food|the service|the phone|the plot|the book|the show|
the staff|the story|the app|the room|this product|that|the acting|the ending|my day|the game|
he|she|the waiter|the driver|my new phone|the battery|the hotel|the coffee|everything|the concert|
my boss|the song|your idea|the weather|the trip|our stay|the delivery|the class|this one""".replace(
    "\n", ""
).split("|")

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
    "neither {a} nor {b}",
    "{s} never felt {a}",
    "{s} never seemed {a} to me",
    "{s} doesn't feel {a}",
    "{s} does not look {a}",
    "{s} didn't seem {a}",
    "i wasn't {a}",
    "i'm not {a}",
    "i am not {a} at all",
    "not a bit {a}",
    "not the least bit {a}",
    "{s} is by no means {a}",
    "{s} is not exactly {a}",
    "{s} is less than {a}",
    "{s} could hardly be called {a}",
    "not {a} anymore",
    "never {a}",
    "never {a}, always {z}",
    "not {a}, just {z}",
    "not {a} but {z}",
    "{s} is {z}, not {a}",
    "{s} was {z} and not {a}",
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
    "not just {a}, it's {b}",
    "{s} is {a} and not {z}",
    "always {a}, never {z}",
    "{s} is {a}, not {z} at all",
    "{s} can't be anything but {a}",
    "nothing if not {a}",
)
# Phrases with an article; the first turn a phrase's meaning round.
PHRASE_TURNS = (
    "not {p}",
    "{s} is not {p}",
    "{s} isn't {p}",
    "{s} was not {p}",
    "it's not {p}",
    "this isn't {p}",
    "hardly {p}",
    "{s} is hardly {p}",
    "{s} is by no means {p}",
    "anything but {p}",
    "{s} was never {p}",
    "i wouldn't call it {p}",
    "far from {p}",
)
PHRASE_KEEPS = ("{s} is {p}", "{s} was {p}", "truly {p}", "it's {p}, no question", "what {p}")
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
    "no more {n}",
    "never any {n}",
    "nobody had {n}",
    "i didn't have any {n}",
    "i don't have any {n}",
    "we had no {n}",
    "{s} came without {n}",
    "{s} could use some {n}",
    "not a trace of {n}",
    "absolutely no {n}",
    "{s} needs more {n}",
    "little {n}",
    "very little {n}",
    "hardly any {n}",
    "{s} was lacking in {n}",
)
NOUN_KEEPS = (
    "{s} has {n}",
    "full of {n}",
    "{s} is full of {n}",
    "plenty of {n}",
    "a lot of {n}",
    "{s} does not lack {n}",
    "nothing but {n}",
    "there is so much {n} in {s}",
    "we had {n}",
    "{n} everywhere",
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
    "{s} doesn't {v} anymore",
    "{s} has never {v}ed",
    "it won't {v}",
    "never had it {v}",
    "{s} would never {v}",
    "{s} stopped {v}ing",
    "{s} couldn't {v}",
    "refuses to {v}",
    "nothing to {v} about",
    "i don't {v}",
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
i wish {s} were better|{s} is not for me|if only {s} were good|can't sleep|
i can't stand {s}|i couldn't care less|nothing went right|nobody came|no one cares|nobody helped me|
not feeling well|i don't feel good|couldn't connect|never got a reply|no reply yet|no refund|
i was not happy with {s}|no fun at all|wouldn't do it again|not my best day|
i don't know why anyone likes {s}|not even close to good|i'd rather not|no way|
i didn't get what i paid for|not once did i laugh|i have no hope left|would never go back|
the worst, no exaggeration|nothing like the pictures|i could have stayed home|too bad|
you deserve better|i can't trust {s}|not as good as before|{s} used to be good|
it was better before|not a fan|no stars|what a letdown|save your money""",
    "positive": """could not be better|couldn't be better|couldn't ask for more|can't complain|
nothing to complain about|no regrets|not bad|not bad at all|not half bad|can't go wrong|
i could not stop laughing|couldn't put it down|can't wait to go back|i can't get enough of {s}|
never a dull moment|never disappoints|don't miss it|do not miss {s}|i wouldn't change a thing|
would not hesitate to buy again|nothing not to like|what's not to like|no problem at all|
works without a problem|i have never been happier|i have never had a problem with {s}|
it doesn't get better than this|nothing beats {s}|second to none|not a bad choice|
i didn't want it to end|i don't regret it|better than i expected|i can't say anything bad|
won't regret it|i would not want to be without {s}|no longer a problem|can't wait|
can't wait to see you|i can't wait for {s}|nothing went wrong|nobody was rude|no one complained|
not sick anymore|it no longer hurts|it stopped hurting|i didn't have to wait|no waiting|
couldn't be happier|i could not be happier with {s}|i couldn't stop smiling|no stress|
i can't find a single fault|can't fault {s}|nothing could be better|no need to worry|
no worries at all|you can't lose|i wouldn't trade {s} for anything|i have nothing bad to say|
not once was i bored|there was never a boring second|i never want to leave|no better place|
i've never laughed so hard|never been better|never felt better|not a single complaint|
don't change anything|doesn't cost much|didn't expect it to be this good|
i don't want {s} to stop|not too shabby|you won't be sorry|never lets me down|
couldn't stop reading|can't get any better|i haven't been this happy in years|never a problem""",
}


def _write(random_: random.Random, template: str, words: dict[str, str]) -> str:
    subject = random_.choice(SUBJECTS)
    written = (
        template.format(s=subject, **words)
        .replace("_", " ")
        .replace("everything is not", "not everything is")
    )
    return written.replace("eing", "ing").replace("eed ", "ed ")


class Words(NamedTuple):
    """Adjectives and phrases of one polarity."""

    adjectives: list[str]
    phrases: list[str]


_ENDINGS = (
    "ful",
    "ous",
    "ive",
    "able",
    "ible",
    "less",
    "ish",
    "ic",
    "al",
    "y",
    "ing",
    "ed",
    "ant",
    "ent",
)


def words_of(phrases: Iterable[str]) -> Words:
    """Choose adjectives, by their endings, and phrases with an article of phrases of SST."""
    adjectives = []
    articled = []
    for phrase in phrases:
        if phrase.isalpha() and phrase.islower() and phrase.endswith(_ENDINGS):
            adjectives.append(phrase)
        is_short = 2 <= phrase.count(" ") + 1 <= 6 and phrase[-1].isalpha()
        if is_short and phrase.startswith(("a ", "an ")):
            articled.append(phrase)
    return Words(adjectives, articled)


def texts(seed: int, count: int, good: Words, bad: Words) -> list[tuple[str, str]]:
    """Draw (text, label) pairs: about half of them positive. `good` and `bad` are SST's."""
    random_ = random.Random(seed)
    drawn: list[tuple[str, str]] = []
    kinds = ["adjective", "adjective", "phrase", "noun", "noun", "verb", "idiom", "idiom"]
    while len(drawn) < count:
        is_good = random_.random() < 0.5
        kind = random_.choice(kinds)
        turns = random_.random() < 0.75
        own = good if is_good else bad
        if kind == "idiom":
            label = "positive" if is_good else "negative"
            idiom = random_.choice(IDIOMS[label].replace("\n", "").split("|"))
            text = _write(random_, idiom, {})
        else:
            if kind == "adjective":
                some = random_.choice([own.adjectives, GOOD if is_good else BAD])
                opposite = BAD if is_good else GOOD
                words = {"a": random_.choice(some), "b": random_.choice(some)}
                words["z"] = random_.choice(opposite)
                template = random_.choice(TURNS if turns else KEEPS)
            elif kind == "phrase":
                words = {"p": random_.choice(own.phrases)}
                template = random_.choice(PHRASE_TURNS if turns else PHRASE_KEEPS)
            elif kind == "noun":
                words = {"n": random_.choice(GOOD_NOUNS if is_good else BAD_NOUNS)}
                template = random_.choice(NOUN_TURNS if turns else NOUN_KEEPS)
            else:
                words = {"v": random_.choice(GOOD_VERBS if is_good else BAD_VERBS)}
                template = random_.choice(VERB_TURNS if turns else VERB_KEEPS)
            text = _write(random_, template, words)
            label = "positive" if is_good != turns else "negative"
        earlier = drawn[-1] if drawn else ("", "")
        if earlier[1] == label and random_.random() < 0.1:
            text = f"{text}. {earlier[0]}"
        drawn.append((text, label))
    return drawn
