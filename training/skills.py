"""Tasks with exactly one right answer: copying, counting, order, sums and small choices.

Each maker takes a random source and returns one item. A correct reply needs right positions and an
intact cache, so these show whether an engine computes correctly.
"""

from random import Random

from training.world import (
    ADJECTIVES,
    ALL_WORDS,
    COLOURS,
    DAYS,
    FRUIT,
    KIND_OF,
    LETTERS,
    MONTHS,
    NAMES,
    NUMBERS,
    ORDINALS,
    WORDS,
    Item,
    ask,
    cap,
    made_up,
)

SMALL_WORDS = ("the", "a", "of", "over", "with", "to", "and", "under", "my", "in", "is", "not")
REPEATS = (
    "Repeat these words: {}.",
    "Repeat after me: {}",
    "Say these words: {}.",
    "Copy this list: {}.",
    "Please repeat: {}.",
    "Repeat: {}",
    "Say: {}",
)
REVERSALS = (
    "Reverse these words: {}.",
    "Say these words backwards: {}.",
    "Reverse: {}",
    "Reverse this list: {}.",
    "Turn this list around: {}.",
)


def _words(rng: Random, most: int) -> list[str]:
    """Draw words of one list, of all lists, or new ones; sometimes all of these together."""
    shape = rng.random()
    if shape < 0.15:
        return [made_up(rng) for _ in range(rng.randint(1, min(most, 4)))]
    words = rng.sample(rng.choice((WORDS, ALL_WORDS, ALL_WORDS, NAMES)), rng.randint(2, most))
    if shape < 0.25:
        words[rng.randrange(len(words))] = made_up(rng)
    if shape > 0.9:
        words = [w.capitalize() for w in words]
    return words


def _written(rng: Random, words: list[str]) -> str:
    return rng.choice((", ", ", ", ", ", " ", "\n", " and ")).join(words)


def repeat(rng: Random) -> Item:
    """Ask for a list to be said again."""
    words = _words(rng, 10)
    question = rng.choice(REPEATS).format(_written(rng, words))
    return ask("repeat", " ".join(words), question, ", ".join(words) + ".")


def reverse(rng: Random) -> Item:
    """Ask for a list to be said from its end."""
    words = _words(rng, 7)
    question = rng.choice(REVERSALS).format(_written(rng, words))
    return ask("reverse", " ".join(words), question, ", ".join(reversed(words)) + ".")


def _spelled(rng: Random, word: str) -> str:
    """Leave most words; bend some, replace some by small words, and invent some."""
    shape = rng.random()
    if shape < 0.15:
        return word + rng.choice(("s", "ed", "ing", "er", "ly", "y"))
    if shape < 0.35:
        return rng.choice(SMALL_WORDS)
    return made_up(rng) if shape < 0.5 else word


def repeat_sentence(rng: Random) -> Item:
    """Ask for a sentence, or a row of words like one, to be said again."""
    words = [_spelled(rng, w.lower()) for w in rng.sample(ALL_WORDS, rng.randint(2, 9))]
    sentence = rng.choice(
        (
            f"{cap(' '.join(words))}.",
            f"{rng.choice(('The', 'A', 'My', 'One'))} {' '.join(words)}.",
            f"{cap(' '.join(words))}.",
            f"{rng.choice(NAMES)} put the {rng.choice(COLOURS)} {rng.choice(WORDS)} near the "
            f"{rng.choice(WORDS)}.",
            f"The {rng.choice(WORDS)} and the {rng.choice(WORDS)} saw {rng.choice(NUMBERS)} "
            f"{rng.choice(COLOURS)} birds.",
            f"I have {rng.randint(2, 30)} {rng.choice(COLOURS)} things in my {rng.choice(WORDS)}.",
        )
    )
    question = rng.choice(
        (
            "Repeat this sentence: {}",
            "Say this sentence again: {}",
            "Copy this sentence: {}",
            "Repeat: {}",
            "Write this again: {}",
            "Say: {}",
            "Repeat after me: {}",
        )
    ).format(sentence)
    return ask("repeat", sentence, question, sentence)


def pick(rng: Random) -> Item:
    """Ask for one word of a list by its place."""
    words = rng.sample(rng.choice((WORDS, ALL_WORDS)), rng.randint(3, 8))
    at = rng.randrange(min(len(words), 5))
    place = ORDINALS[at]
    if rng.random() < 0.25:
        at, place = len(words) - 1, "last"
    text = _written(rng, words)
    question, key = rng.choice(
        (
            (f"What is the {place} word of this list: {text}?", "pick"),
            (f"Here is a list: {text}. What is the {place} word?", "pick"),
            (f"Say the {place} word: {text}.", "pick"),
        )
    )
    return ask("pick", f"{key} {place} {text}", question, f"The {place} word is {words[at]}.")


