"""Questions about the world itself: animals, jobs, colours, uses, opposites, capitals, reasons."""

from random import Random

from training.world import (
    ANIMALS,
    CAPITALS,
    COLOUR_OF,
    JOBS,
    KIND_OF,
    NUMBERS,
    OPPOSITES,
    SEASONS,
    USES,
    WHY,
    Animal,
    Item,
    Job,
    an,
    ask,
    cap,
    chain,
    listing,
)

Pair = tuple[str, str]


def _animal_pairs(one: Animal) -> list[Pair]:
    name, many = one.name, one.plural
    legs = f"{NUMBERS[one.legs]} legs" if one.legs else "no legs"
    verb = "lives"
    return [
        (f"Where does {an(name)} live?", f"{cap(an(name))} {verb} {one.home}."),
        (f"Where do {many} live?", f"{cap(many)} live {one.home}."),
        (f"What does {an(name)} eat?", f"{cap(an(name))} eats {one.food}."),
        (f"What do {many} eat?", f"{cap(many)} eat {one.food}."),
        (f"How many legs does {an(name)} have?", f"{cap(an(name))} has {legs}."),
        (f"What can {an(name)} do?", f"{cap(an(name))} can {one.can}."),
        (f"What can {many} do?", f"{cap(many)} can {one.can}."),
        (f"What covers {an(name)}?", f"{cap(an(name))} has {one.cover}."),
        (f"Is {an(name)} big or small?", f"{cap(an(name))} is {one.size}."),
        (f"What is {an(name)}?", f"{cap(an(name))} is a {one.size} animal that lives {one.home}."),
    ]


def describe(one: Animal) -> str:
    """Say everything that the world knows about an animal."""
    legs = f"{NUMBERS[one.legs]} legs" if one.legs else "no legs"
    return (
        f"{cap(an(one.name))} is a {one.size} animal. It lives {one.home}. It has {legs} and "
        f"{one.cover}. It eats {one.food}. {cap(one.plural)} can {one.can}."
    )


def _job_pairs(one: Job) -> list[Pair]:
    who = an(one.name)
    return [
        (f"What does {who} do?", f"{cap(who)} {one.does}."),
        (f"Where does {who} work?", f"{cap(who)} works {one.where}."),
        (f"What does {who} use?", f"{cap(who)} uses {one.tool}."),
        (f"Who {one.does}?", f"{cap(who)} {one.does}."),
    ]


def _other_pairs() -> list[list[Pair]]:
    """List what is asked about colours, uses, opposites, capitals and seasons."""
    groups: list[list[Pair]] = [
        [
            (f"What colour is {thing}?", f"{cap(thing)} is {colour}."),
            (f"What is the colour of {thing}?", f"{cap(thing)} is {colour}."),
        ]
        for thing, colour in COLOUR_OF.items()
    ]
    groups += [
        [
            (f"What is {thing} for?", f"{cap(thing)} is used to {use}."),
            (f"What do you do with {thing}?", f"You use {thing} to {use}."),
            (f"Why do people need {thing}?", f"People need {thing} to {use}."),
        ]
        for thing, use in USES.items()
    ]
    groups += [
        [(f"What is the opposite of {a}?", f"The opposite of {a} is {b}.") for a, b in (p, p[::-1])]
        for p in OPPOSITES
    ]
    groups += [
        [
            (f"What is the capital of {land}?", f"The capital of {land} is {city}."),
            (f"Where is {city}?", f"{city} is in {land}."),
        ]
        for land, city in CAPITALS.items()
    ]
    groups += [[(f"What happens in {s}?", f"In {s} {text}.")] for s, text in SEASONS.items()]
    return groups


# For each thing that is known: the questions about it and their answers.
KNOWN = [_animal_pairs(a) for a in ANIMALS] + [_job_pairs(j) for j in JOBS] + _other_pairs()


