"""Stories, from a few sentences to about a thousand tokens, with people who stay themselves.

A long story is a journey. What the hero carries grows from place to place and is told again at the
end, so a reader sees whether the model still attends to what it wrote hundreds of tokens before.
"""

from dataclasses import dataclass, field
from random import Random

from sealring_model.tiny.world import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    DAYS,
    FEELINGS,
    FOODS,
    HER,
    HIM,
    NUMBERS,
    ORDINALS,
    PETS,
    PLACES,
    THINGS,
    Item,
    an,
    ask,
    cap,
    listing,
)

PEOPLE = ("girl", "boy", "king", "queen", "dragon", "robot", "giant", "wizard", "bird", "princess")
KINDS = [a.name for a in ANIMALS] + list(PEOPLE)
SHE_PETS = frozenset(PETS[1::2])
OPENINGS = (
    "Once upon a time there was {} named {}.", "Once upon a time, there was {} named {}.",
    "Once there was {} named {}.", "Long ago there lived {} named {}.",
    "There was once {} named {}.",
)
ENDINGS = (
    "And that was the end of a long day.", "And they were friends from that day on.",
    "And if they are not asleep, they are still laughing.", "The end.",
    "And all of them were happy.", "Then the moon came up, and all was quiet.",
)
# A trouble that somebody has, and what the hero does about it.
TROUBLES = (
    ("could not open the door", "pushed the door until it opened"),
    ("was stuck in the mud", "pulled and pulled until {it} was free"),
    ("had lost the way home", "showed {it} the way home"),
    ("was very hungry", "gave {it} some {food}"),
    ("was cold and wet", "made a small fire for {it}"),
    ("was afraid of the dark", "sat with {it} until the sun came up"),
    ("could not sleep", "sang a quiet song for {it}"),
    ("had a stone in the foot", "took the stone out"),
    ("was sad and alone", "told {it} a funny story"),
    ("had broken the bridge", "mended the bridge with {it}"),
    ("could not reach the fruit", "climbed up and threw the fruit down"),
    ("had too much to carry", "carried half of the bags"),
    ("wanted to learn to count", "counted to ten with {it}"),
    ("could not find the well", "found the well behind a tree"),
)
WEATHER = (
    "The sun was warm.", "It was raining a little.", "The wind was cold.", "The sky was clear.",
    "There were grey clouds in the sky.", "Snow was falling.", "The birds were singing.",
    "The stars were bright.",
)
TRAVEL = (
    "{he} walked to the {place}", "{he} came to the {place}", "{he} went on to the {place}",
    "{he} ran all the way to the {place}", "{he} followed the road to the {place}",
)


@dataclass
class Hero:
    """Who a story is about, and what this hero carries."""

    name: str
    kind: str
    he: str
    him: str
    his: str
    trait: str
    bag: list[str] = field(default_factory=list)


def _hero(rng: Random, kind: str = "", name: str = "") -> Hero:
    kind = kind or rng.choice(KINDS)
    if not name:
        name = rng.choice({"girl": HER, "queen": HER, "princess": HER, "boy": HIM, "king": HIM,
                           "wizard": HIM}.get(kind, PETS + PETS + HER + HIM))
    she = name in HER or name in SHE_PETS
    he, him, his = ("she", "her", "her") if she else ("he", "him", "his")
    return Hero(name, kind, he, him, his, rng.choice(ADJECTIVES))


def _asked(rng: Random, hero: Hero, wordings: tuple[str, ...]) -> str:
    return rng.choice(wordings).format(
        kind=an(hero.kind), name=hero.name, the=f"the {hero.kind}"
    )


def _home(rng: Random, hero: Hero) -> str:
    return next((a.home for a in ANIMALS if a.name == hero.kind), f"near the {rng.choice(PLACES)}")


def _opening(rng: Random, hero: Hero) -> str:
    return rng.choice(OPENINGS).format(an(f"{hero.trait} {hero.kind}"), hero.name)


def _lost(rng: Random, hero: Hero) -> str:
    colour, thing, place = rng.choice(COLOURS), rng.choice(THINGS), rng.choice(PLACES)
    friend = rng.choice([a for a in ANIMALS if a.name != hero.kind]).name
    found = rng.choice(PLACES)
    return (
        f"{hero.name} had {an(colour)} {thing}. One day {hero.he} lost the {thing} in the {place}. "
        f"{hero.name} was very sad. Then {an(friend)} came and asked, \"What is wrong?\" \"I have "
        f"lost my {colour} {thing},\" said {hero.name}. The {friend} and {hero.name} looked in the "
        f"{place} and near the {found}. At last the {friend} saw something {colour}. It was the "
        f"{thing}! {hero.name} was happy and thanked the {friend}."
    )