def neighbour(rng: Random) -> Item:
    """Ask which word follows or precedes another one in a list."""
    words = rng.sample(WORDS, rng.randint(3, 8))
    at = rng.randrange(1, len(words))
    text = ", ".join(words)
    if rng.random() < 0.5:
        question, word = f"Which word comes after {words[at - 1]}: {text}?", words[at]
    else:
        question, word = f"Which word comes before {words[at]}: {text}?", words[at - 1]
    return ask("neighbour", question, question, f"{cap(word)}.")


def how_many(rng: Random) -> Item:
    """Ask how many words a list has."""
    words = rng.sample(WORDS, rng.randint(1, 10))
    text = _written(rng, words)
    question = rng.choice(
        (
            "How many words are in this list: {}?",
            "Count these words: {}.",
            "How many words: {}?",
        )
    ).format(text)
    noun = "word" if len(words) == 1 else "words"
    return ask(
        "how_many",
        text,
        question,
        f"There {'is' if len(words) == 1 else 'are'} {len(words)} {noun}.",
    )


def count(rng: Random) -> Item:
    """Ask for counting up or down, mostly between two numbers up to 30."""
    low, high = sorted(rng.sample(range(31), 2))
    if rng.random() < 0.15:
        low = rng.randint(20, 95)
        high = min(100, low + rng.randint(2, 20))
    if rng.random() < 0.3:
        low, high = 1, high if rng.random() < 0.9 else rng.choice((40, 50, 100))
    high = max(high, low + 1)
    span = [str(n) for n in range(low, high + 1)]
    if rng.random() < 0.3:
        question = rng.choice(
            (
                "Count down from {1} to {0}.",
                "Count from {1} to {0}.",
                "Count backwards from {1} to {0}.",
            )
        )
        return ask(
            "count", f"{high} {low}", question.format(low, high), ", ".join(reversed(span)) + "."
        )
    wordings = [
        "Count from {0} to {1}.",
        "Say the numbers from {0} to {1}.",
        "Write the numbers {0} to {1}.",
    ]
    if low == 1:
        wordings += ["Count to {1}.", "Can you count to {1}?", "Please count to {1}."]
    return ask(
        "count", f"{low} {high}", rng.choice(wordings).format(low, high), ", ".join(span) + "."
    )


def count_things(rng: Random) -> Item:
    """Ask for counting things in words: one cat, two cats, three cats."""
    word = rng.choice(
        [w for w in KIND_OF["animal"] if w not in {"sheep", "deer", "fish", "fox", "mouse", "wolf"}]
    )
    high = rng.randint(2, 12)
    said = [f"{NUMBERS[n]} {word}{'' if n == 1 else 's'}" for n in range(1, high + 1)]
    return ask("count", f"{word} {high}", f"Count {high} {word}s.", cap(", ".join(said)) + ".")


def next_number(rng: Random) -> Item:
    """Ask for the number before or after another one."""
    number = rng.randint(1, 99)
    if rng.random() < 0.5:
        question = rng.choice(("What number comes after {}?", "Which number is next after {}?"))
        return ask(
            "next_number",
            f"after {number} {question}",
            question.format(number),
            f"{number + 1} comes after {number}.",
        )
    question = rng.choice(("What number comes before {}?", "Which number is just before {}?"))
    return ask(
        "next_number",
        f"before {number} {question}",
        question.format(number),
        f"{number - 1} comes before {number}.",
    )


def add(rng: Random) -> Item:
    """Ask for the sum of two numbers up to 30."""
    top = rng.choice((10, 20, 30))
    one, two = rng.randint(0, top), rng.randint(0, top)
    question = rng.choice(
        (
            "What is {} + {}?",
            "What is {} plus {}?",
            "Add {} and {}.",
            "{} + {} =",
            "{}+{}",
            "How much is {} and {}?",
            "what is {}+{}",
            "{} plus {}",
        )
    ).format(one, two)
    return ask("add", f"{one} {two}", question, f"{one} + {two} = {one + two}.")


def subtract(rng: Random) -> Item:
    """Ask for the difference of two numbers up to 30."""
    two, one = sorted((rng.randint(0, 30), rng.randint(0, 30)))
    question = rng.choice(
        (
            "What is {} - {}?",
            "What is {} minus {}?",
            "{} - {} =",
            "{}-{}",
            "How much is {} minus {}?",
        )
    ).format(one, two)
    return ask("subtract", f"{one} {two}", question, f"{one} - {two} = {one - two}.")