def _pairs(rng: Random) -> Pair:
    """Draw a question and its answer."""
    return rng.choice(rng.choice(KNOWN))


def fact(rng: Random) -> Item:
    """Ask one question about the world.

    The key holds the wording of the question, so a held-out fact is known from its other wordings
    only.
    """
    question, answer = _pairs(rng)
    return ask("facts", question, question, answer)


def why(rng: Random) -> Item:
    """Ask for a reason."""
    question, answer = rng.choice(sorted(WHY.items()))
    return ask("talk", question, question, answer)


def about(rng: Random) -> Item:
    """Ask for everything about an animal or a job."""
    wordings = ("Tell me about {}.", "What do you know about {}?", "Describe {}.")
    if rng.random() < 0.7:
        animal = rng.choice(ANIMALS)
        names = (animal.plural, an(animal.name), f"the {animal.name}")
        return ask(
            "talk",
            f"about {animal.name}",
            rng.choice(wordings).format(rng.choice(names)),
            describe(animal),
        )
    job = rng.choice(JOBS)
    answer = (
        f"{cap(an(job.name))} {job.does}. {cap(an(job.name))} works {job.where} and uses "
        f"{job.tool}."
    )
    return ask(
        "talk",
        f"about {job.name}",
        rng.choice(wordings).format(rng.choice((an(job.name), f"the {job.name}"))),
        answer,
    )


def name_some(rng: Random) -> Item:
    """Ask for a few members of a kind."""
    kind = rng.choice(["animal", "colour", "fruit", "place", "job"])
    many = {"colour": "colours", "fruit": "fruits"}.get(kind, f"{kind}s")
    number = rng.randint(2, 6)
    chosen = chain(rng, KIND_OF[kind], number, f"name {kind}")
    question = rng.choice(
        ("Name {} {}.", "Tell me {} {}.", "Can you name {} {}?", "Give me {} {}.")
    ).format(rng.choice((str(number), NUMBERS[number])), many)
    if number == 5 and rng.random() < 0.7:
        question = rng.choice(
            (
                "Give me a list of {}.",
                "Name some {}.",
                "List some {}.",
                "Make a list of {}.",
                "Which {} do you know?",
            )
        ).format(many)
    return ask("talk", f"{kind} {chosen}", question, f"{cap(listing(chosen))}.")


def bigger(rng: Random) -> Item:
    """Ask which of two animals is bigger or smaller."""
    big = an(rng.choice([a for a in ANIMALS if a.size == "big"]).name)
    small = an(rng.choice([a for a in ANIMALS if a.size == "small"]).name)
    one, two = (big, small) if rng.random() < 0.5 else (small, big)
    more, less = rng.choice((("bigger", "smaller"), ("heavier", "lighter")))
    question, answer = rng.choice(
        (
            (f"Which is {more}, {one} or {two}?", f"{cap(big)} is {more} than {small}."),
            (f"Which is {less}, {one} or {two}?", f"{cap(small)} is {less} than {big}."),
            (f"Is {big} {more} than {small}?", f"Yes, {big} is {more} than {small}."),
            (f"Is {small} {more} than {big}?", f"No, {big} is {more} than {small}."),
        )
    )
    return ask("facts", question, question, answer)


def fact_text(rng: Random) -> Item:
    """Write a page of facts as plain text."""
    choice = rng.random()
    if choice < 0.5:
        text = describe(rng.choice(ANIMALS))
    elif choice < 0.8:
        told = sorted({answer for _, answer in rng.choice(KNOWN)})
        text = " ".join(rng.sample(told, len(told)))
    else:
        pages = chain(rng, range(len(KNOWN)), rng.randint(1, 5), "page")
        text = "\n".join("Question: {}\nAnswer: {}".format(*rng.choice(KNOWN[p])) for p in pages)
    return Item("fact_text", text, (("text", text),))


MAKERS = ((fact, 8), (bigger, 1), (why, 1), (about, 2), (name_some, 1), (fact_text, 2))
