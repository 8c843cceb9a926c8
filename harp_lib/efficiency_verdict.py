"""What the results of notebook 08 say, in words that follow the numbers."""

import numpy as np
import pandas as pd
from scipy import stats

from harp_lib.accounting import paper_configs
from harp_lib.baseline_verdict import FAILS, HOLDS, OPEN
from harp_lib.efficiency_frames import (
    PAPER_MODEL,
    TITLE,
    counted,
    decode_frame,
    memory_frame,
    missing_frame,
    model_title,
    prefill_frame,
    published_frame,
    published_saved,
    ratio_frame,
    saved_text,
    share_text,
    speed_up,
    split_frame,
)
from harp_lib.experiments.efficiency_study import ALL, PAIRS
from harp_lib.experiments.efficiency_variants import DENSE, FOLDED, HARP, THINNED, published_plan
from harp_lib.accounting import prefill_flops
from harp_lib.measure.timing import ratio_interval
from harp_lib.results import Cells
from harp_lib.score_claims import Finding, outcome
from harp_lib.statistics import Interval

FASTER = "reading is faster at every length"
GROWS = "a larger share of time is saved of the longest text than of the shortest"
AS_MUCH = "the share of time saved reaches the paper's 16.7 % (LLaMA3.1-8B, 65,536 tokens, H100)"
SPEED = 'the "16.7 % improvement in processing speed" is a gain in speed of 16.7 %'
ALLOWED = "time is saved at least in the share of the operations removed"
COUNTED = "attention takes as many operations as the FFN from N = d_ff on"
MEASURED = "the FFN takes most time below N = d_ff, and attention above"
CACHE = "the KV cache shrinks to exactly the layers that keep their attention"
WHOLE = "whole layers without attention save more time than as many groups thinned out"
FOLDING = "folding the output projection saves time in reading"
FOLDED_DECODING = "folding the output projection saves time in decoding"
DECODING = "decoding is faster at every context"
BYTES = "a new token saves at least the share of time that it saves of bytes"


def verdict(cells: Cells) -> pd.DataFrame:
    """Each claim with what was measured and what follows: claim, model, evidence, verdict, in the paper."""
    rows = []
    for model in counted(cells):
        found = _reading(cells, model) | _attention(cells, model) | _cache(cells, model) | _decoding(cells, model)
        rows += [(claim, model_title(cells, model), *finding) for claim, finding in found.items()]
    rows.append((SPEED, f"{PAPER_MODEL} (paper)", *_speed()))
    return pd.DataFrame(rows, columns=["claim", "model", "evidence", "verdict", "in the paper"])


def answer(cells: Cells) -> str:
    """What holds here: a few sentences for each model."""
    claims, lines = verdict(cells), []
    for model in counted(cells):
        title = model_title(cells, model)
        judged = claims[claims["model"] == title].set_index("claim")["verdict"]
        counts = ", ".join(f"{said} {count}" for said, count in judged.value_counts(sort=False).items())
        text = f"- **{title}.**"
        for frame, doing in ((prefill_frame(cells), "Reading"), (decode_frame(cells), "Decoding after")):
            if (row := _longest(_rows(frame, model, HARP))) is not None:
                text += f" {doing} {_tokens(row)}, HARP saves {saved_text(row)} of the dense model's time"
                text += (
                    ", which is too small to tell."
                    if outcome(_beyond(row, 0)) == OPEN
                    else f": a speed-up of {speed_up(row)}."
                )
        lines.append(f"{text} Of the {len(judged)} claims on this model: {counts}.")
    return "\n".join(lines)


def read_distance(cells: Cells) -> str:
    """How far the time that HARP saves is from both counts of the operations that it saves, length by length."""
    lines = []
    for model in counted(cells):
        said = []
        for row in _rows(prefill_frame(cells), model, HARP).itertuples():
            visible, full = (100 * (row.saved - edge) for edge in (row.counted_causal, row.counted_full))
            said.append(f"{visible:+.1f} and {full:+.1f} at {row.tokens:,} tokens")
        lines.append(
            f"- **{model_title(cells, model)}**: points of time saved beyond the operations, with visible pairs "
            f"counted and with all: "
            f"{', '.join(said) or 'nothing was timed'}."
        )
    lines.append(_paper_distance())
    return "\n".join(lines)


def _paper_distance() -> str:
    """The same of the time that the paper saves on its longest text."""
    saved, config = published_saved(), paper_configs()[PAPER_MODEL]
    tokens, plan = int(saved.index[-1]), published_plan(PAPER_MODEL, config.num_hidden_layers)
    shares = [
        1 - prefill_flops(config, plan, tokens, causal) / prefill_flops(config, None, tokens, causal)
        for causal in PAIRS.values()
    ]
    full, visible = (100 * (saved.iloc[-1] - share) for share in shares)
    return f"- **{PAPER_MODEL} (paper)**: {visible:+.1f} and {full:+.1f} at {tokens:,} tokens."


def read_missing(cells: Cells) -> str:
    """What was not measured, and why."""
    missing = missing_frame(cells).itertuples()
    lines = [f"- Not measured for {model_title(cells, row.model)}: {row.what} ({row.reason})." for row in missing]
    return "\n".join(lines) or "Everything was measured."