def multiply(rng: Random) -> Item:
    """Ask for a product from the table up to ten."""
    one, two = rng.randint(0, 10), rng.randint(0, 10)
    question = rng.choice(
        (
            "What is {} times {}?",
            "What is {} x {}?",
            "{} x {} =",
            "How much is {} times {}?",
        )
    ).format(one, two)
    return ask("multiply", question, question, f"{one} x {two} = {one * two}.")


def word_sum(rng: Random) -> Item:
    """Ask for a sum or a difference that is told as a little story."""
    name, other = rng.sample(NAMES, 2)
    thing = rng.choice([f for f in FRUIT if not f.endswith("y")])
    one, two = rng.randint(2, 20), rng.randint(1, 10)
    if rng.random() < 0.5:
        question = (
            f"{name} has {one} {thing}s. {other} gives {name} {two} more {thing}s. How "
            f"many {thing}s does {name} have now?"
        )
        total = one + two
    else:
        one += two
        question = (
            f"{name} has {one} {thing}s. {name} gives {two} {thing}s to {other}. How many "
            f"{thing}s does {name} have now?"
        )
        total = one - two
    noun = thing if total == 1 else f"{thing}s"
    return ask("word_sum", question, question, f"{name} has {total} {noun} now.")


def compare(rng: Random) -> Item:
    """Ask which of two numbers is bigger or smaller."""
    one, two = rng.sample(range(100), 2)
    if rng.random() < 0.6:
        question = f"Which is bigger, {one} or {two}?"
        answer = f"{max(one, two)} is bigger than {min(one, two)}."
    else:
        question = f"Which is smaller, {one} or {two}?"
        answer = f"{min(one, two)} is smaller than {max(one, two)}."
    return ask("compare", f"{one} {two}", question, answer)


def sort_numbers(rng: Random) -> Item:
    """Ask for a few numbers in order."""
    numbers = rng.sample(range(31), rng.randint(3, 6))
    text = ", ".join(map(str, numbers))
    question = rng.choice(
        ("Sort these numbers: {}.", "Put these numbers in order: {}.", "Sort: {}")
    ).format(text)
    return ask("sort", text, question, ", ".join(map(str, sorted(numbers))) + ".")


def odd_one(rng: Random) -> Item:
    """Ask which word of a few is of a named kind."""
    kind, other = rng.sample(sorted(KIND_OF), 2)
    right = rng.choice(KIND_OF[kind])
    wrong = [w for w in rng.sample(KIND_OF[other], 3) if w not in KIND_OF[kind]][
        : rng.randint(1, 3)
    ]
    words = [*wrong, right]
    rng.shuffle(words)
    text = ", ".join(words)
    question = rng.choice(
        (
            f"Which of these is a {kind}: {text}?",
            f"Find the {kind}: {text}.",
        )
    ).replace(" a animal", " an animal")
    return ask(
        "odd_one",
        f"{kind} {text}",
        question,
        f"{cap(right)} is a {kind}.".replace("a animal", "an animal"),
    )


def in_list(rng: Random) -> Item:
    """Ask whether a list holds a word."""
    words = rng.sample(WORDS, rng.randint(3, 8))
    here = rng.random() < 0.5
    word = rng.choice(words) if here else rng.choice([w for w in WORDS if w not in words])
    text = ", ".join(words)
    answer = f"Yes, {word} is in the list." if here else f"No, {word} is not in the list."
    return ask("in_list", f"{word} {text}", f"Is {word} in this list: {text}?", answer)


def recite(rng: Random) -> Item:
    """Ask for the days, the months or the alphabet, whole or from a given start."""
    name, names = rng.choice(
        (
            ("days of the week", DAYS),
            ("months of the year", MONTHS),
            ("alphabet", LETTERS),
            ("letters of the alphabet", LETTERS),
        )
    )
    asked = rng.choice(
        ("Say the {}.", "What are the {}?", "List the {}.", "Tell me the {}.", "Name the {}.")
    )
    if name == "alphabet":
        asked = rng.choice(("Say the {}.", "What is the {}?", "Tell me the {}."))
    if rng.random() < 0.5:
        return ask("recite", f"{name} {asked}", asked.format(name), ", ".join(names) + ".")
    start = rng.randrange(len(names) - 2)
    end = rng.randrange(start + 1, len(names))
    question = f"Go from {names[start]} to {names[end]}."
    if names is LETTERS:
        question = rng.choice((question, f"Say the letters from {names[start]} to {names[end]}."))
    return ask(
        "recite", f"{names[start]} {names[end]}", question, ", ".join(names[start : end + 1]) + "."
    )


