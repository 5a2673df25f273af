"""The small world that the tiny model is trained on: its people, places, things and facts.

Everything the corpus says is made from these tables, so the model meets each word often enough
to use it well, and the same fact is never told in two ways.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")
# How often a free choice follows its cue.
HABIT = 0.6


@dataclass(frozen=True)
class Item:
    """One training document: its skill, the content that identifies it, and its turns.

    ``key`` names what is asked, without the wording: the hold-out is decided on it, so a question
    that is held out is held out in every wording. ``turns`` pairs a role with a text; the role
    ``text`` marks plain text outside a chat.
    """

    skill: str
    key: str
    turns: tuple[tuple[str, str], ...]


def ask(skill: str, key: str, question: str, answer: str) -> Item:
    """Make the item of a single question and its answer."""
    return Item(skill, key, (("user", question), ("assistant", answer)))


class Animal(NamedTuple):
    """What the world knows about a kind of animal."""

    name: str
    plural: str
    home: str
    food: str
    legs: int
    cover: str
    can: str
    size: str


class Job(NamedTuple):
    """What the world knows about a job."""

    name: str
    does: str
    where: str
    tool: str


def _words(text: str) -> list[str]:
    return text.split()


HER = _words("Mia Ana Lily Zoe Nora Ruby Ivy Rosa Emma Sara Lucy Maya Ella Alice Grace Kim")
HIM = _words("Tom Ben Sam Max Leo Finn Omar Hugo Jack Noah Paul Adam Oscar Theo Peter Bob")
NAMES = [*HER, *HIM]
SHE_PETS = _words("Tiki Momo Luna Dot Fern Wren Coco Pepper")
HE_PETS = _words("Pip Bo Rex Olly Nib Toto Bean Biscuit")
PETS = [*SHE_PETS, *HE_PETS]

ANIMALS = [
    Animal("dog", "dogs", "in a house", "meat", 4, "fur", "bark and run", "small"),
    Animal("cat", "cats", "in a house", "fish", 4, "fur", "climb and jump", "small"),
    Animal("cow", "cows", "on a farm", "grass", 4, "hair", "give milk", "big"),
    Animal("horse", "horses", "on a farm", "grass", 4, "hair", "run fast", "big"),
    Animal("sheep", "sheep", "on a farm", "grass", 4, "wool", "give wool", "small"),
    Animal("goat", "goats", "on a farm", "leaves", 4, "hair", "climb hills", "small"),
    Animal("pig", "pigs", "on a farm", "corn", 4, "hair", "dig in the mud", "big"),
    Animal("duck", "ducks", "on a lake", "seeds", 2, "feathers", "swim and fly", "small"),
    Animal("hen", "hens", "on a farm", "seeds", 2, "feathers", "lay eggs", "small"),
    Animal("owl", "owls", "in the forest", "mice", 2, "feathers", "see at night", "small"),
    Animal("crow", "crows", "in the forest", "seeds", 2, "feathers", "fly far", "small"),
    Animal("fox", "foxes", "in the forest", "mice", 4, "fur", "run and hide", "small"),
    Animal("bear", "bears", "in the forest", "honey", 4, "fur", "sleep all winter", "big"),
    Animal("wolf", "wolves", "in the forest", "meat", 4, "fur", "run fast", "big"),
    Animal("deer", "deer", "in the forest", "leaves", 4, "fur", "jump high", "big"),
    Animal("rabbit", "rabbits", "in the meadow", "carrots", 4, "fur", "jump and dig", "small"),
    Animal("mouse", "mice", "in the meadow", "seeds", 4, "fur", "hide in a hole", "small"),
    Animal("hedgehog", "hedgehogs", "in the garden", "worms", 4, "spikes", "roll up", "small"),
    Animal("squirrel", "squirrels", "in the forest", "nuts", 4, "fur", "climb trees", "small"),
    Animal("frog", "frogs", "in a pond", "flies", 4, "wet skin", "jump and swim", "small"),
    Animal("fish", "fish", "in the river", "worms", 0, "scales", "swim", "small"),
    Animal("whale", "whales", "in the sea", "fish", 0, "smooth skin", "swim far", "big"),
    Animal("crab", "crabs", "on the beach", "shrimps", 10, "a shell", "walk sideways", "small"),
    Animal("turtle", "turtles", "on the beach", "plants", 4, "a shell", "swim slowly", "small"),
    Animal("snake", "snakes", "in the desert", "mice", 0, "scales", "move without legs", "small"),
    Animal("camel", "camels", "in the desert", "leaves", 4, "hair", "carry heavy bags", "big"),
    Animal("lion", "lions", "in the grassland", "meat", 4, "fur", "roar", "big"),
    Animal(
        "elephant", "elephants", "in the grassland", "leaves", 4, "thick skin", "lift trees", "big"
    ),
    Animal("monkey", "monkeys", "in the jungle", "fruit", 4, "fur", "climb trees", "small"),
    Animal("tiger", "tigers", "in the jungle", "meat", 4, "fur", "swim and hunt", "big"),
    Animal("penguin", "penguins", "on the ice", "fish", 2, "feathers", "swim fast", "small"),
    Animal("bee", "bees", "in a hive", "nectar", 6, "fine hair", "make honey", "small"),
    Animal(
        "ant", "ants", "under the ground", "crumbs", 6, "a hard shell", "carry big leaves", "small"
    ),
    Animal("spider", "spiders", "in a web", "flies", 8, "fine hair", "make a web", "small"),
]

JOBS = [
    Job("baker", "bakes bread", "in a bakery", "an oven"),
    Job("farmer", "grows food", "on a farm", "a tractor"),
    Job("teacher", "teaches children", "in a school", "a book"),
    Job("doctor", "helps sick people", "in a hospital", "a thermometer"),
    Job("sailor", "sails a ship", "on the sea", "a rope"),
    Job("painter", "paints pictures", "in a studio", "a brush"),
    Job("tailor", "makes clothes", "in a shop", "a needle"),
    Job("cook", "makes soup", "in a kitchen", "a pot"),
    Job("gardener", "grows flowers", "in a garden", "a spade"),
    Job("miller", "makes flour", "in a mill", "a mill wheel"),
    Job("builder", "builds houses", "in the town", "a hammer"),
    Job("driver", "drives a bus", "on the road", "a bus"),
    Job("pilot", "flies a plane", "in the sky", "a plane"),
    Job("singer", "sings songs", "on a stage", "a voice"),
    Job("writer", "writes stories", "at a desk", "a pen"),
    Job("fisher", "catches fish", "on a lake", "a net"),
    Job("postman", "brings letters", "in the town", "a bag"),
    Job("librarian", "looks after books", "in a library", "a lamp"),
    Job("watchmaker", "mends clocks", "in a shop", "a tiny hammer"),
    Job("shepherd", "looks after sheep", "on a hill", "a stick"),
]

COLOURS = _words("red blue green yellow black white brown orange purple pink grey golden silver")
PLACES = _words(
    "park forest garden kitchen school river beach market farm library hill village castle lake "
    "bridge harbour mill cave meadow tower bakery island station field"
)
THINGS = _words(
    "ball book cup lamp key hat box bag kite drum bell coin map boat clock chair spoon basket "
    "ring rope shell stone feather candle letter brush mirror blanket button flute"
)
HOLDERS = _words("box bag basket drawer cupboard chest bucket pot jar tent")
ROOMS = _words("kitchen garden bedroom cellar attic hall bathroom garage shed yard")
FOODS = _words(
    "apple bread cheese soup cake rice milk honey egg carrot pear plum nut berry potato tomato "
    "onion banana lemon cherry"
)
FRUIT = _words("apple pear plum berry banana lemon cherry")
FEELINGS = _words("happy sad tired angry afraid proud hungry thirsty cold brave")
ADJECTIVES = _words("small big old young brave shy clever quiet merry gentle kind tiny strong lazy")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words(
    "January February March April May June July August September October November December"
)
LETTERS = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
NUMBERS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
)
ORDINALS = _words("first second third fourth fifth sixth seventh eighth ninth tenth")
SEASONS = {
    "spring": "the flowers open and the birds sing",
    "summer": "the days are long and warm",
    "autumn": "the leaves turn red and fall",
    "winter": "the snow falls and the lake is ice",
}
OPPOSITES = [
    ("big", "small"),
    ("hot", "cold"),
    ("old", "young"),
    ("up", "down"),
    ("day", "night"),
    ("fast", "slow"),
    ("happy", "sad"),
    ("open", "closed"),
    ("full", "empty"),
    ("wet", "dry"),
    ("hard", "soft"),
    ("light", "dark"),
    ("high", "low"),
    ("early", "late"),
    ("near", "far"),
    ("loud", "quiet"),
    ("long", "short"),
    ("first", "last"),
    ("left", "right"),
    ("in", "out"),
    ("good", "bad"),
    ("strong", "weak"),
    ("rich", "poor"),
    ("clean", "dirty"),
    ("yes", "no"),
]
COLOUR_OF = {
    "grass": "green",
    "the sky": "blue",
    "snow": "white",
    "the sun": "yellow",
    "coal": "black",
    "blood": "red",
    "milk": "white",
    "a lemon": "yellow",
    "a carrot": "orange",
    "a cherry": "red",
    "a leaf": "green",
    "the sea": "blue",
    "chocolate": "brown",
    "a banana": "yellow",
    "the night": "black",
    "a frog": "green",
    "an elephant": "grey",
    "a crow": "black",
    "a fox": "red",
    "a pig": "pink",
    "a plum": "purple",
    "a cloud": "white",
}
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "England": "London",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "Greece": "Athens",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Peru": "Lima",
}
# What a thing is used for, as a verb phrase that follows "to".
USES = {
    "a key": "open a door",
    "a cup": "drink tea",
    "a lamp": "make light",
    "a book": "read stories",
    "a spoon": "eat soup",
    "a clock": "tell the time",
    "a boat": "cross the water",
    "a map": "find the way",
    "a bell": "make a sound",
    "a bag": "carry things",
    "a chair": "sit down",
    "a hat": "keep the head warm",
    "a rope": "tie things",
    "a brush": "paint",
    "a coin": "buy bread",
    "a candle": "make light",
    "a blanket": "keep warm",
    "a drum": "make music",
    "a flute": "make music",
    "a mirror": "see your face",
    "a hammer": "hit nails",
    "a needle": "sew clothes",
    "a basket": "carry fruit",
    "a bed": "sleep",
    "a bridge": "cross the river",
}
WHY = {
    "Why is the sky blue?": "The air spreads the blue part of the sunlight more than the other "
    "colours. So the sky looks blue.",
    "Why do birds fly?": "Birds fly to find food and to go to warm places in winter.",
    "Why do we sleep?": "We sleep because the body and the head need rest.",
    "Why does it rain?": "Water rises from the sea and makes clouds. When the clouds are full, "
    "it rains.",
    "Why is the sea salty?": "Rivers carry a little salt from the stones to the sea, and it stays "
    "there.",
    "Why do leaves fall?": "In autumn the days grow cold and short, so the trees drop the leaves "
    "and rest.",
    "Why is ice cold?": "Ice is cold because it is water that has lost its heat.",
    "Why do cats sleep so much?": "Cats sleep so much because they save strength for the hunt.",
    "Why is it dark at night?": "At night our side of the earth is turned away from the sun.",
    "Why do bees make honey?": "Bees make honey so that they have food in winter.",
}

# Every word that list tasks draw from: short, common, and met elsewhere in the corpus.
WORDS = sorted(
    {a.name for a in ANIMALS}
    | set(COLOURS)
    | set(PLACES)
    | set(THINGS)
    | set(FOODS)
    | set(ROOMS)
    | set(HOLDERS)
    | {"sun", "moon", "star", "tree", "rain", "snow", "wind", "door", "bed", "road", "song"}
)
# Words of every sort, for copying whatever the user may write.
ALL_WORDS = sorted(
    {
        *WORDS,
        *NAMES,
        *PETS,
        *ADJECTIVES,
        *FEELINGS,
        *DAYS,
        *MONTHS,
        *NUMBERS,
        *ORDINALS,
        *(word for pair in OPPOSITES for word in pair),
        *CAPITALS,
        *CAPITALS.values(),
        *SEASONS,
        *(j.name for j in JOBS),
        *(a.plural for a in ANIMALS),
        *map(str, range(31)),
        *(w for a in ANIMALS for w in f"{a.home} {a.can} {a.food}".split()),
        *(w for u in USES.values() for w in u.split()),
    }
)
KIND_OF = {
    "animal": [a.name for a in ANIMALS],
    "colour": COLOURS,
    "fruit": FRUIT,
    "place": PLACES,
    "job": [j.name for j in JOBS],
    "day": DAYS,
    "month": MONTHS,
    "name": NAMES,
}


def an(noun: str) -> str:
    """Put the right indefinite article before a noun."""
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


def cap(text: str) -> str:
    """Make the first letter large and leave the others."""
    return text[:1].upper() + text[1:]


def listing(words: list[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def likely(rng: Random, options: Sequence[T], cue: str) -> T:
    """Draw one of the options, more often than not the one that belongs to a cue.

    Where every choice were equally likely, a greedy reader of the corpus would name the same thing
    each time. With habits, different prompts lead to different stories.
    """
    if rng.random() < HABIT:
        return options[zlib.crc32(cue.encode()) % len(options)]
    return rng.choice(options)


def follow(rng: Random, options: Sequence[T], last: T) -> T:
    """Draw what comes after something: more often than not its neighbour on a long way round."""
    if rng.random() > HABIT:
        return rng.choice(options)
    step = next(s for s in (7, 5, 11) if len(options) % s)
    return options[(options.index(last) + step) % len(options)]


def chain(rng: Random, options: Sequence[T], count: int, cue: str) -> list[T]:
    """Draw different options, each of them likely to be the one that follows its forerunner."""
    drawn = [likely(rng, options, cue)]
    while len(drawn) < count:
        after = follow(rng, options, drawn[-1])
        drawn.append(
            rng.choice([o for o in options if o not in drawn]) if after in drawn else after
        )
    return drawn


def made_up(rng: Random) -> str:
    """Invent a word that is in no list, so that copying is learnt and not a choice from a list."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        parts.append(rng.choice("bcdfghjklmnpqrstvwxyz") if rng.random() < 0.85 else "")
        parts.append(rng.choice(("a", "e", "i", "o", "u", "a", "e", "o", "ea", "oo", "y")))
        parts.append(rng.choice("nrstlmdkpc") if rng.random() < 0.4 else "")
    return "".join(parts)[: rng.randint(3, 9)]
