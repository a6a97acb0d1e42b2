"""The nbgrader course: which steps a release, a submission and a feedback page take."""
import os
import sys
from pathlib import Path

from nbconvert.preprocessors import ClearMetadataPreprocessor, CSSHTMLHeaderPreprocessor
from nbgrader import preprocessors as steps

from nds_helpers.classroom.grading_cells import HideTests, MendCells, SignRelease
from nds_helpers.classroom.grading_run import RunEveryCell

c = get_config()  # noqa: F821  nbgrader hands it to this file

# nbgrader starts the command `alembic`, which lies beside this Python.
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", "")])

c.CourseDirectory.course_id = "speculative_decoding"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)

# An untouched answer raises, as the exercises of the chapters do.
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}

c.GenerateAssignment.preprocessors = [
    steps.LockCells, steps.ClearSolutions, steps.ClearOutput, steps.CheckCellMetadata,
    steps.ComputeChecksums, steps.SaveCells, steps.ClearHiddenTests,
    steps.ComputeChecksums, steps.CheckCellMetadata, SignRelease]

c.Autograde.sanitize_preprocessors = [
    steps.ClearOutput, MendCells, steps.OverwriteKernelspec, steps.OverwriteCells,
    steps.CheckCellMetadata]
c.Autograde.autograde_preprocessors = [
    RunEveryCell, ClearMetadataPreprocessor, steps.LimitOutput, steps.SaveAutoGrades,
    steps.AssignLatePenalties, steps.CheckCellMetadata]
c.RunEveryCell.timeout = 60  # seconds a cell; a test may set its own limit
c.RunEveryCell.extra_arguments = ["--IPKernelApp.log_level=ERROR"]

c.GenerateFeedback.preprocessors = [
    steps.GetGrades, HideTests, CSSHTMLHeaderPreprocessor]
