"""Where a figure or a table says that it comes from."""

import json
import re

import pytest
from IPython.display import Markdown

from harp_lib import config, report
from harp_lib.report import data
from harp_lib.results import read_results


@pytest.fixture
def mini(monkeypatch, tmp_path):
    """The profile mini over its committed cells; figures go to a folder of the test."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "FIGURES", tmp_path / "figures")
    return config.load_profile("mini")


def first_of(profile, is_table):
    """The name of a table or of a figure that can be made, and the stores that it needs."""
    for name, entry in report.drawable(profile).items():
        if entry.is_table == is_table and entry.stores:
            return name, entry.stores
    raise AssertionError("nothing is registered")


def sources_of(file):
    return json.loads(file.read_text(encoding="utf-8"))


def test_a_figure_names_the_cells_that_were_read_and_what_they_were_computed_with(mini):
    name, (store, *_) = first_of(mini, is_table=False)
    report.show(name, mini)
    sources = sources_of(config.FIGURES / "mini" / f"{name}.json")
    assert sources["profile"] == "mini"
    source, function = sources["made by"].split(": ")
    assert f"def {function}(" in (config.CHECKOUT / source).read_text(encoding="utf-8")

    named = {}
    for run in sources["runs"]:
        assert {"commit", "device", "hardware", "versions"} <= set(run)
        named.update(run["cells"])
    cells = read_results("mini", store)
    assert {"/".join((store, *key)) for key in cells} <= set(named)
    for file in (config.REFERENCE / "mini" / store).glob("run-*.json"):
        for *key, digest in json.loads(file.read_bytes())["cells"]:
            assert named["/".join((store, *key))] == digest


def test_every_file_of_a_figure_and_a_table_is_there(mini):
    for is_table in (True, False):
        name, _ = first_of(mini, is_table)
        report.show(name, mini)
    for file in (config.FIGURES / "mini").rglob("*.json"):
        for name in sources_of(file)["files"]:
            assert (file.parent / name).is_file()


@pytest.mark.parametrize("is_table", [True, False])
def test_a_caption_links_to_files_that_exist(mini, monkeypatch, is_table):
    name, _ = first_of(mini, is_table)
    page = config.FIGURES.parent / "notebooks" / "executed" / "mini"
    page.mkdir(parents=True)
    monkeypatch.setenv(config.PAGE, str(page))
    shown = report.show(name, mini)
    text = shown.data if isinstance(shown, Markdown) else shown.caption
    caption = text.splitlines()[-1]
    links = re.findall(r"\]\((.+?)\)", caption)
    assert len(links) == 2
    for link in links:
        assert (page / link).is_file(), link


def test_drawing_twice_gives_equal_files(mini):
    name, _ = first_of(mini, is_table=False)
    report.show(name, mini)
    files = sorted((config.FIGURES / "mini").rglob("*.*"))
    before = [file.read_bytes() for file in files]
    report.show(name, mini)
    assert [file.read_bytes() for file in files] == before


def test_cells_are_recorded_within_the_context_alone(mini):
    with data.recording() as read:
        stored = data.cells("mini", "alpha_search")
        data.cells("mini", "no_such_store")
    data.cells("mini", "baselines")
    assert read == {"alpha_search": stored}
