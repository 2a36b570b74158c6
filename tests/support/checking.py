"""The checker of types and shapes that the tests switch on: beartype, in which a whole number is a number."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