def _share(rng: Random, hero: Hero) -> str:
    food, friend = rng.choice(FOODS), rng.choice([a for a in ANIMALS if a.name != hero.kind]).name
    place, amount = rng.choice(PLACES), rng.randint(2, 12)
    return (
        f"One morning {hero.name} went to the {place} with some {food}. There {hero.he} met "
        f"{an(friend)} who was hungry. \"May I have some {food}?\" asked the {friend}. "
        f"{hero.name} had only a little, but {hero.he} gave half of the {food} to the {friend}. "
        f"They ate and counted {NUMBERS[amount]} birds in the sky. \"You are kind,\" said the "
        f"{friend}. From that day {hero.name} and the {friend} met at the {place} every day."
    )


def _brave(rng: Random, hero: Hero) -> str:
    place, thing = rng.choice(PLACES), rng.choice(THINGS)
    friend = rng.choice([a for a in ANIMALS if a.name != hero.kind])
    return (
        f"{hero.name} was afraid of the old {place}. \"Something lives there,\" said the others. "
        f"One night there was a strange sound in the {place}. {hero.name} took a lamp and went in. "
        f"Something moved in the dark. But it was only {an(friend.name)} with {an(thing)}! \"I am "
        f"alone here,\" said the {friend.name}. \"I {friend.can.split(' and ')[0]} all night.\" "
        f"{hero.name} laughed, and {hero.he} was not afraid any more."
    )


def _race(rng: Random, hero: Hero) -> str:
    friend = rng.choice([a for a in ANIMALS if a.name != hero.kind]).name
    start, end = rng.sample(PLACES, 2)
    return (
        f"One day {an(friend)} said to {hero.name}, \"I can run to the {end} faster than you.\" "
        f"They started at the {start}. The {friend} ran fast, but soon it was tired and sat down "
        f"under a tree. {hero.name} did not stop. {cap(hero.he)} went on and on, step by step. "
        f"When the {friend} came to the {end}, {hero.name} was there already. \"Slow and steady is "
        f"good too,\" said {hero.name}."
    )


def _make(rng: Random, hero: Hero) -> str:
    thing, who = rng.choice(THINGS), rng.choice(["mother", "father", "sister", "brother", "friend"])
    colour = rng.choice(COLOURS)
    days = rng.sample(range(7), 3)
    days.sort()
    one, two, three = (DAYS[d] for d in days)
    return (
        f"{hero.name} wanted to make {an(thing)} for {hero.his} {who}. On {one} {hero.he} looked "
        f"for wood. On {two} {hero.he} made the {thing}. On {three} {hero.he} painted it {colour}. "
        f"\"This {colour} {thing} is for you,\" said {hero.name}. The {who} was so glad that "
        f"{hero.name} began to dance."
    )


SHORT = (_lost, _share, _brave, _race, _make)


def _short_text(rng: Random, hero: Hero) -> str:
    feeling = rng.choice(FEELINGS)
    intro = f"{_opening(rng, hero)} {hero.name} lived {_home(rng, hero)}."
    if rng.random() < 0.3:
        intro += f" {cap(hero.he)} was often {feeling}."
    return f"{intro} {rng.choice(SHORT)(rng, hero)} {rng.choice(ENDINGS)}"


def _episode(rng: Random, hero: Hero, number: int, stop: tuple[str, str, str]) -> str:
    """Tell one day of a journey: a place, a trouble, its end and a gift."""
    place, who, thing = stop
    colour, (trouble, deed) = rng.choice(COLOURS), rng.choice(TROUBLES)
    when = f"On the {ORDINALS[number]} day" if number < len(ORDINALS) else "The next day"
    gift = f"{colour} {thing}"
    way = rng.choice(TRAVEL).format(he=hero.he, place=place)
    lines = [f"{when} {way}.", rng.choice(WEATHER), f"There {hero.he} met {an(who)} who {trouble}."]
    if rng.random() < 0.6:
        lines.append(f"\"Can you help me?\" asked the {who}. \"Yes, I will help you,\" said "
                     f"{hero.name}.")
    lines.append(f"{hero.name} {deed.format(it='it', food=rng.choice(FOODS))}.")
    lines.append(f"The {who} was glad and gave {hero.him} {an(gift)}.")
    hero.bag.append(gift)
    lines.append(f"Now {hero.name} had {listing([an(g) for g in hero.bag])} in the bag."
                 if len(hero.bag) <= 5 or rng.random() < 0.3
                 else f"{hero.name} put the {gift} in the bag.")
    return " ".join(lines)


