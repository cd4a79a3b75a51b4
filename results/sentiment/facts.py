"""Short texts without sentiment, with and without a negation: training texts only.

Beside the texts of `negation`, all of which praise or blame, they keep the neutral class.
"""

import random

LISTS = {
    "thing": """the bus|the train|the shop|the office|the library|the museum|the parcel|the package|
the report|the form|the invoice|the file|the link|the ticket|the key|the printer|the laptop|
the phone|the charger|the book|the film|the show|the episode|the update|the app|the website|
the restaurant|the hotel|the room|the flight|the course|the class|the lesson|the exam|the game|
the match|the match report|the store|the pharmacy|the bank|the post office|the delivery|my order|
the appointment|the interview|the call|the webinar|the recipe|the cable|the box|the second volume|
the new model|the trailer|the menu|the gym|the pool|the car|the bike|the ferry""",
    "person": """i|we|they|she|he|my sister|my brother|the neighbours|the team|the manager|
the teacher|the driver|the nurse|our landlord|the company|the city council|the minister|the band|
the author|the director|the coach|the committee|a colleague|the students|the children|marta|
john|mr Lee|the staff""",
    "time": """today|tomorrow|yesterday|on Monday|on Tuesday|on Wednesday|on Thursday|on Friday|
this weekend|next week|last week|in March|in October|at 9|at 7 pm|at noon|this morning|tonight|
in the evening|in 2019|next month|every day|twice a week|before lunch|after work|since May|
for two days|in an hour""",
    "place": """in the kitchen|at the station|on the second floor|in Leeds|in Chicago|in Berlin|
at home|next to the bank|on the left|in the north of the city|at the front desk|online|at gate 12|
in room 204|near the river|on the table|in the car|at school|across the street|in the basement|
at the airport|on page 40""",
    "number": "two|three|four|five|six|seven|ten|twelve|15|20|24|30|45|60|100|250|1,200",
    "noun": """pages|minutes|metres|people|rooms|seats|buttons|photos|questions|chapters|tickets|
colours|cables|batteries|kilograms|litres|emails|students|stops|songs|versions|languages|bottles""",
    "did": """called|left|arrived|moved|started|paid by card|read the manual|took the bus|
signed the form|sent the file|booked a table|ordered coffee|changed trains|watched the news|
went to the dentist|bought bread|walked to work|cooked rice|voted|logged in|parked outside|
checked in|returned the book|opened the window|met the team""",
    "do": """call|leave|arrive|move|start|pay by card|read the manual|take the bus|sign the form|
send the file|book a table|order coffee|change trains|watch the news|go to the dentist|buy bread|
walk to work|cook rice|vote|log in|park outside|check in|return the book|open the window|
meet the team""",
    "kind": """black|blue|green|made of wood|made of steel|round|square|rectangular|30 cm long|
open until ten|closed on Sundays|in English|in French|in two parts|for beginners|for adults|
on the ground floor|next door|sold in packs of six|about the sea|set in the 1950s|in the archive|
printed on both sides|written by two authors|from 1987""",
}
TEMPLATES = (
    "{thing} is {kind}",
    "{thing} is not {kind}",
    "{thing} isn't {kind}, it is {other}",
    "{thing} opens {time}",
    "{thing} doesn't open {time}",
    "{thing} leaves {time}",
    "{thing} is {place}",
    "{thing} is not {place} but {place2}",
    "{thing} is no longer {place}",
    "{thing} was moved to {time}",
    "{thing} has {number} {noun}",
    "{thing} does not have {number} {noun}, it has {number2}",
    "{thing} comes with {number} {noun}",
    "{person} {did} {time}",
    "{person} {did} {place}",
    "{person} {did}, then {did2}",
    "{person} did not {do} {time}",
    "{person} didn't {do} yet",
    "{person} will {do} {time}",
    "{person} won't {do} {time}",
    "{person} never {did} {place}",
    "has anyone {did} {time}?",
    "did {person} {do} {time}?",
    "didn't {person} {do} {time}?",
    "when does {thing} open?",
    "where is {thing}?",
    "is {thing} {kind}?",
    "isn't {thing} {kind}?",
    "who will {do} {time}?",
    "do i have to {do}?",
    "you don't have to {do} {time}",
    "please {do} {time}",
    "please do not {do} {time}",
    "no need to {do} {time}",
    "no {noun} {place}",
    "no {noun} included",
    "{number} {noun} {place}",
    "{number} of {number2} {noun} are {place}",
    "there are {number} {noun} {place}",
    "there are no {noun} {place}",
    "none of the {noun} are {place}",
    "i have not seen {thing} {time}",
    "i don't know when {thing} opens",
    "not sure if {thing} is {kind}",
    "nobody is {place} {time}",
    "without {noun}, {number} per box",
    "neither {thing} nor {thing2} is {place}",
    "{thing} costs {number} dollars",
    "{thing} weighs {number} kg",
    "{thing} or {thing2}?",
    "looking for {thing} {place}",
    "on my way to {thing}",
    "{person} said {thing} is {place}",
    "{person} asked where {thing} is",
    "reminder: {thing} is {time}",
    "update: {thing} is now {place}",
    "fyi, {person} will {do} {time}",
    "{thing}, part {number}",
    "{time}: {thing}",
    "{number} {noun}, {kind}",
)


def texts(seed: int, count: int) -> list[tuple[str, str]]:
    """Draw (text, "neutral") pairs."""
    random_ = random.Random(seed)
    lists = {name: text.replace("\n", "").split("|") for name, text in LISTS.items()}
    drawn = []
    for _ in range(count):
        words = {name: random_.choice(some) for name, some in lists.items()}
        for name in ("place", "number", "thing", "did"):
            words[f"{name}2"] = random_.choice(lists[name])
        words["other"] = random_.choice(lists["kind"])
        text = random_.choice(TEMPLATES).format(**words)
        drawn.append((text, "neutral"))
    return drawn
