"""The plots of a study, as figures of plotly: one module each.

- `by_kind`: the plots by their names; what others import
- `history`, `area`, `parallel`, `breakdown`, `importance`: a plot each, drawn by the function of
  its name
- `marks`: what several of them draw
"""
