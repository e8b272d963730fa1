"""nbgrader's settings for this course. Run nbgrader's commands, or `jupyter lab`, in this folder."""

import os
import sys
import warnings
from pathlib import Path

from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    LimitOutput,
    OverwriteCells,
    SaveAutoGrades,
)
from nbgrader.server_extensions.formgrader import handlers
from sqlalchemy.exc import SAWarning

from grader import autograde
from grader.course_files import COURSE
from grader.exchange import CollectWithTimes
from grader.measure import LeaveToInstructor, MeasureOnHardware
from grader.rebuild import RebuildFromMaster

c = get_config()  # noqa: F821  (traitlets puts it here)

# nbgrader 0.9.6 reads objects that SQLAlchemy 2.1 hasn't attached to its session yet; the warning changes nothing.
warnings.filterwarnings("ignore", category=SAWarning, message="Object of type <Submitted")

# nbgrader starts `alembic` by name: without this the first command fails where the environment isn't activated.
if str(Path(sys.executable).parent) not in os.environ.get("PATH", "").split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

c.CourseDirectory.course_id = "computational-performance"
c.CourseDirectory.root = str(COURSE)
# The folder through which notebooks go out and come back; every student must be able to write to its inbound/.
exchange = Path(os.environ.get("COURSE_EXCHANGE", COURSE / "exchange"))
if not exchange.is_dir():
    exchange.mkdir(parents=True)
    exchange.chmod(0o777)
c.Exchange.root = str(exchange)
c.ExchangeFactory.collect = CollectWithTimes

c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE 在此编写代码\nraise NotImplementedError()"}
c.ClearSolutions.text_stub = "YOUR ANSWER HERE 在此作答"

# Submissions that may be anything, and no student's code beside nbgrader. The order matters: the rebuilt notebook
# needs the gradebook's checksums (OverwriteCells), and the verdict must be in the cell before SaveAutoGrades reads it.
autograde.install()
c.Autograde.sanitize_preprocessors = [RebuildFromMaster, OverwriteCells, CheckCellMetadata]
c.Autograde.autograde_preprocessors = [
    MeasureOnHardware,
    LimitOutput,
    SaveAutoGrades,
    LeaveToInstructor,
    AssignLatePenalties,
    CheckCellMetadata,
]

# Validate runs the check cells, and a check measures: after nbgrader's 30 s a right answer would be said to fail.
c.Execute.timeout = 600

# Feedback and formgrader show what students wrote: no script of theirs may run there. Nor is one fetched from afar.
c.HTMLExporter.sanitize_html = True
c.HTMLExporter.require_js_url = ""
c.HTMLExporter.jquery_url = ""
c.HTMLExporter.extra_template_basedirs = [
    str(Path(autograde.__file__).parent / "templates"),
    str(Path(handlers.__file__).parent / "templates"),
]
