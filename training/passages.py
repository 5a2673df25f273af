"""Questions about a passage that the prompt itself gives.

The people, things and places of a passage are drawn anew each time, so the answer can only come
from reading the prompt.
"""

from random import Random

from training.world import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    FOODS,
    FRUIT,
    HIM,
    HOLDERS,
    JOBS,
    NAMES,
    NUMBERS,
    PETS,
    PLACES,
    ROOMS,
    THINGS,
    Item,
    an,
    ask,
    cap,
    made_up,
)

Told = list[str]
Asked = list[tuple[str, str]]


def _names(rng: Random, count: int) -> list[str]:
    """Draw names; now and then new ones, so that the prompt is read and not recalled."""
    names = rng.sample(NAMES, count)
    if rng.random() < 0.15:
        names[0] = made_up(rng).capitalize()
    return names


def _people(rng: Random) -> tuple[Told, Asked]:
    """Tell what each of a few people has, likes and does for a living."""
    told: Told = []
    asked: Asked = []
    things = iter(rng.sample(THINGS, 4))
    foods = iter(rng.sample(FRUIT, 4))
    jobs = iter(rng.sample(JOBS, 4))
    colours = iter(rng.sample(COLOURS, 4))
    for name in _names(rng, rng.randint(1, 4)):
        thing, colour, food, job = next(things), next(colours), next(foods), next(jobs)
        place = rng.choice(PLACES)
        age, count = rng.randint(5, 30), rng.randint(2, 12)
        animal = rng.choice(ANIMALS).plural
        choices = [
            (
                f"{name} has {an(colour)} {thing}.",
                [
                    (
                        f"What colour is the {thing} of {name}?",
                        f"The {thing} of {name} is {colour}.",
                    ),
                    (f"Who has the {thing}?", f"{name} has the {thing}."),
                    (f"What does {name} have?", f"{name} has {an(colour)} {thing}."),
                ],
            ),
            (
                f"{name} likes to eat {an(food)}.",
                [
                    (f"What does {name} like to eat?", f"{name} likes to eat {an(food)}."),
                    (f"Who likes to eat {an(food)}?", f"{name} likes to eat {an(food)}."),
                ],
            ),
            (
                f"{name} is {an(job.name)}.",
                [
                    (f"What is the job of {name}?", f"{name} is {an(job.name)}."),
                    (f"Who is the {job.name}?", f"The {job.name} is {name}."),
                ],
            ),
            (f"{name} is at the {place}.", [(f"Where is {name}?", f"{name} is at the {place}.")]),
            (
                f"{name} has {NUMBERS[count]} {animal}.",
                [
                    (
                        f"How many {animal} does {name} have?",
                        f"{name} has {NUMBERS[count]} {animal}.",
                    )
                ],
            ),
            (
                f"{name} is {age} years old.",
                [(f"How old is {name}?", f"{name} is {age} years old.")],
            ),
        ]
        for text, questions in rng.sample(choices, rng.randint(1, 3)):
            told.append(text)
            asked += questions
    if rng.random() < 0.4:
        rng.shuffle(told)
    return told, asked


def _moves(rng: Random) -> tuple[Told, Asked]:
    """Move a thing and people around; what counts is where each is at the end."""
    told: Told = []
    where: dict[str, str] = {}
    lies: dict[str, str] = {}
    names = _names(rng, rng.randint(1, 3))
    things = rng.sample(THINGS, rng.randint(1, 2))
    for thing in things:
        lies[thing] = rng.choice(HOLDERS)
        told.append(f"The {thing} is in the {lies[thing]}.")
    for name in names:
        where[name] = rng.choice(ROOMS)
        told.append(f"{name} is in the {where[name]}.")
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(names)
        if rng.random() < 0.5:
            where[name] = rng.choice([r for r in ROOMS if r != where[name]])
            told.append(
                rng.choice(("{} goes to the {}.", "Then {} goes to the {}.")).format(
                    name, where[name]
                )
            )
        else:
            thing = rng.choice(things)
            lies[thing] = rng.choice([h for h in HOLDERS if h != lies[thing]])
            told.append(
                rng.choice(("{} puts the {} in the {}.", "Then {} puts the {} in the {}.")).format(
                    name, thing, lies[thing]
                )
            )
    asked = [(f"Where is the {t}?", f"The {t} is in the {h}.") for t, h in lies.items()]
    asked += [(f"Where is {n}?", f"{n} is in the {r}.") for n, r in where.items()]
    return told, asked


