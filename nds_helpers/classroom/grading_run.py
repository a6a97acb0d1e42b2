"""Runs a submission's cells one by one: a cell that hangs or crashes costs itself."""
import copy
import re
import subprocess

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from nbgrader.utils import is_grade
from traitlets import default

from .grading_precheck import grade_id

LIMIT = re.compile(r"^# at most (\d+) s$", re.M)
# exit() in an answer would end the kernel behind the cell; here it does nothing.
PRELUDE = "get_ipython().ask_exit = lambda: None"


class RunEveryCell(Execute):
    """nbgrader's Execute stops at a dead kernel. This one starts another.

    Earlier cells then run again, without those that hung or killed a kernel and
    without the tests, whose marks stand. The checks for students (`..._check`) don't
    run at all: they give no points, and an endless answer would cost its time twice.
    A locked cell may set its own limit with a line `# at most 90 s`; for the others
    `timeout` holds.
    """

    @default("timeout_func")
    def _limit(self):
        return self.seconds_for

    @default("on_notebook_start")
    def _prelude(self):
        return lambda notebook: self.kc.execute(PRELUDE, silent=True)

    def seconds_for(self, cell):
        """How long a cell may run."""
        own = LIMIT.search(cell.source)
        locked = cell.metadata.get("nbgrader", {}).get("locked")
        return int(own[1]) if own and locked else self.timeout

    def start_new_kernel(self, **kwargs):
        """Starts a kernel; what it says when it crashes is of no use to a teacher."""
        super().start_new_kernel(stderr=subprocess.DEVNULL, **kwargs)

    def preprocess(self, nb, resources=None, km=None):
        """Runs the notebook from top to bottom."""
        self.lost = set()  # places of cells that hung or killed a kernel
        return super().preprocess(nb, resources, km)

    def preprocess_cell(self, cell, resources, index):
        """Runs one cell, whatever happens in it."""
        self._check_assign_resources(resources)
        if not str(grade_id(cell)).endswith("_check"):
            self._run(cell, index)
        if is_grade(cell) and cell.cell_type == "code":  # a warning costs nothing
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        return cell, self.resources

    def _run(self, cell, index):
        """Runs one cell; afterwards there is a kernel that listens."""
        try:
            self.execute_cell(cell, index, store_history=True)
            outputs = cell.get("outputs", [])  # prose has none
            if any(o.get("ename") == "CellTimeoutError" for o in outputs):
                self.lost.add(index)
        except DeadKernelError:
            self._lose(cell, index, "DeadKernelError", "this cell ended the kernel.")
        except CellTimeoutError:  # it ignored the interrupt too
            self._lose(cell, index, "CellTimeoutError", "this cell never came back.")

    def _lose(self, cell, index, kind, words):
        """Notes what became of a cell, and starts a new kernel in the same state."""
        cell.outputs = [new_output("error", ename=kind, evalue=words,
                                   traceback=[f"{kind}: {words}"])]
        self.lost.add(index)
        usual, self.shutdown_kernel = self.shutdown_kernel, "immediate"
        self._cleanup_kernel()
        self.shutdown_kernel = usual
        self.create_kernel_manager()
        self.start_new_kernel()
        self.start_new_kernel_client()
        for place, before in enumerate(self.nb.cells[:index]):
            if place not in self.lost and not is_grade(before):
                self.preprocess_cell(copy.deepcopy(before), self.resources, place)
                self.nb.cells[place] = before  # with the outputs of its first run
