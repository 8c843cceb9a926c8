"""The order of the rooms of the library: which may import which."""

import ast
import graphlib
import subprocess
import sys

import pytest
from conftest import CHECKOUT

ORDER = (
    ("config",),
    ("names", "pruning", "theory", "results"),
    ("accounting",),
    ("models",),
    ("text",),
    ("evaluation",),
    ("methods",),
    ("experiments", "report"),
    ("batch",),
    ("cli",),
)
"""A room imports from itself and from rooms of earlier lines. Experiments draw nothing, and reports
compute nothing.
"""


def modules_of(root):
    """The modules of ``root/harp_lib``: name without ``harp_lib.`` ("" is the package itself), and
    file.
    """
    files = sorted((root / "harp_lib").rglob("*.py"))
    parts = {file: file.relative_to(root / "harp_lib").with_suffix("").parts for file in files}
    return {".".join(part for part in parts[file] if part != "__init__"): file for file in files}


def imports(name, file, everywhere=True):
    """What a module imports from the library, without ``harp_lib.``; not ``everywhere``: as soon as
    it is imported.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    full = ["harp_lib", *filter(None, name.split("."))]
    package = full if file.name == "__init__.py" else full[:-1]
    found = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = [node.module] if node.module else []
            if node.level:
                home = package[: len(package) - node.level + 1] + home
            found |= {".".join([*home, alias.name]) for alias in node.names} | {".".join(home)}
    return {target.removeprefix("harp_lib.") for target in found if target.startswith("harp_lib.")}


def room(module):
    return module.partition(".")[0]


def forbidden(root):
    """Pairs of a module, and a room that it imports from although that stands no earlier than its
    own.
    """
    place = {name: line for line, names in enumerate(ORDER) for name in names}
    modules = modules_of(root)
    rooms = {room(name) for name in modules if name}
    assert rooms <= set(place), f"ORDER does not say where {rooms - set(place)} belongs"
    found = set()
    for name, file in modules.items():
        for target in {room(target) for target in imports(name, file)} & rooms:
            if target != room(name) and (not name or place[target] >= place[room(name)]):
                found.add((name, target))
    return found


def test_rooms_import_from_earlier_rooms_only():
    assert not forbidden(CHECKOUT)


def test_no_modules_wait_for_each_other():
    modules = modules_of(CHECKOUT)
    needs = {
        name: (imports(name, file, everywhere=False) & set(modules)) - {name}
        for name, file in modules.items()
    }
    order = list(graphlib.TopologicalSorter(needs).static_order())
    assert order.index("pruning.plan") < order.index("methods") < order.index("report.scores")


@pytest.mark.parametrize(
    ("name", "code", "target"),
    [
        ("pruning/plan.py", "from harp_lib.report import plots", "report"),
        ("pruning/plan.py", "from harp_lib import report", "report"),
        ("pruning/plan.py", "import harp_lib.report.plots as plots", "report"),
        ("pruning/plan.py", "from ..report.plots import dots", "report"),
        ("pruning/plan.py", "from .. import report", "report"),
        ("pruning/__init__.py", "from ..report import plots", "report"),
        ("pruning/plan.py", "def late():\n    from harp_lib.report import plots", "report"),
        ("pruning/plan.py", "from harp_lib.theory import similarity", "theory"),
        ("experiments/scores.py", "from harp_lib.report import plots", "report"),
        ("report/plots.py", "from harp_lib.experiments import UNITS", "experiments"),
        ("config.py", "from harp_lib.results import digest", "results"),
        ("__init__.py", "from .methods import METHODS", "methods"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, name, code, target):
    rooms = ("pruning", "theory", "methods", "experiments", "report")
    for folder in rooms:
        (tmp_path / "harp_lib" / folder).mkdir(parents=True)
        (tmp_path / "harp_lib" / folder / "__init__.py").touch()
    for module in ("__init__", "config", "results", "report/plots", "pruning/layers"):
        (tmp_path / "harp_lib" / f"{module}.py").touch()
    file = tmp_path / "harp_lib" / name
    right = "from harp_lib import __version__\nfrom .layers import num_groups\nimport torch\n"
    file.write_text(right, encoding="utf-8")
    assert not forbidden(tmp_path)
    file.write_text(f"{right}{code}\n", encoding="utf-8")
    importer = name.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", ".")
    assert forbidden(tmp_path) == {(importer, target)}


def test_a_room_without_a_place_is_named(tmp_path):
    (tmp_path / "harp_lib" / "attic").mkdir(parents=True)
    (tmp_path / "harp_lib" / "attic" / "old.py").touch()
    with pytest.raises(AssertionError, match="'attic'"):
        forbidden(tmp_path)


def test_a_report_imports_no_torch():
    """Reports read rows: they build no model and compute no plan."""
    modules = [name for name in modules_of(CHECKOUT) if room(name) == "report"]
    assert {"report", "report.tables", "report.claims.layer_tests"} <= set(modules)
    imported = "\n".join(f"import harp_lib.{name}" for name in modules)
    code = f"import sys\n{imported}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)
