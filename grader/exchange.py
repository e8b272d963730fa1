"""Collect from the exchange folder, and say whose time of handing in can't be true.

In a folder that all can write to, the time stamp is what the student's own program wrote: in the folder's name and in
timestamp.txt. The kernel's record of the last change of each file (ctime) is not a student's to set.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect
from nbgrader.utils import parse_utc

from grader.intake import Unreadable, read_limited

# Clocks of a file server and a student's machine differ, and a large submission takes its time to be copied.
ALLOWED_S = 600
TIMESTAMP = "timestamp.txt"  # nbgrader's name for it


def last_change(folder: Path) -> datetime:
    """When a file below `folder` was last written, renamed or had its rights changed, by the kernel's record; in UTC.

    The folder itself does not count: that files come and go changes it, collecting not excepted.
    """
    files = (Path(where) / name for where, _, names in os.walk(folder) for name in names)
    return datetime.fromtimestamp(max((f.lstat().st_ctime for f in files), default=0.0), UTC).replace(tzinfo=None)


def written_time(folder: Path) -> datetime:
    """What a submission's timestamp.txt says, UTC. Raises Unreadable or ValueError where that is nothing to be believed."""
    text = read_limited(folder / TIMESTAMP, 200).decode("ascii", "replace").strip()
    try:
        return parse_utc(text)
    except Exception as error:  # the parser's own, of many kinds: the text is the student's
        raise ValueError(f"{text!r} is no moment") from error


class CollectWithTimes(ExchangeCollect):
    """nbgrader's collect, with a warning for each submission whose files changed after the moment they claim.

    Nothing else is done about it: a backup that was restored, or rights that were repaired, look the same.
    """

    def do_copy(self, src: str, dest: str, log=None) -> None:
        claimed = self._path_to_record(src)["timestamp"]
        with contextlib.suppress(Unreadable, ValueError):  # none, or none that could be believed: the grader ignores it too
            claimed = min(claimed, written_time(Path(src)))
        changed = last_change(Path(src))
        if (changed - claimed).total_seconds() > ALLOWED_S:
            self.log.warning(
                "%s says it was handed in at %s UTC, but its files were last changed at %s UTC by the file system's own "
                "record: was the time stamp made by hand? Ask the student before you count it as in time.",
                Path(src).name, f"{claimed:%Y-%m-%d %H:%M:%S}", f"{changed:%Y-%m-%d %H:%M:%S}",
            )  # fmt: skip
        super().do_copy(src, dest)