def _rows(frame: pd.DataFrame, model: str, variant: str) -> pd.DataFrame:
    return frame[(frame["model"] == model) & (frame["variant"] == variant)]


def _longest(rows: pd.DataFrame) -> pd.Series | None:
    """The row of the greatest length that was timed more than once."""
    repeated = rows[rows["repetitions"] > 1]
    return None if repeated.empty else repeated.iloc[-1]


def _reading(cells: Cells, model: str) -> dict[str, Finding]:
    rows = _rows(prefill_frame(cells), model, HARP)
    longest = _longest(rows)
    if longest is None:
        return {}
    repeated = rows[rows["repetitions"] > 1]
    paper = published_saved()
    printed = " and ".join(f"{share_text(saved)} at {tokens:,} tokens" for tokens, saved in paper.items())
    beyond = [f", {share_text(row.saved)} at {row.tokens:,}" for row in rows[rows["repetitions"] == 1].itertuples()]
    once = f"; timed once{''.join(beyond)}" if beyond else ""
    found = {
        FASTER: Finding(*_everywhere(repeated), printed),
        GROWS: Finding(*_growth(cells, model, repeated), printed),
        AS_MUCH: Finding(
            f"{saved_text(longest)} at {_tokens(longest)}{once}",
            outcome(_beyond(longest, paper.iloc[-1])),
            f"{share_text(paper.iloc[-1])} at {paper.index[-1]:,} tokens, on an H100",
        ),
        ALLOWED: Finding(*_allowed(longest), "not counted"),
    }
    return found | _whole(cells, model) | _folding(cells, model, FOLDING, "prefill", "reading")


def _allowed(row: pd.Series) -> tuple[str, str]:
    """Whether as much time is saved as operations, however these are counted."""
    visible, full = row["counted_causal"], row["counted_full"]
    beyond_visible, beyond_full = (outcome(_beyond(row, share)) for share in (visible, full))
    evidence = (
        f"at {_tokens(row)}, {saved_text(row)} of the time; of the operations, {share_text(visible)} with visible "
        f"query-key pairs counted ({beyond_visible}) and {share_text(full)} with all ({beyond_full})"
    )
    return evidence, FAILS if beyond_visible == FAILS else HOLDS if beyond_visible == beyond_full == HOLDS else OPEN


def _whole(cells: Cells, model: str) -> dict[str, Finding]:
    thinned = _longest(ratio_frame(cells, "prefill", HARP, THINNED).query("model == @model"))
    if thinned is None:
        return {}
    flops = {variant: _longest(_rows(prefill_frame(cells), model, variant)) for variant in (HARP, THINNED)}
    of_operations = " and ".join(f"{TITLE[name]} {share_text(row['counted_causal'])}" for name, row in flops.items())
    evidence = (
        f"thinned out, reading {_tokens(thinned)} takes {_ratio(thinned)} times as long; of the operations (visible "
        f"pairs), {of_operations} are saved"
    )
    longer = Interval(*(thinned[end] - 1 for end in ("ratio", "low", "high")))
    return {WHOLE: Finding(evidence, outcome(longer), "not measured")}


def _folding(cells: Cells, model: str, claim: str, kind: str, doing: str) -> dict[str, Finding]:
    """Whether folding saves time over all lengths that were repeated: one alone has few repetitions."""
    rows = ratio_frame(cells, kind, HARP, FOLDED).query("model == @model and repetitions > 1")
    if rows.empty:
        return {}
    found = [cells[model, ALL, f"{kind}-{tokens}"]["result"]["seconds"] for tokens in rows["tokens"]]
    unfolded, folded = ([each for seconds in found for each in seconds[name]] for name in (HARP, FOLDED))
    ratio = ratio_interval(unfolded, folded)
    evidence = (
        f"folded, {doing} takes {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times as long as unfolded, in "
        f"{len(folded)} repetitions at {len(rows)} lengths"
    )
    return {claim: Finding(evidence, outcome(Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)), "not done")}


