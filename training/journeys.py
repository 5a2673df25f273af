"""Long stories, up to about a thousand tokens, that must remember what they have told.

What a hero carries grows from place to place and is told again at the end; helpers line up and are
named in the reverse order; a week or a countdown goes on without a gap. So a reader sees at once
whether the model still attends to what it wrote hundreds of tokens before.
"""

from itertools import pairwise
from random import Random

from training.stories import (
    EVENTS,
    Hero,
    asked,
    ending,
    make_hero,
    opening,
)
from training.world import (
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    NUMBERS,
    ORDINALS,
    PLACES,
    THINGS,
    Item,
    an,
    ask,
    cap,
    chain,
    follow,
    likely,
    listing,
)

# A trouble that somebody has, and what the hero does about it.
TROUBLES = (
    ("could not open the door", "pushed the door until it opened"),
    ("was stuck in the mud", "pulled and pulled until it was free"),
    ("had lost the way home", "showed it the way home"),
    ("was very hungry", "gave it some bread"),
    ("was cold and wet", "made a small fire for it"),
    ("was afraid of the dark", "sat with it until the sun came up"),
    ("could not sleep", "sang a quiet song for it"),
    ("had a stone in the foot", "took the stone out"),
    ("was sad and alone", "told it a funny story"),
    ("wanted to cross the river", "found a boat for it"),
    ("could not reach the fruit", "climbed up and threw the fruit down"),
    ("had too much to carry", "carried half of the bags"),
    ("wanted to learn to count", "counted to ten with it"),
    ("could not find the well", "found the well behind a tree"),
    ("had nobody to play with", "played with it for an hour"),
    ("wanted to hear a new song", "made a song for it"),
)
WEATHER = (
    "The sun was warm.",
    "It was raining a little.",
    "The wind was cold.",
    "The sky was clear.",
    "There were grey clouds in the sky.",
    "Snow was falling.",
    "The birds were singing.",
    "The stars were bright.",
    "The air was soft and still.",
)
TRAVEL = (
    "{} walked to the {}",
    "{} came to the {}",
    "{} went on to the {}",
    "{} ran all the way to the {}",
    "{} followed the road to the {}",
)
DEEDS = (
    "cleaned the windows",
    "painted a picture",
    "helped the baker",
    "learned a new song",
    "counted the birds",
    "looked for shells",
    "wrote a long letter",
    "mended a chair",
    "made some soup",
    "read an old book",
    "played with a ball",
    "slept under a tree",
    "carried water",
    "danced in the rain",
    "drew a map",
)
WANDER = (
    "flew away to the {}",
    "went to sleep in the {}",
    "ran to the {}",
    "hid behind the {}",
    "followed the wind to the {}",
    "got lost near the {}",
    "went to see the {}",
)


def _journey(rng: Random, hero: Hero) -> list[str]:
    """Tell a journey: each day a place, a trouble, its end and a gift."""
    days = rng.choice((3, 4, 5, 6, 7, 8, 9, 10, 10))
    colour, goal = hero.pick(rng, COLOURS, "goal"), hero.pick(rng, THINGS, "goal")
    kind = hero.kind
    things = chain(rng, [t for t in THINGS if t not in {goal, "bag"}], days, f"gift {kind}")
    places = chain(rng, PLACES, days + 1, f"way {kind}")
    helpers = hero.friends(rng, days, "help")
    troubles = chain(rng, TROUBLES, days, kind)
    weather, travel, shade = likely(rng, WEATHER, kind), likely(rng, TRAVEL, kind), colour
    parts = [
        f'{opening(rng, hero)} One night somebody took the {colour} {goal} of {hero.name}. "I '
        f'will go and find my {colour} {goal}," said {hero.name}. {cap(hero.he)} took a bag and '
        f"set out."
    ]
    bag: list[str] = []
    for n, (place, who, thing, (trouble, deed)) in enumerate(
        zip(places, helpers, things, troubles, strict=False)
    ):
        weather = follow(rng, WEATHER, weather)
        travel = follow(rng, TRAVEL, travel)
        shade = follow(rng, COLOURS, shade)
        bag.append(f"{shade} {thing}")
        talk = (
            f'"Can you help me?" asked the {who}. "Yes, I will," said {hero.name}. '
            if n % 2 == 0
            else ""
        )
        carried = (
            f"Now {hero.name} had {listing([an(g) for g in bag])} in the bag."
            if n < 5
            else f"{hero.name} put the {bag[-1]} in the bag."
        )
        parts.append(
            f"On the {ORDINALS[n]} day {travel.format(hero.he, place)}. {weather} There {hero.he} "
            f"met {an(who)} who {trouble}. {talk}{hero.name} {deed}. The {who} was glad and gave "
            f"{hero.him} {an(bag[-1])}. {carried}"
        )
    parts.append(
        f"At last {hero.name} came to the {places[-1]}. There lay the {colour} {goal}, under a "
        f"tree! {hero.name} opened the bag and took out {listing([f'the {g}' for g in bag])}. "
        f'{cap(hero.he)} thought of {listing([f"the {h}" for h in helpers])}. "I have found my '
        f'{colour} {goal}, and I have found {NUMBERS[days]} friends," said {hero.name}.'
    )
    return [*parts, f"Then {hero.name} went home. {ending(rng, hero)}"]


