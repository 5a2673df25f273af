"""Device IO that behaves like a device that waits, on one that cannot.

What is launched behind an unfilled inlet is kept back, and started in order once the inlet is
filled or released, as a device does whose stream is blocked. Then it may come to wait at the next.
An inlet may be filled too late, and the device may `time_out`. Only the thread that launches can
start anything, so it repeats what another thread has filled.
"""

import threading
import weakref
from collections.abc import Callable
from math import prod

import mlx.core as mx
from model_rings import Ring
from sealring_model import lookahead
from sealring_model.lookahead import GraphBuilder
from sealring_model.stage.device import DeviceIO, Inlet
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer

PROMPT = [(5 * i * i + 11 * i) % 251 for i in range(40)]
ALL = 9
"""More than there ever is to do."""


class WaitingDeviceIO(DeviceIO):
    """*late* tells for each inlet at which the device waits whether it is filled too late. *waited*
    counts those that were filled in time, *missed* the others, and *ready* those that were filled
    before it came to wait."""

    device_waits = True

    def __init__(self, late: Callable[[], bool] = lambda: False) -> None:
        self.late = late
        self.held: WaitingInlet | None = None
        self.waited = self.missed = self.ready = 0
        self._behind: list[tuple[mx.array, ...] | WaitingInlet] = []

    def inlet(self, dtype: DType, shape: tuple[int, ...]) -> Inlet:
        return WaitingInlet(self, super().inlet(dtype, shape))

    def start(self, *arrays: mx.array) -> None:
        if self.held is None:
            super().start(*arrays)
        else:
            self._behind.append(arrays)

    def holds(self, arrays: tuple[mx.array, ...]) -> bool:
        """Whether any of *arrays* is kept back."""
        launches = [one for one in self._behind if not isinstance(one, WaitingInlet)]
        behind = {id(array) for started in launches for array in started}
        return not behind.isdisjoint(map(id, arrays))

    def time_out(self) -> None:
        """Stop waiting, if it waits."""
        if self.held is not None:
            self.held.expire()

    def come_to(self, inlet: "WaitingInlet") -> None:
        """Wait at *inlet*, once it is next."""
        if self.held is None:
            self.held = inlet
        elif self.held is not inlet and not any(one is inlet for one in self._behind):
            self._behind.append(inlet)
        inlet.is_timed = self.held is inlet

    def go_on(self) -> None:
        self.held = None
        while self._behind:
            first = self._behind.pop(0)
            if not isinstance(first, WaitingInlet):
                super().start(*first)
            elif not first.is_over:
                self.held, first.is_timed = first, False
                return


class WaitingInlet(Inlet):
    """An inlet of this device."""

    def __init__(self, device_io: WaitingDeviceIO, inlet: Inlet) -> None:
        super().__init__(inlet.dtype, inlet.shape, inlet.array)
        self._device_io = weakref.proxy(device_io)  # which hold this one
        self._inlet = inlet
        self._put(0x7F)  # what the memory was last used for
        self._seen = True
        self._expired = False
        self._filled = self._released = False
        self._home: int | None = None
        self.is_timed = False
        """Whether it was told when the device began to wait."""

    def _put(self, byte: int) -> None:
        self._inlet.fill(bytes([byte]) * (prod(self.shape) * self.dtype.width))

    def starts_waiting(self) -> None:
        self._home = self._home or threading.get_ident()
        self._device_io.come_to(self)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._filled or self._released

    def fill(self, data: Buffer) -> bool:
        held = self._device_io.held is self
        if not (self._expired or self._filled):
            assert self.is_timed or not held
            if held and self._device_io.late():
                self.expire()
                return False
            self._inlet.fill(data)
            self._filled = True
            self._device_io.waited += held
            self._device_io.ready += not held
        if held and self._filled and threading.get_ident() == self._home:
            self._device_io.go_on()
        return self._filled

    def release(self) -> None:
        if not self._filled:
            self._put(0)
        self._seen, self._released = self._filled, True
        if self._device_io.held is self:
            self._device_io.missed += 1
            self._device_io.go_on()

    def expire(self) -> None:
        self._expired = True
        self.release()

    @property
    def was_filled(self) -> bool:
        return self._seen


class ThoroughBuilder(GraphBuilder):
    """While something is launched, all is built that there is to build; *built* counts it."""

    built = 0

    def launch(self, call: Callable[[], None], build: Callable[[], bool]) -> None:
        ended = threading.Event()

        def counted() -> bool:
            more = False
            try:
                more = build()
            finally:
                ThoroughBuilder.built += more
                if not more:
                    ended.set()
            return more

        def long() -> None:
            call()
            assert ended.wait(10)

        super().launch(long, counted)


def launch_eagerly(monkeypatch) -> None:
    """Have ranks launch ahead whatever came before."""
    for patience in ("_SKIP_AFTER_CHANGE", "_SKIP_AFTER_TIMEOUT"):
        monkeypatch.setattr(lookahead, patience, 0)
    for patience in ("_AFTER", "_AHEAD_AFTER"):
        monkeypatch.setattr(lookahead, patience, 0)


def waiting_ring(models, family="llama", bounds=(0, 2, 5), idle=ALL, **options):
    """A ring on devices that wait, and those devices."""
    ring = Ring(models[family], bounds, idle=lambda: idle, device_io=WaitingDeviceIO, **options)
    return ring, ring.device_io


def decoding_ring(models, **options):
    """The same where one row has said ten tokens."""
    ring, ranks = waiting_ring(models, **options)
    ring.decode(join=[ring.admit(PROMPT[:20])])
    for _ in range(9):
        ring.decode()
    for device_io in ranks:
        device_io.waited = 0
    return ring, ranks
