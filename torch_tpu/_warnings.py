"""The warnings of this package, as categories a filter can name."""

from __future__ import annotations


class PerformanceWarning(UserWarning):
    """Something works, but is slower than it need be."""