def _pull(rng: Random, hero: Hero) -> list[str]:
    """Let more and more helpers pull, each named in turn."""
    helpers = hero.friends(rng, rng.randint(3, 8), "pull")
    food, place = hero.pick(rng, FOODS[-10:], "pull"), hero.pick(rng, PLACES, "pull")
    parts = [
        f"{opening(rng, hero)} One day {hero.he} found a very big {food} near the {place}. It was "
        f"stuck in the ground. {hero.name} pulled the {food}, but it did not come out."
    ]
    line = [hero.name]
    for who in helpers:
        asker = line[0] if line[0] == hero.name else f"the {line[0]}"
        line.insert(0, who)
        said = [w if w == hero.name else f"the {w}" for w in line]
        pulls = [f"{a} pulled {b}" for a, b in pairwise(said)]
        parts.append(
            f"So {asker} called {an(who)}. {cap(', '.join(pulls))}, and {hero.name} pulled the "
            f"{food}. But it did not come out."
        )
    parts.append(
        f'Then a very small mouse said, "May I help?" They all laughed, but the mouse pulled '
        f"too. And out came the {food}! They ate it together: {hero.name}, "
        f"{listing([f'the {h}' for h in helpers])}, and also the small mouse. {ending(rng, hero)}"
    )
    return parts


def _week(rng: Random, hero: Hero) -> list[str]:
    """Tell a week, day by day, and look back on it."""
    start = rng.choice((0, 0, rng.randrange(7)))
    days = [DAYS[(start + n) % 7] for n in range(7)]
    places = chain(rng, PLACES, 7, f"week {hero.kind}")
    deeds = chain(rng, DEEDS, 7, hero.kind)
    weather = chain(rng, WEATHER, 7, hero.kind)
    friends = hero.friends(rng, 7, "week")
    parts = [f"{opening(rng, hero)} This is the week of {hero.name}."]
    for n, day in enumerate(days):
        topic = places[n - 1] if n else "sky"
        parts.append(
            f"On {day} {hero.name} went to the {places[n]}. {weather[n]} There {hero.he} "
            f"{deeds[n]}. In the evening {an(friends[n])} came by, and they talked about the "
            f"{topic}."
        )
    parts.append(
        f"At the end of the week {hero.name} thought of {listing([f'the {p}' for p in places])}. "
        f'{cap(hero.he)} had met {listing([f"the {f}" for f in friends])}. "It was a good week," '
        f"said {hero.name}. {ending(rng, hero)}"
    )
    return parts


def _countdown(rng: Random, hero: Hero) -> list[str]:
    """Tell of a group that grows smaller one by one."""
    animal = likely(rng, [a for a in ANIMALS if a.name != hero.kind], f"group {hero.kind}")
    high = rng.randint(5, 12)
    places = chain(rng, PLACES, high, f"group {hero.kind}")
    wander = likely(rng, WANDER, hero.kind)
    where = hero.pick(rng, ["wall", "roof", "fence", "stone", "bench"], "group")
    parts = [
        f"{opening(rng, hero)} One evening {hero.name} saw {NUMBERS[high]} {animal.plural} on a "
        f"{where}, and {hero.he} began to count them."
    ]
    for n in range(high, 0, -1):
        left = f"{NUMBERS[n]} {animal.name if n == 1 else animal.plural}"
        wander = follow(rng, WANDER, wander)
        now = (
            f"Then there {'was' if n == 2 else 'were'} {NUMBERS[n - 1]}."
            if n > 1
            else "Then there were none."
        )
        one = "It" if n == 1 else "One of them"
        parts.append(
            f"{cap(left)} sat on the {where}. {one} {wander.format(places[high - n])}. {now}"
        )
    parts.append(
        f'"They have all gone," said {hero.name}, "to '
        f'{listing([f"the {p}" for p in places])}." {ending(rng, hero)}'
    )
    return parts


def _chapters(rng: Random, hero: Hero) -> list[str]:
    """Tell several events of one hero as chapters."""
    events = chain(rng, EVENTS, rng.randint(3, 6), hero.kind)
    parts = [opening(rng, hero)]
    for n, event in enumerate(events):
        parts.append(f"Chapter {NUMBERS[n + 1]}. {event(rng, hero)}")
    return [*parts, ending(rng, hero)]


FORMS = (_journey, _journey, _journey, _pull, _week, _countdown, _chapters)


def long_story(rng: Random) -> Item:
    """Ask for a long story about somebody, now and then for one of a certain form."""
    hero = make_hero(rng)
    form = rng.choice(FORMS) if rng.random() < 0.4 else _journey
    question = asked(
        rng,
        hero,
        (
            "Tell me a long story about {kind} named {name}.",
            "Tell me a long story about {name} {the}.",
            "Write a long story about {kind} named {name}.",
            "Tell me a long story about {kind}.",
            "Tell me a long story.",
            "Write a long story.",
            "Tell me a very long story.",
            "Tell me a very long story about {kind} named {name}.",
            "Tell me a long story about {whole}.",
            "Tell me a long story about {whole} named {name}.",
        ),
    )
    if rng.random() < 0.4:
        form, wording = rng.choice(
            (
                (_journey, "Tell me about the journey of {name} {the}."),
                (_pull, "Tell me how {name} {the} pulled something out of the ground."),
                (_week, "Tell me about the week of {name} {the}."),
                (_countdown, "Tell me a counting story about {name} {the}."),
                (_chapters, "Write a book with chapters about {name} {the}."),
            )
        )
        question = asked(rng, hero, (wording,))
    return ask("long_story", f"{hero.name} {hero.kind}", question, "\n\n".join(form(rng, hero)))


def long_story_text(rng: Random) -> Item:
    """Write a long story as plain text."""
    hero = make_hero(rng)
    text = "\n\n".join(rng.choice(FORMS)(rng, hero))
    return Item("story_text", f"{hero.name} {hero.kind}", (("text", text),))


MAKERS = ((long_story, 3), (long_story_text, 1))
