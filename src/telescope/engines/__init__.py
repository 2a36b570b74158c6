"""The same answer, faster: `reference` is the law, `choose` picks the engine. Engines never import each other."""

from .dispatch import Plan, attend, plan

__all__ = ["Plan", "attend", "plan"]
