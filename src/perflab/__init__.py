"""The helper package of *Computational Performance*: timing, this machine, and a judge for the exercises.

In a notebook: ``perflab.check("async-on-cpu", measure, is_asynchronous, survey)`` judges your answer on your machine,
with the same judge that grades it. Importing perflab imports neither torch nor matplotlib.
"""

from perflab.notebook import check

__all__ = ["check"]
