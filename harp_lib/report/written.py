"""What pruned models write, side by side, with each token coloured by its loss."""

from collections.abc import Mapping, Sequence
from html import escape

from IPython.display import HTML

SURPRISING = 3.0  # nats: the dense model gave such a token a probability below 5 %
DARKEST = 6.0  # nats, from which on a token is as red as it gets
COLUMNS = 2


def side_by_side(prompt: str, written: Mapping[str, Sequence[tuple[str, float]]]) -> HTML:
    """A table of two columns with what each model writes after the same prompt.

    Parameters
    ----------
    prompt : str
        What all models read.
    written : dict
        By the model's title, its tokens in order and the loss of each in nats. The redder a token
        is, the higher its loss; tokens with a loss above ``SURPRISING`` are bold, which is all that
        is left on a page that drops colours.
    """
    cells = []
    for title, tokens in written.items():
        mean = sum(loss for _, loss in tokens) / len(tokens)
        text = "".join(_coloured_token(token, loss) for token, loss in tokens)
        cells.append(
            '<td style="text-align:left;vertical-align:top;width:50%">'
            f"<b>{escape(title)}</b> ({mean:.2f} nats a token)<br>"
            f"<i>{escape(prompt)}</i>{text}</td>"
        )
    rows = []
    for start in range(0, len(cells), COLUMNS):
        rows.append(f"<tr>{''.join(cells[start : start + COLUMNS])}</tr>")
    return HTML(f"<table>{''.join(rows)}</table>")


def _coloured_token(token: str, loss: float) -> str:
    """A token on a red ground, whose strength is its loss; the letters keep the page's colour."""
    text = escape(token).replace("\n", "↵ ")
    if loss > SURPRISING:
        text = f"<b>{text}</b>"
    strength = 0.65 * min(loss / DARKEST, 1)
    return f'<span style="background:rgba(214,69,69,{strength:.2f})">{text}</span>'
