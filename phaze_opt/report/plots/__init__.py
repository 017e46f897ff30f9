"""The plots of studies and of single evaluations, as figures of plotly: one module each.

- `by_kind`: the plots by their names; what others import
- `history`, `area`, `parallel`, `breakdown`, `importance`: a plot each, drawn by the function of
  its name
- `marks`: what several of them draw
- `of_evaluations`: time, memory and binding resources of evaluations side by side; `stacked` draws
  such bars
"""
