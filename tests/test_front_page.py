"""README, notebook 00 and docs/claims.md: their numbers and marks, and what they quote."""

import re
from string import Formatter

import nbformat
import pandas as pd
import pytest
from helpers import CHECKOUT, load_script

from harp_lib import config, notebooks
from harp_lib.report import judge, ledger

pytestmark = pytest.mark.usefixtures("only_committed")

SMALL = CHECKOUT / "figures" / "small"
pages = load_script("docs/write_pages.py")
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
NAMES = r"Qwen [\d.]+B|SmolLM2|GSM8K|WikiText-2|α = 1|where 1 is uniform|^\d\.|\[\d\d\]\([^)]*\)"


def one_line(text):
    return re.sub(r"\s+", " ", text)


def part(heading):
    """What stands under a heading of the front page."""
    return README.partition(f"## {heading}\n")[2].partition("\n## ")[0]


# ---- numbers


def table(name):
    return pd.read_csv(SMALL / "tables" / f"{name}.csv")


def costs_of_alpha():
    """The highest perplexity as a multiple of the dense model's, by rule."""
    highest = table("result").groupby("α")["value"].max()
    return highest["α = 1"], highest["searched α"]


def rules_against_the_search():
    multiples = table("rules_for_alpha")
    highest = 100 * (multiples.groupby("α")["value"].max() - 1)
    return highest["projection"], highest["keep the norm"]


def projection_on_the_search_text():
    """By how much it is worse (%), at least and at most, but on Qwen 0.5B."""
    multiples = table("rules_for_alpha")
    multiples = multiples.query("α == 'short projection' and model != 'Qwen 0.5B'")["value"]
    return 100 * (multiples.min() - 1), 100 * (multiples.max() - 1)


def one_alpha_against_the_search():
    multiples = table("alpha_by_layer").query("α == 'best single α'")["value"]
    return 100 * (multiples.min() - 1), 100 * (multiples.max() - 1)


def what_attention_does():
    heads = table("attention_entropy").query("pruned").groupby(["model", "layer", "head"])
    moved = table("layer_changes").query("quantity == 'value gap'").groupby(["model", "layer"])
    return heads["value"].mean().max(), 100 * moved["value"].mean().min()


def solved_problems():
    """Of GSM8K by Qwen 1.5B: how many there are, and % by dense, HARP, HARP+FLAP, a baseline."""
    [problems] = table("tasks").query("model == 'Qwen 1.5B' and task == 'GSM8K'")["n"]
    solved = table("gsm8k").set_index("method")["Qwen 1.5B"]
    ours = solved[["dense", "HARP", "HARP+FLAP"]]
    return problems, *ours, solved.drop(ours.index).max()


def times_of_prefill():
    of_dense = table("time_of_prefill").query("against == 'dense'")
    times = of_dense.groupby("method")["value"].agg(["min", "max"])
    return *times.loc["HARP"], *times.loc["HARP, tail-only prefill"]


SENTENCES = {
    "reads in {:.2f} to {:.2f} times the dense model's time, and with the last token alone in "
    "{:.2f} to {:.2f} times": times_of_prefill,
    "perplexity is up to {:.1f} times the dense model's with α = 1, and at most {:.1f} times with "
    "the searched α": costs_of_alpha,
    "On three texts perplexity with the projection is at most {:.1f} % above that with the "
    "searched α, and with the α that keeps the norm up to {:.0f} %": rules_against_the_search,
    "the best single α for all layers costs {:.0f} to {:.0f} % more than the searched ones": (
        one_alpha_against_the_search
    ),
    "on the search's own text it is {:.1f} to {:.0f} % worse on three models": (
        projection_on_the_search_text
    ),
    "Of {} problems it solves {:.1f} % unpruned, {:.1f} % with HARP, {:.1f} % with HARP+FLAP, and "
    "at most {:.1f} % with an older method": solved_problems,
    "an entropy of {:.2f}, where 1 is uniform, and in every layer attention changes the values by "
    "at least {:.0f} % of their norm": what_attention_does,
}
"""Sentences of the front page, and the functions that read their numbers."""


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_finding_has_the_committed_numbers(sentence):
    assert sentence.format(*SENTENCES[sentence]()) in one_line(part("Five findings"))


def test_the_numbers_of_pruned_layers_are_those_of_the_profile():
    pruned = config.read_profile("small")["pruned_layers"]
    sentence = re.search(r"Pruned are .*", part("Which claims hold?"))[0]
    of_models = [int(number) for number in re.findall(r"(\d+) of [A-Z]", sentence)]
    assert of_models == list(pruned.values())


def test_every_number_of_the_findings_is_compared():
    rest = one_line(re.sub(NAMES, "", part("Five findings"), flags=re.MULTILINE))
    for sentence in SENTENCES:
        pattern = ""
        for text, field, *_ in Formatter().parse(sentence):
            pattern += re.escape(re.sub(NAMES, "", text))
            if field is not None:
                pattern += r"[\d.,]+"
        assert re.search(one_line(pattern), rest), sentence
        rest = re.sub(pattern, "", rest)
    assert not re.search(r"\d", rest), rest


# ---- pages that are written from verdicts