def _journey(rng: Random, hero: Hero, days: int) -> str:
    """Tell a journey of some days; each day is a paragraph."""
    colour, goal = rng.choice(COLOURS), rng.choice(THINGS)
    things = rng.sample([t for t in THINGS if t not in {goal, "bag"}], days)
    places = rng.sample(PLACES, days + 1)
    helpers = rng.sample([a.name for a in ANIMALS if a.name != hero.kind], days)
    home = _home(rng, hero)
    parts = [
        f"{_opening(rng, hero)} {hero.name} lived {home}. One night somebody took the {colour} "
        f"{goal} of {hero.name}. \"I will go and find my {colour} {goal},\" said {hero.name}. "
        f"{cap(hero.he)} took a bag and set out."
    ]
    met = zip(places, helpers, things, strict=False)
    parts += [_episode(rng, hero, n, stop) for n, stop in enumerate(met)]
    parts.append(
        f"At last {hero.name} came to the {places[-1]}. There lay the {colour} {goal}, under a "
        f"tree! {hero.name} opened the bag and took out {listing([f'the {g}' for g in hero.bag])}. "
        f"{cap(hero.he)} thought of {listing([f'the {h}' for h in helpers])}. \"I have found my "
        f"{colour} {goal}, and I have found {NUMBERS[days]} friends,\" said {hero.name}."
    )
    parts.append(f"Then {hero.name} went home. {rng.choice(ENDINGS)}")
    return "\n\n".join(parts)


def story(rng: Random) -> Item:
    """Ask for a short story about somebody."""
    hero = _hero(rng)
    question = _asked(rng, hero, (
        "Tell me a story about {kind} named {name}.", "Tell me a story about {name} {the}.",
        "Tell me a short story about {kind} named {name}.", "Write a story about {kind} named "
        "{name}.", "Tell me a story about {kind}.", "Write a short story about {kind}.",
        "Tell me a story.", "Tell a story.", "Can you tell me a story?", "Please write a story.",
    ))
    return ask("story", f"{hero.name} {hero.kind}", question, _short_text(rng, hero))


def long_story(rng: Random) -> Item:
    """Ask for a long story about somebody."""
    hero = _hero(rng)
    question = _asked(rng, hero, (
        "Tell me a long story about {kind} named {name}.", "Tell me a long story about {name} "
        "{the}.", "Write a long story about {kind} named {name}.", "Tell me a long story about "
        "{kind}.", "Tell me a long story.", "Write a long story.", "Tell me a very long story.",
    ))
    return ask("long_story", f"{hero.name} {hero.kind}", question,
               _journey(rng, hero, rng.choice((4, 5, 6, 7, 8, 9, 10))))


def story_text(rng: Random) -> Item:
    """Write a short story as plain text."""
    hero = _hero(rng)
    return Item("story_text", f"{hero.name} {hero.kind}", (("text", _short_text(rng, hero)),))


def long_story_text(rng: Random) -> Item:
    """Write a long story as plain text."""
    hero = _hero(rng)
    text = _journey(rng, hero, rng.randint(2, 10))
    return Item("story_text", f"{hero.name} {hero.kind}", (("text", text),))


def story_chat(rng: Random) -> Item:
    """Ask for a story, and then a question about it."""
    hero = _hero(rng)
    first = story(rng) if rng.random() < 0.5 else ask(
        "story", "", f"Tell me a story about {an(hero.kind)} named {hero.name}.",
        _short_text(rng, hero))
    named = first.turns[1][1].split(" named ")[1].split(".")[0]
    kind = first.turns[1][1].split(" named ")[0].split()[-1]
    question, answer = rng.choice((
        ("What was the name of the hero?", f"The name of the hero was {named}."),
        (f"Who was {named}?", f"{named} was {an(kind)}."),
        ("Thank you!", "You are welcome!"),
        ("Who was in the story?", f"The story was about {an(kind)} named {named}."),
    ))
    return Item("story", f"{named} {kind} {question}", (
        *first.turns, ("user", question), ("assistant", answer)))


MAKERS = ((story, 4), (long_story, 3), (story_text, 2), (long_story_text, 1), (story_chat, 1))
