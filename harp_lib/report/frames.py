"""What a notebook reads, shows and concludes: stored rows as pandas frames, and where they go."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from IPython.display import Markdown

from harp_lib import config
from harp_lib.names import BASELINES, CORPUS_TITLES, METHOD_TITLES, short_names
from harp_lib.report import judge, save
from harp_lib.report.intervals import Interval
from harp_lib.results import StoredCell, read_unit, stored_models

MEASURES = ("score", "chance", "margin", "bits_per_byte")  # of a question


def paper(name: str) -> pd.DataFrame:
    """The printed numbers of a table or figure of the paper, one in each row.

    Scores are in per cent, and "all" stands where there is no single model, method or task.
    """
    return pd.read_csv(config.PAPER / f"{name}.csv")


def stacked(cells: Iterable[StoredCell]) -> pd.DataFrame:
    """The rows of stored cells beneath each other.

    Columns: what a cell is about (model, method, corpus, task, layers, …), and the columns of its
    rows. Of columns with the same name the later one counts.
    """
    records = []
    for cell in cells:
        columns = cell["result"].get("rows", {})
        for values in zip(*columns.values(), strict=True):
            records.append(cell["about"] | dict(zip(columns, values, strict=True)))
    return pd.DataFrame(records, dtype=object)


def with_plain_types(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows with columns of int, float, bool or str, and without columns of nothing."""
    frame = frame.dropna(axis="columns", how="all").reset_index(drop=True)
    plain = frame.astype(object).where(frame.notna(), None).infer_objects()
    for name in plain.select_dtypes(exclude=["number", "bool", "str"]):
        try:
            plain[name] = pd.to_numeric(plain[name])
        except (TypeError, ValueError):
            plain[name] = plain[name].astype("str")
    return plain


