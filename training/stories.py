"""Short stories: a hero, one event from a dozen, and an end.

The hero that the prompt names keeps name, kind and pronoun; what the prompt leaves open follows
habits of the hero (see ``world.likely``), so that two prompts give two stories.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.world import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    DAYS,
    FEELINGS,
    FOODS,
    HE_PETS,
    HER,
    HIM,
    NUMBERS,
    PLACES,
    SHE_PETS,
    THINGS,
    Item,
    an,
    ask,
    cap,
    chain,
    likely,
    made_up,
)

PEOPLE = ("girl", "boy", "king", "queen", "dragon", "robot", "giant", "wizard", "bird", "princess")
KINDS = [a.name for a in ANIMALS] + list(PEOPLE)
WOMEN, MEN = ("girl", "queen", "princess"), ("boy", "king", "wizard")
SHE_NAMES, HE_NAMES = HER + SHE_PETS, HIM + HE_PETS
ANY_NAMES = SHE_PETS + HE_PETS + SHE_NAMES + HE_NAMES
OPENINGS = (
    "Once upon a time there was {} named {}.",
    "Once upon a time, there was {} named {}.",
    "Once there was {} named {}.",
    "Long ago there lived {} named {}.",
    "There was once {} named {}.",
)
ENDINGS = (
    "And that was the end of a long day.",
    "And they were friends from that day on.",
    "And if they are not asleep, they are still laughing.",
    "The end.",
    "And all of them were happy.",
    "Then the moon came up, and all was quiet.",
    "That night {} slept very well.",
    "And {} never forgot that day.",
)


@dataclass(frozen=True)
class Hero:
    """Who a story is about."""

    name: str
    kind: str
    he: str
    him: str
    his: str
    trait: str

    def pick(self, rng: Random, options: list[str], about: str) -> str:
        """Draw what the prompt leaves open, by the habits of this hero's kind."""
        return likely(rng, options, f"{about} {self.kind}")

    def friends(self, rng: Random, count: int, about: str) -> list[str]:
        """Draw animals that are of another kind than the hero."""
        others = [a.name for a in ANIMALS if a.name != self.kind]
        return chain(rng, others, count, f"{about} {self.kind}")


def make_hero(rng: Random) -> Hero:
    """Draw a hero whose name fits the kind; a few kinds and names are new ones."""
    kind = rng.choice(KINDS)
    names = SHE_NAMES if kind in WOMEN else HE_NAMES if kind in MEN else ANY_NAMES
    name = likely(rng, names, kind) if rng.random() < 0.5 else rng.choice(names)
    she = name in SHE_NAMES
    if rng.random() < 0.06:
        name, she = made_up(rng).capitalize(), kind in WOMEN
    if rng.random() < 0.04:
        kind = made_up(rng)
    he, him, his = ("she", "her", "her") if she else ("he", "him", "his")
    trait = likely(rng, ADJECTIVES, kind)
    return Hero(name, kind, he, him, his, rng.choice(COLOURS) if rng.random() < 0.1 else trait)


def asked(rng: Random, hero: Hero, wordings: tuple[str, ...]) -> str:
    """Fill one of the wordings of a request."""
    return rng.choice(wordings).format(
        kind=an(hero.kind),
        name=hero.name,
        the=f"the {hero.kind}",
        whole=an(f"{hero.trait} {hero.kind}"),
    )


def home(rng: Random, hero: Hero) -> str:
    """Say where the hero lives."""
    known = next((a.home for a in ANIMALS if a.name == hero.kind), None)
    return known or f"near the {hero.pick(rng, PLACES, 'home')}"


def opening(rng: Random, hero: Hero) -> str:
    """Introduce the hero."""
    lead = rng.choice(OPENINGS).format(an(f"{hero.trait} {hero.kind}"), hero.name)
    return f"{lead} {hero.name} lived {home(rng, hero)}."


def ending(rng: Random, hero: Hero) -> str:
    """End a story."""
    return likely(rng, ENDINGS, hero.kind).format(hero.name)


def _lost(rng: Random, hero: Hero) -> str:
    colour, thing = hero.pick(rng, COLOURS, "lost"), hero.pick(rng, THINGS, "lost")
    place, found = chain(rng, PLACES, 2, f"lost {hero.kind}")
    (friend,) = hero.friends(rng, 1, "lost")
    return (
        f"{hero.name} had {an(colour)} {thing}. One day {hero.he} lost the {thing} in the {place}. "
        f'{hero.name} was very sad. Then {an(friend)} came and asked, "What is wrong?" "I have '
        f'lost my {colour} {thing}," said {hero.name}. The {friend} and {hero.name} looked in the '
        f"{place} and near the {found}. At last the {friend} saw something {colour}. It was the "
        f"{thing}! {hero.name} was happy and thanked the {friend}."
    )


