"""Summaries and drawings of captured workloads."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phaze_opt.errors import InputError, PhazeError
from phaze_opt.workload.draw import to_dot, to_html, write_drawing
from phaze_opt.workload.graph import OperatorGraph
from phaze_opt.workload.summary import summarise
from phaze_opt.workload.zoo import load_workload

TINY = "llama:layers=3,hidden=16,heads=4,ffn=24,sequence=8,vocab=50"


@pytest.fixture(scope="module")
def graph() -> OperatorGraph:
    """Return the backward of a small block on two devices."""
    return load_workload(TINY, tensor_parallel=(2,)).variants[0].layers[1].backward


def test_summary_adds_up() -> None:
    """Totals are those of the layers times their counts."""
    workload = load_workload(TINY, tensor_parallel=(1, 2))
    summary = summarise(workload, 1)
    assert (summary.tensor_parallel, summary.parameters) == (2, workload.parameters)
    assert [layer.count for layer in summary.layers] == [1, 3, 1]
    assert summary.forward_flops == workload.variants[1].forward_flops
    assert summary.backward_flops > 2 * summary.forward_flops  # fused attention recomputes
    block = summary.layers[1]
    operators = workload.variants[1].layers[1].forward.operators
    assert sum(block.forward_operators.values()) == len(operators)
    assert block.collective_bytes == {"all_reduce": 4 * 2 * 8 * 16}


def test_dot_has_every_operator_and_edge(graph: OperatorGraph) -> None:
    """The DOT text has one line per operator and per edge."""
    text = to_dot(graph, 'a "quoted" title')
    assert text.count(" -> ") == len(graph.edges)
    drawing, legend = text.split("subgraph cluster_legend")
    assert drawing.count("fillcolor") == len(graph.operators)
    assert legend.count("fillcolor") == len(set(re.findall(r'fillcolor="(#\w+)"', drawing)))
    assert text.startswith('digraph "a \\"quoted\\" title" {')


def test_html_is_well_formed(graph: OperatorGraph) -> None:
    """The page's drawing is sound XML with a box per operator, and runs no script."""
    page = to_html(graph, "a <b> & c")
    assert "<script" not in page
    assert "a &lt;b&gt; &amp; c" in page
    drawing = ElementTree.fromstring(page[page.index("<svg") : page.index("</body>")])
    name = "{http://www.w3.org/2000/svg}"
    assert len(drawing.findall(f"{name}g")) == len(graph.operators)
    arrows = drawing.findall(f"{name}path")
    assert len(arrows) == len(graph.edges)
    (head,) = drawing.findall(f"{name}defs/{name}marker")
    assert {arrow.get("marker-end") for arrow in arrows} == {f"url(#{head.get('id')})"}


def test_notes_stand_in_the_boxes(graph: OperatorGraph) -> None:
    """One more line for every operator, and a legend that says so."""
    notes = [f"note {index}" for index in range(len(graph.operators))]
    page, text = to_html(graph, "title", notes), to_dot(graph, "title", notes)
    for index, note in enumerate(notes):
        assert f">{note}</text>" in page
        assert text.splitlines()[3 + index].count(f'\\n{note}"') == 1
    assert "and its time" in page
    assert "and its time" not in to_html(graph, "title")
    with pytest.raises(ValueError, match="zip"):
        to_dot(graph, "title", ["one"])


def test_empty_graph_can_be_drawn() -> None:
    """A layer without a backward still has a page."""
    assert "<svg" in to_html(OperatorGraph(), "nothing")


def test_drawing_goes_by_the_suffix(graph: OperatorGraph, tmp_path: Path) -> None:
    """The file's suffix says how to draw; another one is refused."""
    write_drawing(graph, "block", tmp_path / "block.html")
    write_drawing(graph, "block", tmp_path / "block.dot")
    assert (tmp_path / "block.dot").read_text() == to_dot(graph, "block")
    with pytest.raises(InputError, match=r"must end in \.html or \.dot"):
        write_drawing(graph, "block", tmp_path / "block.png")
    with pytest.raises(PhazeError, match="cannot be written"):
        write_drawing(graph, "block", tmp_path / "none" / "block.dot")
