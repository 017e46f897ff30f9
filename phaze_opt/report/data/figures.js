// Draws figures in the width that there is; one that has a narrow form is drawn so on a telephone.
"use strict";
const Figures = (() => {
  const NARROW_PX = 800;
  const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const drawn = new Map();

  function isNarrow(place) {
    return place.clientWidth < NARROW_PX;
  }

  // Left and right of the plot a telephone has no room to give away.
  function fitted(place, figure) {
    const { data, layout, narrow } = figure;
    if (!isNarrow(place)) return { data, layout: { ...layout } };
    const margin = { ...layout.margin, l: 48, r: 12 };
    return { data: narrow?.data ?? data, layout: { ...layout, margin, ...narrow?.layout } };
  }

  function draw(place, figure) {
    drawn.set(place, { figure, narrow: isNarrow(place) });
    const { data, layout } = fitted(place, figure);
    // Where the width changes, plotly takes the height of the place instead of that of the figure.
    place.style.height = `${layout.height}px`;
    return Plotly.react(place, data, layout, options);
  }

  window.addEventListener("resize", () => {
    for (const [place, { figure, narrow }] of drawn) {
      if (narrow !== isNarrow(place)) draw(place, figure);
    }
  });

  return { draw };
})();
