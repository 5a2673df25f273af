"""The engine as a real child process."""

import contextlib

import attrs
import pytest
from model_child import Child
from model_families import FAMILIES, reference_tokens
from model_rings import Author, bounds_for, hop_keys, place_of
from sealring_model.loading import describe
from sealring_protocol.codec.messages import Decode, Join, Open, Prefill, Row

PROMPT = [(7 * i * i + 3 * i) % 251 for i in range(40)]


def send_round(children, step):
    message = step
    for child in children:
        child.send(message)
        message = child.receive()
        assert not message.failed, message.failed
    if len(children) > 1 and message.tensors:
        children[0].send(message)
        message = children[0].receive()
        assert not message.failed, message.failed
    return message


def generate(children, author, prompt, count):
    children[0].send(Row(1))
    send_round(children, author.write(open=(Open(1),)))
    work = Prefill(1, 0, len(prompt) - 1)
    send_round(children, author.write(work=work, ids=tuple(prompt[:-1])))
    first = author.write(join=(Join(1, 0),), ids=(prompt[-1],), work=Decode(0))
    tokens = list(send_round(children, first).ids)
    for _ in range(count - 1):
        tokens += send_round(children, author.write(work=Decode(0))).ids
    return tokens


@pytest.mark.parametrize(("family", "world", "seal"), [("llama", 1, False), ("gpt-oss", 2, True)])
def test_children_give_the_reference_text(models, references, family, world, seal):
    folder = models[family]
    info = describe(folder)
    bounds = bounds_for(FAMILIES[family]["num_hidden_layers"], world)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(folder)) for _ in range(world)]
        for rank, child in enumerate(children):
            assert attrs.evolve(child.info(), room=0) == info.engine_info(0)
            for key in hop_keys(rank, world) if seal else ():
                child.send(key)
            ready = child.start(place_of(info, bounds, rank, seal))
            assert (ready.first, ready.last) == bounds[rank : rank + 2]
        tokens = generate(children, Author(), PROMPT, 24)
        assert tokens == reference_tokens(references[family], PROMPT, 24)
        assert children[0].progress().rows == 1
    for child in children:
        assert child.process.returncode == 0