def _everywhere(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether time is saved in each of some rows, which were all repeated."""
    outcomes = [outcome(_beyond(row, 0)) for _, row in rows.iterrows()]
    found = FAILS if FAILS in outcomes else OPEN if OPEN in outcomes else HOLDS
    slower = [f"{row.tokens:,}" for row, said in zip(rows.itertuples(), outcomes, strict=True) if said == FAILS]
    evidence = (
        f"the interval of the time saved is above zero at {outcomes.count(HOLDS)} of {len(rows)} lengths that were "
        f"repeated{', below it at ' + ', '.join(slower) if slower else ''}"
    )
    return evidence, found


def _growth(cells: Cells, model: str, rows: pd.DataFrame) -> tuple[str, str]:
    """Whether more is saved at the longest length than at the shortest: Welch's t on the logarithms of the ratios."""
    first, last = rows.iloc[0], rows.iloc[-1]
    if len(rows) == 1:
        return f"{saved_text(first)} at {_tokens(first)}, the only length that was repeated", OPEN
    ratios = []
    for row in (first, last):
        seconds = cells[model, ALL, f"prefill-{row['tokens']}"]["result"]["seconds"]
        ratios.append(np.log(np.divide(seconds[HARP], seconds[DENSE])))
    low, high = stats.ttest_ind(*ratios, equal_var=False).confidence_interval()
    fall = Interval(*(float(1 - np.exp(-end)) for end in (ratios[0].mean() - ratios[1].mean(), low, high)))
    evidence = (
        f"{saved_text(first)} at {_tokens(first)}, {saved_text(last)} at {_tokens(last)}; "
        f"from the first to the last, pruned over dense time falls by {share_text(*fall)}"
    )
    return evidence, outcome(fall)


def _attention(cells: Cells, model: str) -> dict[str, Finding]:
    shape = counted(cells)[model]
    width = shape["intermediate_size"]
    full, causal = (shape["overtaking"][pairs]["attention"] for pairs in ("full", "causal"))
    said = " and ".join(
        f"at {meeting:,} tokens with {pairs} counted" if meeting else f"nowhere with {pairs} counted"
        for meeting, pairs in ((full, "all query-key pairs"), (causal, "the visible ones"))
    )
    paper = "FFN below N = d_ff, attention above"
    found = {
        COUNTED: Finding(f"d_ff is {width:,}; it happens {said}", HOLDS if full and full <= width else FAILS, paper)
    }
    split = split_frame(cells)
    rows = _rows(split[(split["part"] == "attention") & (split["repetitions"] > 1)], model, DENSE)
    if rows.empty:
        return found
    outcomes = {"below": [], "above": []}
    for row in rows[rows["tokens"] != width].itertuples():
        more = Interval(row.of_two - 0.5, row.of_two_low - 0.5, row.of_two_high - 0.5)
        less = Interval(-more.value, -more.high, -more.low)
        above = row.tokens > width
        outcomes["above" if above else "below"].append(outcome(more if above else less))
    shares = ", ".join(f"{share_text(row.of_two)} at {row.tokens:,}" for row in rows.itertuples())
    evidence = f"of the time in both, attention without its projections takes {shares} tokens; d_ff is {width:,}"
    evidence += "".join(f"; no length {side} it was repeated" for side, judged in outcomes.items() if not judged)
    judged = {found for side in outcomes.values() for found in side or [OPEN]}
    found[MEASURED] = Finding(evidence, FAILS if FAILS in judged else OPEN if OPEN in judged else HOLDS, paper)
    return found


def _cache(cells: Cells, model: str) -> dict[str, Finding]:
    frame, shape = memory_frame(cells), counted(cells)[model]
    frame = frame[frame["model"] == model]
    if frame.empty:
        return {}
    layers = shape["layers"]
    kept = layers - shape["variants"][HARP]["layers_without_attention"]
    held = {variant: part.set_index("tokens")["cache"] for variant, part in frame.groupby("variant")}
    exact = held[HARP] * layers == held[DENSE] * kept  # in whole bytes
    counts, said = (frame["cache"] == frame["cache_counted"]).all(), "all bytes are as counted"
    if not counts:
        said = "sliding windows hold less than is counted" if shape["windows"] else "bytes are not as counted"
    evidence = (
        f"HARP's cache holds {kept}/{layers} of the dense bytes at {exact.sum()} of {len(exact)} lengths that were "
        f"repeated; {said}"
    )
    holds = exact.all() and (counts or shape["windows"])
    return {CACHE: Finding(evidence, HOLDS if holds else FAILS, "not measured")}


def _decoding(cells: Cells, model: str) -> dict[str, Finding]:
    rows = _rows(decode_frame(cells), model, HARP)
    longest = _longest(rows)
    if longest is None:
        return {}
    of_bytes = share_text(longest["bytes_saved"])
    evidence = f"after {_tokens(longest)}, {saved_text(longest)} of the time and {of_bytes} of the bytes"
    return {
        DECODING: Finding(*_everywhere(rows[rows["repetitions"] > 1]), "not measured"),
        BYTES: Finding(evidence, outcome(_beyond(longest, longest["bytes_saved"])), "not measured"),
    } | _folding(cells, model, FOLDED_DECODING, "decode", "decoding")


def _speed() -> Finding:
    frame = published_frame()
    seconds = frame[frame["tokens"] == frame["tokens"].max()].set_index("variant")["seconds"]
    faster = seconds[DENSE] / seconds[HARP]
    evidence = (
        f"{seconds[DENSE]:.4f} s become {seconds[HARP]:.4f} s: {share_text(1 - 1 / faster)} less time, "
        f"and {share_text(faster - 1)} more speed ({faster:.2f}×)"
    )
    return Finding(evidence, FAILS, "16.7 %")


def _beyond(row: pd.Series, share: float) -> Interval:
    """By how much the share of time saved exceeds another share."""
    return Interval(*(row[end] - share for end in ("saved", "saved_low", "saved_high")))


def _ratio(row: pd.Series) -> str:
    return f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _tokens(row: pd.Series) -> str:
    return f"{row['tokens']:,} tokens"