class Results:
    """Stored results of a profile, and what a notebook makes of them.

    Parameters
    ----------
    profile : str
        Name of the profile; ``data/results/<profile>`` is read, or else the committed reference.
    notebook : str, optional
        The number of the notebook, whose claims are judged.

    Attributes
    ----------
    read : dict
        The cells that were read so far, by unit.
    """

    def __init__(self, profile: str, notebook: str | None = None) -> None:
        self.profile = profile
        self._notebook = notebook
        self.folder = config.FIGURES / profile
        self.read: dict[str, list[StoredCell]] = {}
        self._names: dict[str, str] = {}  # short ones, by full name
        self._judgements: list[dict[str, Any]] = []
        self._left_out: list[str] = []  # sections of the profile

    # Rows

    def short_name(self, model: str) -> str:
        """The name of a model in this profile's tables and figures, from its full one.

        No other model of the profile has it; see :func:`.short_names`.
        """
        if model not in self._names:
            self._names = short_names({model, *self._names, *stored_models(self.profile)})
        return self._names[model]

    def cells(self, unit: str) -> list[StoredCell]:
        """The cells of a unit, in the registry's order of models, with what each is ``about``.

        Raises
        ------
        FileNotFoundError
            If nothing is stored; the message says what to run.
        """
        if unit not in self.read:
            self.read[unit] = read_unit(self.profile, unit)
        return self.read[unit]

    def rows(self, unit: str, *quantities: str) -> pd.DataFrame:
        """Stored numbers, one in each row.

        Parameters
        ----------
        unit : str
            A key of ``data/experiments.yaml``.
        *quantities : str
            The quantities that are kept; without any, all rows are.

        Returns
        -------
        DataFrame
            Columns: model (:meth:`short_name`), what the cells and rows are about (method, corpus,
            split, document, layer, …), quantity, ``text`` (the title of the corpus, where there is
            one), and value.

        Raises
        ------
        FileNotFoundError
            If nothing is stored.
        ValueError
            If the unit has no such quantity; the message lists those that it has.
        """
        frame = stacked(self.cells(unit))
        if quantities:
            known = set(frame.get("quantity", pd.Series()).dropna())
            for quantity in quantities:
                if quantity not in known:
                    choices = ", ".join(sorted(known))
                    raise ValueError(f"{unit} has no quantity {quantity!r}; it has {choices}")
            frame = frame[frame["quantity"].isin(quantities)]
        frame = with_plain_types(frame)
        frame["model"] = frame["model"].map(self.short_name)
        if "corpus" in frame:
            frame["text"] = frame["corpus"].map(CORPUS_TITLES)
        return frame

    def wide(self, unit: str, *quantities: str, index: list[str]) -> pd.DataFrame:
        """As :meth:`rows`, with a column for each quantity."""
        rows = self.rows(unit, *quantities)
        return rows.pivot_table("value", index, "quantity", sort=False).reset_index()

    def documents(self, unit: str) -> pd.DataFrame:
        """The likelihood of every document: nll (nats), tokens, and the coordinates."""
        rows = self.rows(unit, "nll", "tokens").dropna(subset="document")
        keys = [name for name in rows if name not in ("quantity", "value")]
        nll = rows[rows["quantity"] == "nll"].rename(columns={"value": "nll"})
        tokens = rows[rows["quantity"] == "tokens"].rename(columns={"value": "tokens"})
        nll = nll.drop(columns="quantity")
        return nll.merge(tokens[[*keys, "tokens"]], on=keys)

    def questions(self, unit: str) -> pd.DataFrame:
        """Every question that was asked: model, method, task, question, score, margin, ….

        A measure that no question has is NaN.
        """
        asked = with_plain_types(stacked(self.cells(unit)))
        asked["model"] = asked["model"].map(self.short_name)
        return asked.reindex(columns=list(dict.fromkeys([*asked, *MEASURES])))

    def plans(self, unit: str = "plans") -> pd.DataFrame:
        """What each method removes from each model; baselines with equal plans share a title.

        Returns
        -------
        DataFrame
            Columns: model, method, title (as ``Mag-sp = Wanda-sp``), first (whether the method
            comes first among those with this plan), plan (a dict), groups_per_layer (key/value
            groups of a layer of the dense model). Of the unit ``depths`` also depth.
        """
        records = []
        for cell in self.cells(unit):
            plan = cell["result"].get("plan")
            if plan:
                method = cell["about"]["method"]
                record = {"model": self.short_name(cell["about"]["model"]), "method": method}
                record["title"] = METHOD_TITLES.get(method, method)
                record["first"] = True
                record["plan"] = {name: part for name, part in plan.items() if name != "method"}
                record["groups_per_layer"] = cell["result"].get("groups_per_layer")
                record["depth"] = cell["about"].get("depth")
                records.append(record)
        where = ["model", "depth"] if unit == "depths" else ["model"]
        columns = [*where, "method", "title", "first", "plan", "groups_per_layer"]
        plans = pd.DataFrame(records, columns=columns)
        baselines = plans[plans["method"].isin(BASELINES)]
        equal = baselines.groupby([*where, baselines["plan"].astype(str)])
        plans.loc[baselines.index, "title"] = equal["title"].transform(" = ".join)
        plans.loc[baselines.index, "first"] = equal.cumcount() == 0
        return plans

    def distinct_plans(self, frame: pd.DataFrame, unit: str = "plans") -> pd.DataFrame:
        """Rows of models and methods, with those of equal plans once.

        A baseline with the plan of an earlier one is left out, and methods have their titles in
        :meth:`plans` in place of their names.
        """
        plans = self.plans(unit).drop(columns=["plan", "groups_per_layer"])
        keys = [name for name in plans if name not in ("title", "first")]
        titled = frame.merge(plans, on=keys, how="left")
        titled["method"] = titled["title"].fillna(titled["method"])
        repeated = titled["first"].eq(False)
        return titled[~repeated].drop(columns=["title", "first"])

    # What a notebook leaves

    def save(self, figure: Any, name: str, numbers: pd.DataFrame) -> None:
        """Write a figure and its numbers, and display it; see :func:`.save.write_figure`."""
        save.write_figure(figure, self.folder, name, numbers, self.read)

    def table(self, frame: pd.DataFrame, name: str, shown: pd.DataFrame | None = None) -> Markdown:
        """Write a table, and return it for display; see :func:`.save.write_table`."""
        return save.write_table(frame, self.folder, name, shown, self.read)

    def provenance(self) -> Markdown:
        """One line: how many cells were read, and by what, where and when they were computed."""
        return save.provenance_line(self.profile, self.read)

    # What a notebook concludes

    def check(self, statement: str, holds: bool) -> None:
        """Print whether a statement of the text holds in these results.

        Marks belong to the claims of the paper, so it prints none. A statement may name models that
        were not run; then it says so.

        Raises
        ------
        AssertionError
            If it does not hold in the profile ``small``, for which the text was written.
        """
        if holds:
            print(f"same in this run: {statement}")
        elif self.profile == "small":
            raise AssertionError(f"the text says that {statement}, and the results do not")
        elif absent := self._absent(statement):
            print(f"{' and '.join(absent)} not in this run: {statement}")
        else:
            print(f"not in this run: {statement}")

    def _absent(self, statement: str) -> list[str]:
        """The models of the registry that a statement names, and whose cells were not read."""
        read = self._models_read()
        named = [name for name in config.NAMED_MODELS if self.short_name(name) in statement]
        return [self.short_name(name) for name in named if name not in read]

    def _models_read(self) -> set[str]:
        return {cell["about"]["model"] for cells in self.read.values() for cell in cells}

    def judge(
        self,
        claim: str,
        model: str,
        *effects: Interval | pd.DataFrame | pd.Series,
        within: tuple[float, float] | None = None,
        reason: str = "",
    ) -> None:
        """Judge a claim of the paper on one model, and print what came out.

        An effect may be an interval, or the rows of a frame (:func:`.judge.effects_of`). For the
        other arguments see :func:`.judge.judgement`. The claim's words are printed above its first
        model.
        """
        full_names = {short: name for name, short in self._names.items()}
        full_name = full_names.get(model, model)
        intervals = []
        for effect in effects:
            if isinstance(effect, Interval):
                intervals.append(effect)
            else:
                intervals += judge.effects_of(effect)
        judged = judge.judgement(claim, full_name, intervals, within, reason)
        entry = judge.claims()[claim]
        if not self._judgements or self._judgements[-1]["claim"] != claim:
            ours = " (ours, without a mark)" if entry["kind"] == "ours" else ""
            print(f"{entry['statement'].strip()}{ours}")
        line = f"{judged[0]['mark']} {model}: {judge.in_words(judged)}"
        print(f"  {line.strip()}")
        self._judgements += judged

    def leave_out(self, section: str) -> None:
        """Say once that there is nothing to show, because the profile leaves out a section."""
        if section not in self._left_out:
            self._left_out.append(section)
            print(f"The profile {self.profile} leaves out {section}: there is nothing to show.")

    def verdict(self) -> Markdown:
        """The marks of all claims that were judged, which are written to a file, too.

        Claims that need a section that the profile leaves out count as not run. The file is
        ``figures/<profile>/verdicts/<notebook>.csv``, with the columns :data:`.judge.COLUMNS`.

        Raises
        ------
        ValueError
            If the claims belong to several notebooks, or one of the notebook's is missing.
        """
        if self._left_out:
            self._judge_what_is_left_out()
        return save.write_verdict(self._judgements, self.folder, self.short_name)

    def _judge_what_is_left_out(self) -> None:
        """The claims of the notebook that were not judged, on each model that was read."""
        reason = f"the profile leaves out {', '.join(self._left_out)}"
        judged = {row["claim"] for row in self._judgements}
        models = self._models_read()
        for claim in judge.claims_of(self._notebook):
            if claim not in judged:
                for model in sorted(models) or ["any model"]:
                    self.judge(claim, model, reason=reason)