def _share(rng: Random, hero: Hero) -> str:
    food, place = hero.pick(rng, FOODS, "share"), hero.pick(rng, PLACES, "share")
    (friend,) = hero.friends(rng, 1, "share")
    amount = rng.randint(2, 12)
    return (
        f"One morning {hero.name} went to the {place} with some {food}. There {hero.he} met "
        f'{an(friend)} who was hungry. "May I have some {food}?" asked the {friend}. '
        f"{hero.name} had only a little, but {hero.he} gave half of the {food} to the {friend}. "
        f'They ate and counted {NUMBERS[amount]} birds in the sky. "You are kind," said the '
        f"{friend}. From that day {hero.name} and the {friend} met at the {place} every day."
    )


def _brave(rng: Random, hero: Hero) -> str:
    place, thing = hero.pick(rng, PLACES, "brave"), hero.pick(rng, THINGS, "brave")
    (friend,) = hero.friends(rng, 1, "brave")
    can = next(a.can for a in ANIMALS if a.name == friend).split(" and ")[0]
    return (
        f'{hero.name} was afraid of the old {place}. "Something lives there," said the others. '
        f"One night there was a strange sound in the {place}. {hero.name} took a lamp and went in. "
        f'Something moved in the dark. But it was only {an(friend)} with {an(thing)}! "I am '
        f'alone here," said the {friend}. "I can {can}, but nobody sees it." {hero.name} '
        f"laughed and sat down with the {friend}, and {hero.he} was not afraid any more."
    )


def _race(rng: Random, hero: Hero) -> str:
    (friend,) = hero.friends(rng, 1, "race")
    start, end = chain(rng, PLACES, 2, f"race {hero.kind}")
    return (
        f'One day {an(friend)} said to {hero.name}, "I can run to the {end} faster than you." '
        f"They started at the {start}. The {friend} ran fast, but soon it was tired and sat down "
        f"under a tree. {hero.name} did not stop. {cap(hero.he)} went on and on, step by step. "
        f'When the {friend} came to the {end}, {hero.name} was there already. "Slow and steady is '
        f'good too," said {hero.name}.'
    )


def _make(rng: Random, hero: Hero) -> str:
    thing, colour = hero.pick(rng, THINGS, "make"), hero.pick(rng, COLOURS, "make")
    who = hero.pick(rng, ["mother", "father", "sister", "brother", "friend"], "make")
    first = rng.randrange(5)
    return (
        f"{hero.name} wanted to make {an(thing)} for {hero.his} {who}. On {DAYS[first]} {hero.he} "
        f"looked for wood. On {DAYS[first + 1]} {hero.he} made the {thing}. On {DAYS[first + 2]} "
        f'{hero.he} painted it {colour}. "This {colour} {thing} is for you," said {hero.name}. '
        f"The {who} was so glad that {hero.name} began to dance."
    )


def _seed(rng: Random, hero: Hero) -> str:
    place, food = hero.pick(rng, PLACES, "seed"), hero.pick(rng, FOODS[-10:], "seed")
    (friend,) = hero.friends(rng, 1, "seed")
    return (
        f"In spring {hero.name} found a seed near the {place}. {cap(hero.he)} put it in the ground "
        f'and gave it water every day. In summer there was a small plant. "What will it be?" '
        f'asked {an(friend)}. "Wait and see," said {hero.name}. In autumn there was {an(food)} '
        f"on the plant. {hero.name} and the {friend} ate the {food} together. In winter they kept "
        f"one seed for the next spring."
    )


def _moon(rng: Random, hero: Hero) -> str:
    one, two, three = hero.friends(rng, 3, "moon")
    first, second, last = chain(rng, PLACES, 3, f"moon {hero.kind}")
    return (
        f'"Where does the moon go in the day?" asked {hero.name}. "It sleeps behind the '
        f'{first}," said the {one}. "No, it hides in the {second}," said the {two}. "It goes '
        f'to the {last} to drink," said the {three}. So {hero.name} looked behind the {first}, in '
        f"the {second} and near the {last}, but there was no moon. At night it came back over the "
        f'trees. "Now I know," said {hero.name}. "The moon goes where nobody looks."'
    )


def _storm(rng: Random, hero: Hero) -> str:
    place, thing = hero.pick(rng, PLACES, "storm"), hero.pick(rng, THINGS, "storm")
    (friend,) = hero.friends(rng, 1, "storm")
    return (
        f"One night a storm came. The wind was loud, and the rain fell on the {place}. {hero.name} "
        f'heard a small voice: "Help me!" It was {an(friend)} under a tree. {hero.name} took the '
        f"{friend} home and made some soup. They sat by the fire and told stories until the storm "
        f'was over. In the morning the {friend} gave {hero.name} {an(thing)}. "Thank you for the '
        f'soup," it said, "and for the open door."'
    )


