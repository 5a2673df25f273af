"""The transition-table helper."""

import enum

import pytest
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.table import IllegalEvent, Machine, cross_product


class Door(enum.Enum):
    OPEN = 1
    SHUT = 2


class Push(enum.Enum):
    PULL = 1
    PUSH = 2


TABLE = {(Door.OPEN, Push.PUSH): Door.SHUT, (Door.SHUT, Push.PULL): Door.OPEN}


def test_moves_as_the_table_says():
    door = Machine(TABLE, Door.OPEN)
    assert door.state is Door.OPEN
    assert door.after(Push.PUSH) is Door.SHUT
    assert door.state is Door.OPEN
    assert door.fire(Push.PUSH) is Door.SHUT
    assert door.fire(Push.PULL) is door.state is Door.OPEN


def test_what_is_not_in_the_table_changes_nothing():
    door = Machine(TABLE, Door.OPEN)
    for call in (door.fire, door.after):
        with pytest.raises(IllegalEvent, match="PULL is not possible in OPEN") as caught:
            call(Push.PULL)
        assert isinstance(caught.value, LocalProtocolError)
    assert door.state is Door.OPEN


def test_the_cross_product_has_every_pair():
    assert list(cross_product(TABLE, Door, Push)) == [
        (Door.OPEN, Push.PULL, None),
        (Door.OPEN, Push.PUSH, Door.SHUT),
        (Door.SHUT, Push.PULL, Door.OPEN),
        (Door.SHUT, Push.PUSH, None),
    ]
