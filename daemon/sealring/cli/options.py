"""Types of options that several commands have: numbers within bounds."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Fraction = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
TopP = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
FromZero = Annotated[float, Parameter(validator=Number(gte=0))]
Temperature = Annotated[float, Parameter(validator=Number(gte=0, lte=2))]
Count = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 32))]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 64))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65_535))]
