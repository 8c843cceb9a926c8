"""The order of the rooms of the library: which may import which."""

import ast
import graphlib
import subprocess
import sys

import pytest
from helpers import CHECKOUT

ORDER = (
    ("config", "locks", "prefix_lm", "streams", "without_grammar"),
    ("circumstances", "names", "pruning", "theory", "units"),
    ("results",),
    ("accounting",),
    ("models",),
    ("contents", "export"),
    ("gpus", "text"),
    ("evaluation",),
    ("methods",),
    ("experiments", "report"),
    ("notebooks",),
    ("jobs", "hub"),
    ("batch",),
    ("cli",),
)
"""A room imports from itself and from rooms of earlier lines.

Experiments and report stand in one line: experiments draw nothing, and reports compute nothing.
"""


def modules_of(root):
    """The modules of ``root/harp_lib``: names without ``harp_lib.``, and files.

    The package itself has the name "".
    """
    package = root / "harp_lib"
    modules = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        modules[".".join(part for part in parts if part != "__init__")] = file
    return modules


def imports(name, file, only_first=False):
    """What a module imports from the library, as names without ``harp_lib.``.

    With ``only_first``, only what it imports as soon as it is imported itself.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = ["harp_lib", *filter(None, name.split("."))]
    if file.name != "__init__.py":
        package.pop()
    imported = set()
    for node in tree.body if only_first else ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = [node.module] if node.module else []
            if node.level:
                source = package[: len(package) - node.level + 1] + source
            imported.add(".".join(source))
            imported.update(".".join([*source, alias.name]) for alias in node.names)
    ours = {target for target in imported if target.startswith("harp_lib.")}
    return {target.removeprefix("harp_lib.") for target in ours}


def room(module):
    return module.partition(".")[0]


def forbidden_imports(root):
    """Pairs of a module and a room that the module may not import from, but does."""
    line_of = {name: line for line, names in enumerate(ORDER) for name in names}
    modules = modules_of(root)
    rooms = {room(module) for module in modules if module}
    assert rooms <= set(line_of), f"ORDER does not say where {rooms - set(line_of)} belongs"
    forbidden = set()
    for module, file in modules.items():
        targets = {room(target) for target in imports(module, file)} & rooms
        for target in targets - {room(module)}:
            # The package itself imports from no room.
            if not module or line_of[target] >= line_of[room(module)]:
                forbidden.add((module, target))
    return forbidden


def test_rooms_import_from_earlier_rooms_only():
    assert not forbidden_imports(CHECKOUT)


def test_no_modules_import_each_other():
    modules = modules_of(CHECKOUT)
    needs = {}
    for name, file in modules.items():
        needs[name] = (imports(name, file, only_first=True) & set(modules)) - {name}
    order = list(graphlib.TopologicalSorter(needs).static_order())
    assert order.index("pruning.plan") < order.index("methods") < order.index("experiments.plans")


def test_a_wrong_import_is_found(tmp_path):
    for name in ("pruning", "report"):
        (tmp_path / "harp_lib" / name).mkdir(parents=True)
        (tmp_path / "harp_lib" / name / "__init__.py").touch()
    file = tmp_path / "harp_lib" / "pruning" / "plan.py"
    file.write_text("import torch\nfrom harp_lib import pruning\n", encoding="utf-8")
    assert not forbidden_imports(tmp_path)
    file.write_text("def late():\n    from ..report import style\n", encoding="utf-8")
    assert forbidden_imports(tmp_path) == {("pruning.plan", "report")}


REPORTS = [name for name in modules_of(CHECKOUT) if room(name) == "report"]


@pytest.mark.parametrize(
    ("modules", "packages"),
    [
        # Snakemake, which reads the Snakefile, does not wait for them either.
        (["batch", "jobs", "experiments", "evaluation.benchmarks"], {"torch", "papermill"}),
        (["jobs"], {"lark"}),  # which compiles a grammar
        (REPORTS, {"torch"}),  # reports read rows: they build no model and compute no plan
    ],
    ids=["a run", "a job", "reports"],
)
def test_some_modules_import_no_large_package(modules, packages):
    assert {"report.frames", "report.style"} <= set(REPORTS)
    imported = "\n".join(f"import harp_lib.{name}" for name in modules)
    code = f"import sys\n{imported}\nassert not {packages} & set(sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, cwd=CHECKOUT)