def _song(rng: Random, hero: Hero) -> str:
    place = hero.pick(rng, PLACES, "song")
    one, two = hero.friends(rng, 2, "song")
    feeling = hero.pick(rng, ["sad", "tired", "angry", "afraid"], "song")
    return (
        f"{hero.name} made a song. {cap(hero.he)} sang it to {an(one)} who was {feeling}, and the "
        f"{one} was happy again. The {one} sang it to {an(two)}, and the {two} sang it at the "
        f"{place}. Soon all the birds knew the song. One day {hero.name} was {feeling} too. Then "
        f"{hero.he} heard {hero.his} own song from the {place}, and {hero.he} smiled."
    )


def _letter(rng: Random, hero: Hero) -> str:
    place, colour = hero.pick(rng, PLACES, "letter"), hero.pick(rng, COLOURS, "letter")
    (friend,) = hero.friends(rng, 1, "letter")
    day = DAYS[rng.randrange(7)]
    return (
        f'On {day} {hero.name} found {an(colour)} letter at the door. "Come to the {place} at '
        f'night," it said. Who had written it? {hero.name} put on a hat and went to the {place}. '
        f"It was dark and quiet there. Then a hundred small lights came on, and {an(friend)} "
        f'called, "Surprise!" It was a feast for {hero.name}, with cake and songs. '
        f"{cap(hero.he)} kept the {colour} letter for ever."
    )


def _trade(rng: Random, hero: Hero) -> str:
    first, second, third = chain(rng, THINGS, 3, f"trade {hero.kind}")
    one, two = hero.friends(rng, 2, "trade")
    return (
        f'{hero.name} had {an(first)} but wanted {an(third)}. {cap(hero.he)} asked the {one}. "I '
        f'have only {an(second)}," said the {one}. So {hero.name} gave the {first} to the {one} '
        f'and took the {second}. Then {hero.he} asked the {two}. "I have {an(third)}, and I need '
        f'{an(second)}," said the {two}. So {hero.name} gave the {second} to the {two} and took '
        f"the {third}. Now the {one} had the {first}, the {two} had the {second}, and {hero.name} "
        f"had the {third}."
    )


EVENTS: tuple[Callable[[Random, Hero], str], ...] = (
    _lost,
    _share,
    _brave,
    _race,
    _make,
    _seed,
    _moon,
    _storm,
    _song,
    _letter,
    _trade,
)


def short_text(rng: Random, hero: Hero) -> str:
    """Tell a short story."""
    intro = opening(rng, hero)
    if rng.random() < 0.3:
        intro += f" {cap(hero.he)} was often {hero.pick(rng, FEELINGS, 'often')}."
    return f"{intro} {likely(rng, EVENTS, hero.name)(rng, hero)} {ending(rng, hero)}"


def story(rng: Random) -> Item:
    """Ask for a short story about somebody."""
    hero = make_hero(rng)
    question = asked(
        rng,
        hero,
        (
            "Tell me a story about {kind} named {name}.",
            "Tell me a story about {name} {the}.",
            "Tell me a short story about {kind} named {name}.",
            "Write a story about {kind} named {name}.",
            "Tell me a story about {kind}.",
            "Write a short story about {kind}.",
            "Tell me a story.",
            "Tell a story.",
            "Can you tell me a story?",
            "Please write a story.",
            "Tell me a story about {kind} called {name}.",
            "Write me a story about {the} {name}.",
            "Tell me a story about {whole}.",
            "Tell me a story about {whole} named {name}.",
            "Write a story about {whole} called {name}.",
        ),
    )
    return ask("story", f"{hero.name} {hero.kind}", question, short_text(rng, hero))


def story_text(rng: Random) -> Item:
    """Write a short story as plain text."""
    hero = make_hero(rng)
    return Item("story_text", f"{hero.name} {hero.kind}", (("text", short_text(rng, hero)),))


def story_chat(rng: Random) -> Item:
    """Ask for a story, and then a question about it."""
    hero = make_hero(rng)
    question = asked(
        rng,
        hero,
        (
            "Tell me a story.",
            "Tell me a story about {kind}.",
            "Tell me a story about {kind} named {name}.",
        ),
    )
    then, answer = rng.choice(
        (
            ("What was the name of the hero?", f"The name of the hero was {hero.name}."),
            (f"Who was {hero.name}?", f"{hero.name} was {an(hero.kind)}."),
            ("Thank you!", "You are welcome!"),
            ("Who was in the story?", f"The story was about {an(hero.kind)} named {hero.name}."),
        )
    )
    return Item(
        "story",
        f"{hero.name} {hero.kind} {then}",
        (
            ("user", question),
            ("assistant", short_text(rng, hero)),
            ("user", then),
            ("assistant", answer),
        ),
    )


MAKERS = ((story, 5), (story_text, 2), (story_chat, 1))