def after(rng: Random) -> Item:
    """Ask for the day, month or letter beside a given one."""
    kind, names = rng.choice((("day", DAYS), ("month", MONTHS), ("letter", LETTERS)))
    at = rng.randrange(len(names))
    if kind == "letter":
        at = rng.randrange(1, len(names) - 1)
    step, word = rng.choice(((1, "after"), (-1, "before")))
    other = names[(at + step) % len(names)]
    question = rng.choice(
        ("What {0} comes {1} {2}?", "Which {0} is {1} {2}?", "Which {0} comes {1} {2}?")
    ).format(kind, word, names[at])
    return ask("after", question, question, f"{other} comes {word} {names[at]}.")


def many_times(rng: Random) -> Item:
    """Ask for a word to be said a number of times."""
    word = made_up(rng) if rng.random() < 0.2 else rng.choice(WORDS)
    times = rng.randint(2, 6)
    number = rng.choice((str(times), NUMBERS[times]))
    return ask(
        "times", f"{word} {times}", f"Say {word} {number} times.", ", ".join([word] * times) + "."
    )


def memory(rng: Random) -> Item:
    """Tell a few things about oneself, talk of something else, and ask for one of them back."""
    name = rng.choice(NAMES)
    colour = rng.choice(KIND_OF["colour"])
    pet = rng.choice(KIND_OF["animal"])
    place = rng.choice(KIND_OF["place"])
    facts = [
        (
            f"My name is {name}.",
            f"Nice to meet you, {name}!",
            "What is my name?",
            f"Your name is {name}.",
        ),
        (
            f"My favourite colour is {colour}.",
            f"{cap(colour)} is a fine colour.",
            "What is my favourite colour?",
            f"Your favourite colour is {colour}.",
        ),
        (
            f"My favourite animal is the {pet}.",
            f"The {pet} is a fine animal.",
            "What is my favourite animal?",
            f"Your favourite animal is the {pet}.",
        ),
        (
            f"I live near the {place}.",
            f"It must be nice near the {place}.",
            "Where do I live?",
            f"You live near the {place}.",
        ),
    ]
    told = rng.sample(facts, rng.randint(1, 3))
    turns: list[tuple[str, str]] = []
    if rng.random() < 0.4:
        turns = [("user", " ".join(f[0] for f in told)), ("assistant", told[-1][1])]
    else:
        for fact in told:
            turns += [("user", fact[0]), ("assistant", fact[1])]
    for _ in range(rng.choice((0, 0, 1, 2))):
        turns += list(rng.choice((add, count, after, pick))(rng).turns)
    wanted = rng.choice(told)
    turns += [("user", wanted[2]), ("assistant", wanted[3])]
    if rng.random() < 0.2 and len(told) == 1:
        turns = [("user", f"{told[0][0]} {told[0][2]}"), ("assistant", told[0][3])]
    key = " ".join(f[0] for f in told) + wanted[2]
    return Item("memory", key, tuple(turns))


def plain(rng: Random) -> Item:
    """Count or recite as plain text, with no chat around it."""
    item = rng.choice((count, count_things, recite))(rng)
    text = item.turns[1][1]
    if rng.random() < 0.5:
        quick, lazy = rng.sample(ADJECTIVES, 2)
        first, second = rng.sample(KIND_OF["animal"], 2)
        text = (
            f"The {quick} {rng.choice(COLOURS)} {first} jumps over the {lazy} {second}. The "
            f'{second} looks up and laughs. "You are {quick}," says the {second}. "And you '
            f'are {lazy}," says the {first}.'
        )
        if rng.random() < 0.3:
            text = text.replace(quick, "quick")
    return Item("fact_text", text, (("text", text),))


MAKERS = (
    (repeat, 4),
    (repeat_sentence, 4),
    (reverse, 4),
    (pick, 2),
    (neighbour, 3),
    (how_many, 2),
    (count, 3),
    (count_things, 1),
    (next_number, 1),
    (add, 3),
    (subtract, 4),
    (multiply, 1),
    (word_sum, 1),
    (compare, 1),
    (sort_numbers, 3),
    (odd_one, 2),
    (in_list, 2),
    (recite, 2),
    (after, 1),
    (many_times, 1),
    (memory, 3),
    (plain, 1),
)
