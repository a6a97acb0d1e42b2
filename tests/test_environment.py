"""The files around the package agree with one another and keep its house in order."""
import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nds_helpers"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
# Each room and the rooms that it may import from.
MAY_IMPORT = {
    "models": set(),
    "decoding": {"models"},
    "parallel": {"models"},
    "distributed": {"models", "decoding", "parallel"},
    "lab": {"models", "decoding", "parallel", "distributed"},
    "classroom": {"models", "decoding", "parallel", "distributed", "lab"},
}
# Each library that only some rooms may import, and those rooms.
KEPT_TO = {
    "matplotlib": {"lab", "classroom"},
    "ipywidgets": {"lab", "classroom"},
    "torch.distributed": {"parallel", "distributed"},
}
CONDA = {"pytorch": "torch", "playwright-python": "playwright"}  # to PyPI's names
REGISTRIES = (r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|conda\.anaconda\.org"
              r"|registry\.npmjs|deb\.debian\.org")
FORBIDDEN = re.compile(rf"{REGISTRIES}|(?<![\w.}})])/(?:work|root)/")


def bounds(lines):
    """{package: bounds} of requirement lines, names of conda's own undone."""
    parsed = [Requirement(line) for line in lines]
    names = [canonicalize_name(r.name) for r in parsed]
    return {CONDA.get(name, name): r.specifier for name, r in zip(names, parsed)}


def required():
    """{package: bounds} of pyproject.toml, extras included."""
    extras = PROJECT["optional-dependencies"].values()
    return bounds(PROJECT["dependencies"] + sum(extras, []))


def pins():
    """{package: bounds} of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return bounds(line for line in lines if not line.startswith("#"))


def sources():
    """The package's files, in order."""
    return sorted(PACKAGE.rglob("*.py"))


def room(path):
    """The room that a file stands in, or the file's own name at the top."""
    return path.relative_to(PACKAGE).parts[0]


def imported(path):
    """Full dotted names of all that a file imports, inside functions too."""
    folder = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = folder[:len(folder) - node.level + 1] if node.level else ()
            origin = [*parents, *filter(None, [node.module])]
            yield from (".".join([*origin, alias.name]) for alias in node.names)


def project_files():
    """All files that git tracks, or would if they were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def text(path):
    """The text of a file; an empty string if it is a binary one."""
    raw = path.read_bytes()
    return "" if b"\0" in raw[:4096] else raw.decode("utf-8", "replace")


def test_environment_yml_has_the_same_bounds():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *lines, last = environment["dependencies"]
    conda = bounds(line for line in lines if line != "pip")
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert last == {"pip": ["-e ."]}
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda == required()


def test_pins_lie_within_the_bounds():
    versions = {name: str(pin).removeprefix("==") for name, pin in pins().items()}
    assert set(required()) <= set(versions)
    assert all(str(pin).startswith("==") for pin in pins().values())
    for name, bound in required().items():
        assert versions[name] in bound, name


def test_torch_is_pinned_without_a_local_version():
    assert pins()["torch"] == "==2.13.0"


def test_no_registry_host_and_no_path_of_one_machine():
    found = {str(path.relative_to(ROOT)): match[0] for path in project_files()
             if (match := FORBIDDEN.search(text(path)))}
    assert found == {}


def test_make_help_lists_the_targets():
    told = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True)
    listed = re.findall(r"^  (\w+) ", told.stdout, re.M)
    assert set(listed) >= {"help", "env", "lab", "test", "notebooks", "bench", "data",
                           "clean"}


def test_models_and_decoding_import_nothing_heavy():
    names = [name for name in ("models", "decoding") if (PACKAGE / name).exists()]
    script = "\n".join(f"import nds_helpers.{name}" for name in names) + """
import sys
import torch
heavy = {"matplotlib", "ipywidgets", "nds_helpers.parallel", "nds_helpers.distributed",
         "nds_helpers.lab", "nds_helpers.classroom"}
print(sorted(heavy & set(sys.modules)))
assert not torch.distributed.is_available() or not torch.distributed.is_initialized()
"""
    told = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True,
                          capture_output=True, text=True)
    assert told.stdout.strip() == "[]"


def test_rooms_import_one_way():
    for path in sources():
        if room(path) in MAY_IMPORT:
            rooms = {name.split(".")[1] for name in imported(path)
                     if name.startswith("nds_helpers.")} & set(MAY_IMPORT)
            wrong = rooms - MAY_IMPORT[room(path)] - {room(path)}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_libraries_stay_in_their_rooms():
    for path in sources():
        for name in imported(path):
            for library, rooms in KEPT_TO.items():
                if f"{name}.".startswith(f"{library}."):
                    assert room(path) in rooms, f"{path.relative_to(ROOT)}: {name}"


def test_files_are_short():
    lengths = {path.name: text(path).count("\n") for path in sources()}
    assert {name: n for name, n in lengths.items() if n >= 320} == {}


def test_public_names_have_docstrings():
    bare = []
    for path in sources():
        for node in ast.parse(text(path)).body:
            named = isinstance(node, (ast.FunctionDef, ast.ClassDef))
            if named and node.name[0] != "_" and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert bare == []