@pytest.mark.parametrize("page", ["README.md", "docs/claims.md", "docs/protocol.md"])
def test_a_page_shows_the_committed_results(page):
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    emptied = re.sub(r"(<!-- begin [\w ]+ -->\n).*?(<!-- end)", r"\1\2", text, flags=re.DOTALL)
    assert len(emptied) < len(text)
    assert pages.rendered(emptied) == text, "./run_all.sh figures --profile small"


def test_notebook_00_shows_the_committed_verdicts(tmp_path, monkeypatch):
    """Both the executed one and what it makes without a model."""
    figures = tmp_path / "figures" / "small"
    (figures / "verdicts").mkdir(parents=True)
    for file in [*SMALL.glob("verdicts/*.csv"), SMALL / "result.png"]:
        (figures / file.relative_to(SMALL)).write_bytes(file.read_bytes())
    monkeypatch.setattr(config, "FIGURES", tmp_path / "figures")
    names = {}
    for cell in notebooks.read("00_start_here").cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
            if notebooks.PARAMETERS in cell.metadata.get("tags", []):
                names["profile"] = "small"
    matrix = (figures / "tables" / "matrix.md").read_text(encoding="utf-8")
    assert matrix == (SMALL / "tables" / "matrix.md").read_text(encoding="utf-8")
    executed = notebooks.executed_file("00_start_here", "small").read_text(encoding="utf-8")
    shown = []
    for cell in nbformat.reads(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            shown.append(output.get("data", {}).get("text/markdown", ""))
    assert any(matrix in text for text in shown), "./run_all.sh --profile small --only 00"


def test_notebook_00_without_a_run_shows_small(monkeypatch, tmp_path, capsys):
    (code,) = [code for code in notebooks.code_of(notebooks.read("00_start_here")) if "SVG" in code]
    names = {"profile": "elsewhere"}
    exec(code, names)
    assert names["results"].profile == "small"
    assert "The profile elsewhere was not run yet" in capsys.readouterr().out


def verdicts_of(*rows):
    """What notebooks judged: claim, model, effect, value and mark of each row."""
    columns = ["claim", "model", "effect", "value", "mark"]
    frame = pd.DataFrame(rows, columns=columns).reindex(columns=judge.COLUMNS)
    return frame.assign(n=9, reason="no question")


def test_claims_on_models_are_counted():
    kinds = ["measured", "measured", "measured", "ours", "measured"]
    judged = verdicts_of(
        ("alpha-beats-one", "A", "one text", 1.0, "✓"),
        ("alpha-beats-one", "A", "another", 2.0, "✓"),
        ("alpha-beats-one", "B", "", -1.0, "✗"),
        ("perplexity-heads", "B", "", 1.0, ""),
        ("faster", "B", "", None, "–"),
    ).assign(kind=kinds)
    sentence = "All claims together have 2 marks: 1 ✓, 1 ✗ and 0 ?; 1 more could not be tested."
    assert ledger.counted(judged) == sentence


def test_verdicts_of_all_notebooks_stand_in_the_order_of_the_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "FIGURES", tmp_path)
    with pytest.raises(FileNotFoundError, match="no verdicts of the profile 'mini'"):
        ledger.verdicts("mini")
    folder = tmp_path / "mini" / "verdicts"
    folder.mkdir(parents=True)
    first, second = ("overtaking-timed", "A", "", -1, "✗"), ("norm-helps", "A", "", 1, "✓")
    verdicts_of(second).to_csv(folder / "02.csv", index=False)
    verdicts_of(first).to_csv(folder / "08.csv", index=False)
    judged = ledger.verdicts("mini")
    assert judged["claim"].tolist() == ["overtaking-timed", "norm-helps"]
    assert judged["kind"].tolist() == ["measured", "measured"]
    assert judged["within"].tolist() == ["", ""]


def test_effects_are_written_with_their_intervals():
    effect = {"effect": "Mag-sp", "value": -0.1234, "low": -0.2, "high": 0.5, "p": 0.2, "n": 12}
    effect["within"] = ""
    assert judge.in_words([effect]) == "Mag-sp −0.123 [−0.2, +0.5], n = 12"
    assert judge.in_words([effect | {"low": None}]) == "Mag-sp −0.123 (p = 0.2), n = 12"


def test_of_many_effects_the_lowest_and_the_highest_are_shown():
    rows = [("generation-each", "A", f"task {number}", number, "?") for number in range(-3, 9)]
    text = judge.in_words(verdicts_of(*rows).assign(within="").to_dict("records"))
    assert text == "12 effects, from task -3 −3, n = 9 to task 8 +8, n = 9"
    nothing = verdicts_of(("faster", "A", "", None, "–")).assign(within="")
    assert judge.in_words(nothing.to_dict("records")) == "no question"


# ---- what a reader sees


def test_the_code_of_the_front_page_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert '"smollm2-135m"' in block
    assert "num_layers=6" in block
    block = block.replace('"smollm2-135m"', '"tiny-llama"').replace("num_layers=6", "num_layers=2")
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert (tmp_path / "my-model-harp" / "config.json").is_file()


def test_notebook_00_has_the_findings_of_the_front_page():
    cells = notebooks.read("00_start_here").cells
    text = one_line("\n".join(cell.source for cell in cells if cell.cell_type == "markdown"))
    findings = re.findall(r"\d\. \*\*(.+?)\*\*", one_line(part("Five findings")))
    assert len(findings) == 5
    for finding in findings:
        assert finding in text
