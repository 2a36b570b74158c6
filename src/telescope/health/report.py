"""What a measurement of attention health says, and the rules by which it gives an alert."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from warnings import warn

from ..recording import list_names
from ..traces import FirstThatFits, PlainTable, PrintedTable, render_text
from ..words import hint

COLLAPSED = 0.05  # nats: mean entropy of a head whose queries attend to one key each
# Share of the weight on one key, the same for all queries, of a head that transports nothing.
DEAD = 0.98
MEASURED = {"logit": "largest_logit", "entropy": "entropy", "one_key": "one_key"}
"""The numbers of each head, and the rows of the table of measures that they are."""
KNOWN = (*MEASURED, "dead", "collapsed")


@dataclass(frozen=True)
class HeadHealth:
    """One layer: for each head its largest logit, mean entropy in nats, and largest share of weight
    on one key.

    Attributes:
        logit: the largest score of each head.
        entropy: the mean over the queries of each head, in nats.
        one_key: the largest share of a head's weight on one key.

    Example:
        >>> from telescope.health import HeadHealth
        >>> HeadHealth(
        ...     logit=(3.0, 250.0), entropy=(1.2, 0.01), one_key=(0.99, 0.3)
        ... ).collapsed
        1
        >>> layer = HeadHealth(
        ...     logit=(3.0, 250.0), entropy=(1.2, 0.01), one_key=(0.99, 0.3)
        ... )
        >>> layer.value("logit"), layer.dead
        (250.0, 1)
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     layer.sink == layer.one_key
        True
    """

    logit: tuple[float, ...]
    entropy: tuple[float, ...]
    one_key: tuple[float, ...]

    @property
    def dead(self) -> int:
        """How many heads give their weight to one key, the same for all queries."""
        return sum(share >= DEAD for share in self.one_key)

    @property
    def collapsed(self) -> int:
        """How many other heads attend to one key alone from each query."""
        pairs = zip(self.entropy, self.one_key, strict=True)
        return sum(entropy < COLLAPSED and share < DEAD for entropy, share in pairs)

    def value(self, measure: str) -> float:
        """Return the number that a rule is about: the largest of all heads, of the entropy the
        smallest, or a count.

        Args:
            measure: "logit", "entropy", "one_key", "dead" or "collapsed".
        """
        value = getattr(self, measure)
        if measure in MEASURED:
            # The worst head stands for its layer: the lowest entropy, or the highest other number.
            value = min(value) if measure == "entropy" else max(value)
        return float(value)

    @property
    def sink(self) -> tuple[float, ...]:
        """The former name of `one_key`; a sink is elsewhere a key besides the first token."""
        warn("HeadHealth.sink is called one_key", DeprecationWarning, stacklevel=2)
        return self.one_key


@dataclass(frozen=True)
class Rule:
    """An alert rule: a measure of any layer above or below a threshold.

    Args:
        measure: "logit": the largest of a layer; "entropy": that of the head with the smallest
            mean; "one_key": the largest share of the weight on one key; "dead", "collapsed": the
            number of such heads.
        above: the number above which an alert is given; None is no limit.
        below: the number below which an alert is given; None is no limit.

    Example:
        >>> import telescope as ts
        >>> print(ts.health.Rule("logit", above=100.0))
        logit above 100
        >>> layer = ts.health.HeadHealth(
        ...     logit=(3.0, 250.0), entropy=(1.2, 1.1), one_key=(0.5, 0.3)
        ... )
        >>> ts.health.Rule("logit", above=100.0).broken_by(layer)
        True
    """

    measure: str
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        # Accept the former name of the measure; a frozen dataclass is only assigned to in this way.
        if self.measure == "sink":
            warn('the measure "sink" is called "one_key"', DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "measure", "one_key")
        if self.measure not in KNOWN:
            raise ValueError(f'there is no measure "{self.measure}"; {hint(self.measure, KNOWN)}')
        if (self.above is None) == (self.below is None):
            raise ValueError(f'a rule about "{self.measure}" takes either above= or below=')

    def broken_by(self, layer: HeadHealth) -> bool:
        """Return whether a layer is to be named; a measure that is unknown gives no alert.

        Args:
            layer: what was measured of one attention.
        """
        # NaN compares false with any threshold, so that an unknown measure gives no alert.
        value = layer.value(self.measure)
        return value > self.above if self.above is not None else value < (self.below or 0.0)

    def __str__(self) -> str:
        above = self.above is not None
        return f"{self.measure} {'above' if above else 'below'} {self.above if above else self.below:g}"


# The logit's threshold equals the tau of Kimi K2, see `qk_clip`; entropy is in nats.
DEFAULT_RULES = (Rule("logit", above=100.0), Rule("entropy", below=0.001))


@dataclass(frozen=True)
class HealthReport(PrintedTable):
    """The health of every layer at one step of a training. Printed, a table.

    Attributes:
        step: the step of the training.
        layers: a `HeadHealth` for each attention, by its name.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)
        >>> model = ts.models.GPT(config)
        >>> report = ts.Health(model).measure(torch.tensor([[1, 2, 3, 4]]))
        >>> sorted(report.scalars())[:3]
        ['attention/alerts', 'attention/collapsed_heads', 'attention/dead_heads']
        >>> len(report.logits["blocks.0.self"])
        2
    """

    step: int
    layers: Mapping[str, HeadHealth]
    alerts: Sequence[str] = ()
    """A sentence for each layer that breaks a rule, and for each key bias that has drifted."""
    left_out: Sequence[str] = ()
    """The attentions that are not among the layers, since they cannot be watched or ran past the
    watch.
    """

    @property
    def logits(self) -> dict[str, tuple[float, ...]]:
        """The largest logit of each head, by layer, for `qk_clip`."""
        return {name: layer.logit for name, layer in self.layers.items()}

    def scalars(self) -> dict[str, float]:
        """Return the numbers for a logger, by name; those that are unknown are left out."""
        found = {
            f"attention/{measure}/{name}": layer.value(measure)
            for measure in MEASURED
            for name, layer in self.layers.items()
        }

        # Add the totals over all layers.
        found["attention/largest_logit"] = max(
            (max(layer.logit) for layer in self.layers.values()), default=0.0
        )
        found["attention/dead_heads"] = float(sum(layer.dead for layer in self.layers.values()))
        found["attention/collapsed_heads"] = float(
            sum(layer.collapsed for layer in self.layers.values())
        )
        found["attention/alerts"] = float(len(self.alerts))
        # Without softmax there are no logits: leave NaN out.
        return {name: value for name, value in found.items() if not isnan(value)}

    def __rich__(self) -> FirstThatFits:
        """Return the table; on a narrow screen its headings have several lines."""
        return FirstThatFits(lambda: map(self._table, (" ", "\n")))

    def _table(self, space: str) -> PlainTable:
        table = PlainTable(
            title=f"attention at step {self.step:,}", box=None, pad_edge=False, title_justify="left"
        )
        for name in (
            "layer",
            "largest logit",
            "smallest entropy",
            "largest on one key",
            "dead",
            "collapsed",
        ):
            table.add_column(
                name.replace(" ", space),
                justify="left" if name == "layer" else "right",
                no_wrap=True,
            )
        for name, layer in self.layers.items():
            numbers = (
                f"{layer.value('logit'):.1f}",
                f"{layer.value('entropy'):.2f}",
                f"{layer.value('one_key'):.0%}",
            )
            table.add_row(name, *numbers, str(layer.dead), str(layer.collapsed))
        return table

    def __repr__(self) -> str:
        # Name the attentions without numbers below the table.
        missing = [f"not measured: {list_names(self.left_out)}"] if self.left_out else []
        return "\n".join([render_text(self.__rich__(), width=120), *missing, *self.alerts])


def alerts_of(layers: Mapping[str, HeadHealth], rules: Sequence[Rule]) -> list[str]:
    """Return a sentence for each layer that breaks a rule."""
    return [
        f"{name}: {rule.measure} {layer.value(rule.measure):.4g}, and the rule is {rule}"
        for rule in rules
        for name, layer in layers.items()
        if rule.broken_by(layer)
    ]
