"""The curves of the search for α with a slider, in plain JavaScript that needs no network."""

import json

import pandas as pd
from IPython.display import HTML

from harp_lib.report.figures_alpha import searched_curves

PAGE = """
<div id="alpha-slider"><em>The slider needs JavaScript, which GitHub removes: it works in Jupyter
and in the book. The picture above shows the same curves.</em></div>
<script>
(function () {
  const searches = SEARCHES;
  const root = document.getElementById("alpha-slider");
  root.innerHTML = `
    <p><label>Model and text <select class="search"></select></label>
    <label>Layer <select class="layer"></select></label></p>
    <p style="max-width: 640px"><label style="display: flex">α&nbsp;<input class="alpha"
    type="range" min="0" max="10" step="1" value="10" style="flex: 1"></label></p>
    <svg viewBox="0 0 640 250" style="width: 100%; max-width: 640px" role="img"
    font-size="13" fill="currentColor"></svg>
    <p class="text" style="min-height: 3em"></p>`;
  const [search, layer] = ["search", "layer"].map((name) => root.querySelector("." + name));
  const slider = root.querySelector(".alpha");
  const [svg, text] = ["svg", ".text"].map((name) => root.querySelector(name));

  function options(select, names) {
    select.innerHTML = names.map((name, i) => `<option value="${i}">${name}</option>`).join("");
  }

  function draw() {
    const layers = searches[search.value].layers;
    const chosen = layers[layer.value].perplexities;
    const all = layers.flatMap((other) => other.perplexities).map(Math.log);
    const lowest = Math.min(...all);
    const highest = Math.max(...all);
    const x = (i) => 50 + 57 * i;
    const y = (value) => 210 - (190 * (Math.log(value) - lowest)) / (highest - lowest);
    const path = (values) => values.map((value, i) => `${x(i)},${y(value)}`).join(" ");
    const line = (values, width, opacity) =>
      `<polyline points="${path(values)}" fill="none" stroke="currentColor"
      stroke-width="${width}" opacity="${opacity}"/>`;
    const label = (at, height, anchor, words) =>
      `<text x="${at}" y="${height}" text-anchor="${anchor}">${words}</text>`;
    const best = chosen.indexOf(Math.min(...chosen));
    const now = Number(slider.value);
    svg.innerHTML =
      layers.map((other) => line(other.perplexities, 1, 0.3)).join("") +
      line(chosen, 3, 1) +
      `<circle cx="${x(best)}" cy="${y(chosen[best])}" r="9" fill="none" stroke="currentColor"/>
      <circle cx="${x(now)}" cy="${y(chosen[now])}" r="6" fill="#d64545"/>
      ${label(44, 24, "end", Math.exp(highest).toFixed(0))}
      ${label(44, 214, "end", Math.exp(lowest).toFixed(0))}` +
      [0, 5, 10].map((i) => label(x(i), 240, "middle", `α = ${i / 10}`)).join("");
    const change = 100 * (chosen[now] / chosen[best] - 1);
    text.textContent =
      `${layers[layer.value].name}: perplexity ${chosen[now].toFixed(2)} at α = ${now / 10}. ` +
      `The search takes α = ${best / 10} with ${chosen[best].toFixed(2)}` +
      (now === best ? "." : `, so this α costs ${change.toFixed(1)} %.`);
  }

  function chooseSearch() {
    options(layer, searches[search.value].layers.map((other) => other.name));
    draw();
  }

  options(search, searches.map((one) => one.name));
  search.onchange = chooseSearch;
  layer.onchange = draw;
  slider.oninput = draw;
  chooseSearch();
})();
</script>
"""


def alpha_slider(profile: dict) -> HTML:
    """The curves of every search: choose a model, a layer and an α, and read the perplexity.

    Where scripts are removed, as on GitHub, one sentence is left that names the picture.
    """
    curves = searched_curves(profile)
    return HTML(PAGE.replace("SEARCHES", json.dumps(_searches(curves), ensure_ascii=False)))


def _searches(curves: pd.DataFrame) -> list[dict]:
    """Each search by name, with the perplexities of its layers at α = 0, 0.1, …, 1."""
    searches = []
    for name, of_search in curves.groupby("panel", sort=False):
        layers = []
        for layer, of_layer in of_search.groupby("layer", sort=False):
            perplexities = of_layer.sort_values("alpha")["value"].astype(float).round(4)
            layers.append({"name": f"Layer {layer:.0f}", "perplexities": perplexities.tolist()})
        searches.append({"name": name, "layers": layers})
    return searches
