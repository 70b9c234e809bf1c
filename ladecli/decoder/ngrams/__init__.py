"""One small online language model that all draft sources feed, and the tree it proposes."""

from .model import LESSON, SOURCE_OF_KIND, SOURCES, Guide, NgramModel, prepare

__all__ = ["LESSON", "SOURCES", "SOURCE_OF_KIND", "Guide", "NgramModel", "prepare"]