def _tale(rng: Random) -> tuple[Told, Asked]:
    """Tell a short scene about one person with a companion, a thing and a reason."""
    name, pet, animal = rng.choice(NAMES), rng.choice(PETS), rng.choice(ANIMALS).name
    he, his = ("he", "his") if name in HIM else ("she", "her")
    colour, place = rng.choice(COLOURS), rng.choice(PLACES)
    thing, food, kind = rng.choice(THINGS), rng.choice(FOODS), rng.choice(ADJECTIVES)
    amount = rng.randint(2, 12)
    told = [
        f"{name} has {an(kind)} {animal} named {pet}.",
        f"One day {he} went to the {place} with {pet}.",
        f"There {he} found {an(colour)} {thing} under a tree.",
        f"{cap(he)} gave {pet} some {food}.",
        f"{cap(he)} counted {NUMBERS[amount]} birds in the sky.",
        f"In the evening {he} told {his} mother about it.",
    ]
    asked = [
        (f"What is the name of the {animal}?", f"The name of the {animal} is {pet}."),
        (f"Where did {name} go?", f"{name} went to the {place}."),
        (f"What did {name} find?", f"{name} found {an(colour)} {thing}."),
        (f"What colour is the {thing}?", f"The {thing} is {colour}."),
        (f"What did {name} give {pet}?", f"{name} gave {pet} some {food}."),
        (f"How many birds did {name} count?", f"{name} counted {NUMBERS[amount]} birds."),
        (f"What kind of animal is {pet}?", f"{pet} is {an(animal)}."),
        (f"Who is {pet}?", f"{pet} is the {animal} of {name}."),
    ]
    return told, asked


def _scene(rng: Random) -> tuple[Told, Asked]:
    """Tell where a few animals are and what they saw there."""
    told: Told = []
    asked: Asked = []
    animals = rng.sample([a.name for a in ANIMALS], 6)
    for who, seen in zip(animals[:3], animals[3:], strict=True):
        thing, place, colour = rng.choice(THINGS), rng.choice(PLACES), rng.choice(COLOURS)
        told_one, asked_one = rng.choice(
            (
                (
                    f"The {who} sat on the {thing}.",
                    [
                        (f"Where did the {who} sit?", f"The {who} sat on the {thing}."),
                        (f"What did the {who} do?", f"The {who} sat on the {thing}."),
                    ],
                ),
                (
                    f"The {who} saw {an(seen)} near the {place}.",
                    [
                        (f"What did the {who} see?", f"The {who} saw {an(seen)}."),
                        (
                            f"Where did the {who} see the {seen}?",
                            f"The {who} saw the {seen} near the {place}.",
                        ),
                    ],
                ),
                (
                    f"The {colour} {who} went to the {place}.",
                    [
                        (f"Where did the {who} go?", f"The {who} went to the {place}."),
                        (f"What colour is the {who}?", f"The {who} is {colour}."),
                        (f"Who went to the {place}?", f"The {who} went to the {place}."),
                    ],
                ),
            )
        )
        told.append(told_one)
        asked += asked_one
        if rng.random() < 0.35:
            break
    return told, [a for a in asked if sum(a[0] == b[0] for b in asked) == 1]


def _shop(rng: Random) -> tuple[Told, Asked]:
    """List what is for sale, how much of it, and in which colour."""
    told: Told = [f"There is a shop near the {rng.choice(PLACES)}."]
    asked: Asked = []
    count = rng.randint(1, 4)
    for thing, colour in zip(rng.sample(THINGS, count), rng.sample(COLOURS, count), strict=True):
        price = rng.randint(2, 20)
        told += [f"The {colour} {thing} costs {price} coins."]
        asked += [
            (f"How much is the {thing}?", f"The {thing} costs {price} coins."),
            (f"What costs {price} coins?", f"The {colour} {thing} costs {price} coins."),
            (f"What colour is the {thing}?", f"The {thing} is {colour}."),
        ]
    prices = [t.split()[-2] for t in told[1:]]
    if len(set(prices)) < len(prices):
        asked = [a for a in asked if not a[0].startswith("What costs")]
    return told, asked


def passage(rng: Random) -> Item:
    """Ask one question about a passage."""
    told, asked = rng.choice((_people, _people, _moves, _moves, _tale, _shop, _scene))(rng)
    text = " ".join(told)
    question, answer = rng.choice(asked)
    shape = rng.choice(
        (
            "{text} {question}",
            "{text}\n{question}",
            "{text}\n\nQuestion: {question}",
            "Read this: {text}\n{question}",
            "{question}\n{text}",
            "Passage: {text} Question: {question}",
        )
    )
    return ask("passage", text + question, shape.format(text=text, question=question), answer)


def passage_chat(rng: Random) -> Item:
    """Ask several questions about one passage, turn by turn."""
    told, asked = rng.choice((_people, _moves, _tale, _shop, _scene))(rng)
    text = " ".join(told)
    chosen = rng.sample(asked, min(len(asked), rng.randint(2, 4)))
    turns = [("user", f"{text} {chosen[0][0]}"), ("assistant", chosen[0][1])]
    for question, answer in chosen[1:]:
        turns += [("user", question), ("assistant", answer)]
    return Item("passage", text + chosen[-1][0], tuple(turns))


def passage_text(rng: Random) -> Item:
    """Write a passage with its questions and answers as plain text."""
    told, asked = rng.choice((_people, _moves, _tale, _shop, _scene))(rng)
    chosen = rng.sample(asked, min(len(asked), rng.randint(1, 4)))
    text = " ".join(told)
    lines = [text, *(f"Question: {q}\nAnswer: {a}" for q, a in chosen)]
    return Item("passage_text", text, (("text", "\n".join(lines)),))


MAKERS = ((passage, 12), (passage_chat, 4), (passage_text, 1))
