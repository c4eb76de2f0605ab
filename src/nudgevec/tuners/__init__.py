"""Tuners: ``Nudge``, and the methods of the paper."""

from nudgevec.tuners.base import Tuner
from nudgevec.tuners.nudge import Nudge
from nudgevec.tuners.step import NudgeM, NudgeMN, NudgeN, NudgeNU

__all__ = ["Nudge", "NudgeM", "NudgeMN", "NudgeN", "NudgeNU", "Tuner"]
