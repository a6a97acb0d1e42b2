"""JupyterLab as `make lab` starts it, and a headless browser that works in it."""
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
ARTEFACTS = COURSE / "tests" / "artefacts"  # screenshots; git ignores them
NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
WIDGET = "application/vnd.jupyter.widget-view+json"
PICTURE = ".jp-OutputArea img.widget-image"
FAILED = "(the picture is the one before)"  # an Explorer's caption after an error
PANEL = "const panel = window.jupyterapp.shell.currentWidget;"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def browser_path():
    """The system's browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def settings():
    """What `make lab` sets, from the Makefile: (options, text of overrides.json)."""
    recipe = (COURSE / "Makefile").read_text().split("\nlab:")[1].split("\n\n")[0]
    options = re.findall(r"--(?:LabApp|MappingKernelManager)\.\S+", recipe)
    return options, re.search(r"echo '(.*)'", recipe).group(1)


@contextmanager
def lab(folder):
    """JupyterLab on a free port, its files in `folder`: yields its addresses' form."""
    options, overrides = settings()
    for name in "app", "user", "workspaces":
        (folder / name).mkdir()
    (folder / "app" / "overrides.json").write_text(overrides)
    command = [sys.executable, "-m", "jupyterlab", *options, "--no-browser", "--port=0",
               "--allow-root", f"--ServerApp.root_dir={folder}",
               "--IdentityProvider.token=seen", "--expose-app-in-browser",
               f"--LabApp.app_settings_dir={folder / 'app'}",
               f"--LabApp.user_settings_dir={folder / 'user'}",
               f"--LabApp.workspaces_dir={folder / 'workspaces'}"]
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield address(folder / "server.log") + "/lab/tree/{}?reset&token=seen"
        finally:
            server.terminate()
            server.wait(20)


def address(log, seconds=60):
    """Waits for the server's first address in its log."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = re.search(r"http://(localhost|127\.0\.0\.1):\d+", log.read_text())
        if found:
            return found.group()
        time.sleep(0.2)
    raise TimeoutError(f"JupyterLab didn't start: {log.read_text()[-2000:]}")


class Notebook:
    """A notebook that is open in JupyterLab."""

    def __init__(self, page, url):
        self.page = page
        page.goto(url)
        page.wait_for_selector(".jp-Notebook", timeout=90_000)
        # The sign of an idle kernel is shown before there is one, and Run All without
        # a kernel empties the outputs and runs nothing.
        page.wait_for_function(f"""() => {{ {PANEL}
            const kernel = panel.sessionContext.session?.kernel;
            return kernel?.connectionStatus == 'connected' && kernel.status == 'idle';
            }}""", timeout=90_000)

    def run_all(self, seconds=180):
        """Runs all cells and waits for the last one; returns the seconds it took."""
        began = time.monotonic()
        self.page.evaluate("""() => { window.ran = undefined;
            window.jupyterapp.commands.execute('notebook:run-all-cells')
                .then(String, String).then(said => { window.ran = said; }); }""")
        self.page.wait_for_function("() => window.ran", timeout=1000 * seconds)
        return time.monotonic() - began

    def wait_idle(self, seconds=60):
        """Waits until the kernel has nothing to do."""
        self.page.wait_for_selector(
            ".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=1000 * seconds)

    def cells(self):
        """The code cells as the page holds them now, list of dicts."""
        cells = self.page.evaluate(
            f"() => {{ {PANEL} return panel.content.model.toJSON().cells; }}")
        return [cell for cell in cells if cell["cell_type"] == "code"]

    def theme(self, name):
        """Changes JupyterLab's theme."""
        self.page.evaluate("theme => { window.jupyterapp.commands.execute("
                           "'apputils:change-theme', {theme}); }", name)
        self.page.wait_for_timeout(1500)

    def faults(self):
        """Errors, stderr, cells that didn't run, explorers that say they failed."""
        cells = self.cells()
        outputs = [output for cell in cells for output in cell["outputs"]]
        return ([f"not run: {cell['source']}" for cell in cells
                 if not cell["execution_count"]]
                + [str(output)[:500] for output in outputs
                   if output["output_type"] == "error"
                   or output.get("name") == "stderr"]
                + self.page.get_by_text(FAILED).all_inner_texts())

    def explorer(self):
        """The explorer's cell; scrolls to it, since cells out of sight aren't drawn."""
        cell = self.page.evaluate(f"""async () => {{ {PANEL}
            const cells = panel.content.model.toJSON().cells;
            const index = cells.findLastIndex(
                cell => JSON.stringify(cell.outputs ?? []).includes('{WIDGET}'));
            await panel.content.scrollToItem(index, 'start');
            return cells[index]; }}""")
        self.page.wait_for_selector(PICTURE)
        self.page.wait_for_timeout(1000)  # the page settles
        return cell

    def press(self, label, presses):
        """Moves the slider of this label to the right with the arrow key."""
        named = self.page.locator(f".widget-label:text-is('{label}')")
        slider = self.page.locator(".widget-slider").filter(has=named).first
        slider.locator(".noUi-handle").focus()
        for _ in range(presses):
            self.page.keyboard.press("ArrowRight")

    def move(self, label, presses):
        """Moves a slider; returns the seconds until the picture changed."""
        before = self.page.locator(PICTURE).get_attribute("src")
        self.press(label, presses)
        began = time.monotonic()
        self.page.wait_for_function(
            "([selector, old]) => document.querySelector(selector).src != old",
            arg=[PICTURE, before], timeout=30_000)
        seconds = time.monotonic() - began
        self.wait_idle()
        return seconds

    def dress(self, width, theme):
        """Makes the window so many pixels wide, in JupyterLab's Light or Dark."""
        self.page.set_viewport_size(dict(width=width, height=900))
        self.page.evaluate("""theme => window.jupyterapp.commands.execute(
            'apputils:change-theme', {theme: 'JupyterLab ' + theme})""", theme)

    def picture_as(self, name):
        """Keeps what the page shows as a file of the artefacts."""
        self.page.screenshot(path=ARTEFACTS / f"{name}.png")


@contextmanager
def browser(width=1400, height=1000):
    """A page of the headless system browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chrome = driver.chromium.launch(executable_path=browser_path(), args=FLAGS)
        try:
            page = chrome.new_page(viewport=dict(width=width, height=height))
            yield page
        finally:
            chrome.close()
