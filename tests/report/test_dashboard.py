"""The dashboard: our pages beside Optuna's, what workers keep up to date in it, and its guard."""

from __future__ import annotations

import csv
import http.client
import importlib
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import optuna
import pytest
from sqlalchemy import select

from phaze_opt.errors import NotFoundError, PhazeError
from phaze_opt.evaluation import Evaluation
from phaze_opt.report.dashboard import address_of, make_server
from phaze_opt.report.notes import KEPT
from phaze_opt.report.plots.by_kind import PLOT_KINDS
from phaze_opt.report.publishing import Publisher, publish
from phaze_opt.report.study_view import view_of
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.studies import delete_study
from phaze_opt.store.tables import ArtifactRow
from phaze_opt.study.study import Study
from tests.report.studies import run_study
from tests.study.fakes import toy_evaluator

Ask = Callable[..., tuple[int, Any]]

POLL_S = 0.02
"""How long the end of a server waits until the server has seen it."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Run a short toy study that is shown while it runs."""
    made = run_study(tmp_path_factory.mktemp("dashboard"), trials=0)
    made.run(30, show=Publisher)
    return made


def serve(study: Study, *, read_only: bool) -> Iterator[Ask]:
    """Serve a study, and yield what asks the server."""
    server = make_server(study.storage, "127.0.0.1", 0, read_only=read_only, first=study.name)
    threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()

    def ask(
        path: str,
        method: str = "GET",
        host: str | None = None,
        origin: str | None = None,
        body: str | None = "{}",
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        headers = {"Content-Type": "application/json"}
        headers |= {} if host is None else {"Host": host}
        headers |= {} if origin is None else {"Origin": origin}
        own = f"http://127.0.0.1:{server.server_port}"
        headers |= {"Origin": own} if method != "GET" and origin is None else {}
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status, json.loads(content) if is_json else content

    yield ask
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def ask(study: Study) -> Iterator[Ask]:
    """Return what asks a dashboard that may be written."""
    yield from serve(study, read_only=False)


@pytest.fixture(scope="module")
def ask_read_only(study: Study) -> Iterator[Ask]:
    """Return what asks a dashboard that may only be read."""
    yield from serve(study, read_only=True)


def detail(ask: Ask, study: Study) -> Any:
    """Return what Optuna Dashboard's own page gets of a study."""
    code, answer = ask(f"/api/studies/{study.optuna_id}?after=0")
    assert code == 200
    return answer


def test_a_study_that_is_written_anew_is_new_to_its_page(study: Study, ask: Ask) -> None:
    """The end of a run evaluates more than its trials; the page then shows every step."""
    before = ask(f"/state/{study.name}")[1]["key"]
    study.run(30, show=Publisher)
    code, after = ask(f"/state/{study.name}?key={before}")
    assert code == 200 and after["key"] != before
    steps = after["figures"]["importance"]["layout"]["annotations"]
    assert steps and all(note["text"] != "not evaluated yet" for note in steps)
    assert "hyperparameter importance" in detail(ask, study)["note"]["body"]


def test_our_pages_stand_beside_optunas(study: Study, ask: Ask) -> None:
    """The list and the page of a study are ours, the rest is Optuna's; both know the answer."""
    headline = view_of(study).headline
    for path in ("/", f"/study/{study.name}"):
        code, page = ask(path)
        assert code == 200 and headline in page.decode()
    assert ask("/study/none")[0] == 404
    assert ask("/dashboard")[0] == 200
    assert ask("/phaze/page.js")[0] == ask("/phaze/plotly.js")[0] == 200
    assert ask("/phaze/../page.py")[0] == 404


def test_a_page_asks_for_what_is_new(study: Study, ask: Ask) -> None:
    """The state of a study comes whole, and without its parts to who knows it already."""
    code, whole = ask(f"/state/{study.name}")
    assert code == 200
    assert set(whole["figures"]) == set(PLOT_KINDS)
    assert view_of(study).headline in whole["sections"]["answer"]
    assert ask(f"/state/{study.name}?key={whole['key']}") == (
        200,
        {"key": whole["key"], "running": False},
    )
    assert ask("/state/none")[0] == 404


def test_the_best_shown_is_the_best_feasible(study: Study, ask: Ask) -> None:
    """Optuna Dashboard crowns the fastest feasible trial, and knows which are not feasible."""
    answer = detail(ask, study)
    records = {record.number: record for record in study.trials()}
    values = [record.metrics.value for record in records.values() if record.rank and record.metrics]
    (crowned,) = answer["best_trials"]
    assert crowned["values"] == [max(values)]
    for trial in answer["trials"]:
        violated = any(value > 0 for value in trial["constraints"])
        assert violated == (records[trial["number"]].kind == "infeasible")
    assert any(record.kind == "infeasible" for record in records.values())


def test_of_equally_fast_trials_the_smaller_chip_is_best(tmp_path: Path) -> None:
    """Optuna would crown the first of them; both dashboards name the one of the answer."""
    more_vector_cores_than_needed = Space(
        num_tc=[16], num_vc=[16, 32, 64], pe_x=[8], pe_y=[8], pe_vc=[64], microbatch=[1]
    )
    search = SearchSpec(sampler="random", trials=20, seed=7)
    study = run_study(tmp_path, 20, space=more_vector_cores_than_needed, search=search)
    best = study.best()
    assert best is not None and best.metrics is not None
    assert {record.metrics.value for record in study.trials() if record.metrics} == {
        best.metrics.value
    }
    assert study.optuna_study.best_trial.number != best.number
    for ask in serve(study, read_only=True):
        assert [trial["number"] for trial in detail(ask, study)["best_trials"]] == [best.number]


@pytest.mark.parametrize("trials", [0, 3])
def test_a_study_without_an_answer_can_be_shown(tmp_path: Path, trials: int) -> None:
    """Before any trial there is no best; where none is feasible Optuna chooses among those."""
    nothing_fits = Space(microbatch=[8], recompute=["none"])
    study = run_study(tmp_path, trials, space=nothing_fits)
    assert study.best() is None
    for ask in serve(study, read_only=True):
        assert len(detail(ask, study)["best_trials"]) == min(trials, 1)


def test_workers_keep_the_note_and_the_plots(study: Study, ask: Ask) -> None:
    """After a run the study has its note, and every plot once, with points."""
    answer = detail(ask, study)
    assert view_of(study).headline in answer["note"]["body"]
    plots = {
        plot["id"]: json.loads(plot["graph_object"]) for plot in answer["plotly_graph_objects"]
    }
    assert set(plots) == {f"phaze-{kind}" for kind in PLOT_KINDS}
    assert all(figure["data"] for figure in plots.values())
    assert answer["objective_names"] == ["throughput_samples_per_s"]


def test_each_new_best_has_a_note_and_files(study: Study, ask: Ask) -> None:
    """The first feasible trial and each better one have them, others not; all have words."""
    trials = detail(ask, study)["trials"]
    records = {record.number: record for record in study.trials()}
    best = None
    for trial in trials:
        rank = records[trial["number"]].rank
        is_best = rank is not None and (best is None or rank.key < best)
        best = rank.key if is_best and rank is not None else best
        assert bool(trial["artifacts"]) == bool(trial["note"]["body"]) == is_best
        words = {attribute["key"]: attribute["value"] for attribute in trial["user_attrs"]}[
            "design"
        ]
        assert ("samples/s" in words) == (rank is not None) and "mm²" in words
        for artifact in trial["artifacts"]:
            address = f"/artifacts/{study.optuna_id}/{trial['trial_id']}/{artifact['artifact_id']}"
            code, content = ask(address)
            assert code == 200 and content
    names = {artifact["filename"] for trial in trials for artifact in trial["artifacts"]}
    assert {"breakdown.csv", "pipeline.html", "pipeline.trace.json"} <= names


def test_what_people_write_into_the_note_is_kept(study: Study, ask: Ask) -> None:
    """Before and after the program's part; an edit that was begun before it is still taken."""
    before = detail(ask, study)["note"]
    publish(study)
    answer = detail(ask, study)
    assert answer["note"] == before
    assert len(answer["plotly_graph_objects"]) == len(PLOT_KINDS)
    save: Any = importlib.import_module("optuna_dashboard").save_note
    edited = f"Read this first.\n\n{before['body']}\n- *We* built it.\n\n    code\n"
    save(study.optuna_study, edited)
    publish(study)
    publish(study)
    note = detail(ask, study)["note"]
    assert note["version"] == before["version"] + 1
    assert note["body"].startswith("Read this first.\n\n# toy\n")
    assert note["body"].endswith(f"{KEPT}\n\n- *We* built it.\n\n    code\n")
    assert note["body"].count(view_of(study).headline) == before["body"].count(
        view_of(study).headline
    )
    save(study.optuna_study, before["body"])


def test_a_deleted_study_takes_its_files_along(tmp_path: Path) -> None:
    """What was stored for its trials is deleted with it, and its page says that it is gone."""
    made = run_study(tmp_path, trials=0)
    made.run(6, show=Publisher)
    assert stored_files(made) > 0
    for ask in serve(made, read_only=True):
        assert ask("/study/toy")[0] == 200
        delete_study("toy", made.storage)
        assert ask("/study/toy")[0] == 404
    assert stored_files(made) == 0


def stored_files(study: Study) -> int:
    """Count the artifacts in the database."""
    with study.storage.reading() as session:
        return len(session.scalars(select(ArtifactRow.id)).all())


def test_kept_trials_are_those_of_the_study(tmp_path: Path) -> None:
    """A study that takes the number of a deleted one is not shown with its trials."""
    first = run_study(tmp_path, trials=8)
    for ask in serve(first, read_only=True):
        assert "8 of 8 complete" in ask("/study/toy")[1].decode()
        delete_study("toy", first.storage)
        again = run_study(tmp_path, trials=3)
        assert again.optuna_id == first.storage.optuna.get_study_id_from_name("toy")
        assert "3 of 3 complete" in ask("/study/toy")[1].decode()
        assert len(detail(ask, again)["trials"]) == 3


def test_showing_that_fails_harms_no_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search goes on without its note, and says so once."""

    def broken(*args: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr("phaze_opt.report.publishing.design_words", broken)
    made = run_study(tmp_path, trials=0)
    assert made.run(6, show=Publisher).counts.done == 6
    assert capsys.readouterr().err.count("The dashboard is not kept up to date") <= 2


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("done", [3, 12])
def test_of_a_deleted_study_nothing_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], done: int, elsewhere: bool
) -> None:
    """No search goes on, whether trials were left or only the steps from the best design.

    Elsewhere (in Optuna's dashboard) the rows of this program are not deleted.
    """
    made = run_study(tmp_path, trials=2)
    deleted: list[int] = []

    def deleting(*arguments: Any) -> Evaluation:
        if not deleted and made.office().counts().done >= done:
            deleted.append(made.office().counts().done)
            if elsewhere:
                optuna.delete_study(study_name="toy", storage=made.storage.optuna)
            else:
                delete_study("toy", made.storage)
        return toy_evaluator(*arguments)

    made.evaluator = deleting
    with pytest.raises(NotFoundError, match="was deleted or renamed"):
        made.run(12, show=Publisher)
    assert capsys.readouterr().err == ""
    assert (deleted[0] == 12) == (done == 12)


def test_reading_only_refuses_changes(study: Study, ask_read_only: Ask) -> None:
    """With ``--read-only`` a browser can look but not delete."""
    assert ask_read_only("/api/studies")[0] == 200
    code, answer = ask_read_only("/api/studies/1", method="DELETE")
    assert (code, answer["reason"]) == (403, "This dashboard is read-only.")
    assert len(study.trials()) == 30


def test_strangers_are_refused(study: Study, ask: Ask) -> None:
    """Neither under a foreign name nor from a foreign page does the dashboard do anything."""
    assert ask("/api/studies", host="evil.example:80")[0] == 403
    assert ask("/api/studies", host="localhost:1234")[0] == 200
    assert ask("/api/studies/1", method="DELETE", origin="http://evil.example")[0] == 403
    assert len(study.trials()) == 30


def test_optunas_page_breaks_long_attributes(ask: Ask) -> None:
    """Its style comes along with the page, whole, whatever a browser has of it already."""
    code, page = ask("/dashboard/studies/1/trials")
    assert code == 200 and b"overflow-wrap: anywhere" in page
    assert page.rstrip().endswith(b"</html>")


def test_an_address_is_free_again_at_once(study: Study) -> None:
    """A dashboard that was ended begins anew where a browser was connected."""
    server = make_server(study.storage, "127.0.0.1", 0)
    port = server.server_port
    threading.Thread(target=server.handle_request, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/phaze/page.js")
    connection.getresponse().read()
    server.server_close()
    make_server(study.storage, "127.0.0.1", port).server_close()
    connection.close()


LARGEST = ("2147483648", "99999999999999999999999999", "9" * 5000)


@pytest.mark.parametrize("number", ["0", "999", "-1", *LARGEST], ids=lambda number: number[:30])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/studies/{}"),
        ("GET", "/api/studies/{}/param_importances"),
        ("GET", "/api/studies/{}/plot/slice"),
        ("GET", "/csv/{}"),
        ("GET", "/artifacts/{}/abc"),
        ("PUT", "/api/studies/{}/note"),
        ("POST", "/api/trials/{}/tell"),
    ],
)
def test_numbers_that_no_study_has(ask: Ask, method: str, path: str, number: str) -> None:
    """However large they are: the study is missing, and nothing has failed."""
    written = '{"version": 9, "body": "", "state": "fail"}'
    code, answer = ask(path.format(number), method=method, body=written)
    assert code in (400, 404)
    if number not in LARGEST and not path.startswith(("/csv", "/artifacts")):
        assert answer["reason"]


@pytest.mark.parametrize(
    "body",
    [None, "", "{}", '{"version": "a", "body": 1}', '{"directions": [1], "study_name": 2}'],
)
def test_bodies_without_what_is_expected(ask: Ask, study: Study, body: str | None) -> None:
    """A missing key, or a value of another type, is the mistake of whoever asks."""
    before = len(study.trials())
    trial = f"/api/trials/{study.optuna_study.trials[0]._trial_id}"
    for method, path in (
        ("POST", "/api/studies"),
        ("POST", "/api/studies/1/rename"),
        ("PUT", "/api/studies/1/note"),
        ("POST", "/api/studies/1/preference"),
        ("DELETE", "/api/studies/1/preference/abc"),
        ("PUT", "/api/studies/1/preference_feedback_component"),
        ("POST", "/api/artifacts/1"),
        ("POST", f"{trial}/tell"),
        ("POST", f"{trial}/user-attrs"),
    ):
        code, answer = ask(path, method=method, body=body)
        assert 400 <= code < 500 and answer["reason"], (method, path, code)
    assert len(study.trials()) == before


def test_a_finished_trial_is_not_changed(ask: Ask, study: Study) -> None:
    """That is a conflict, and no failure."""
    path = f"/api/trials/{study.optuna_study.trials[0]._trial_id}/tell"
    assert ask(path, method="POST", body='{"state": "fail"}')[0] == 409


@pytest.mark.parametrize("path", ["/favicon.ico", "/static/bundle.js"])
def test_files_for_whoever_names_no_encodings(ask: Ask, study: Study, path: str) -> None:
    """Browsers always do, other programs need not."""
    assert ask(path)[0] == 200
    server = make_server(study.storage, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest("GET", path, skip_accept_encoding=True)
    connection.endheaders()
    assert connection.getresponse().status == 200
    connection.close()
    server.shutdown()
    server.server_close()


def test_the_table_of_a_strangers_study_is_harmless(tmp_path: Path) -> None:
    """Optuna Dashboard's CSV holds no formula, in names or in cells; numbers stay."""
    made = run_study(tmp_path, trials=0)
    link = '=HYPERLINK("http://evil.example","x")'
    stranger = optuna.create_study(storage=made.storage.optuna, study_name="stranger")
    axes = {
        "@axis": optuna.distributions.CategoricalDistribution([link, "\tb"]),
        "below": optuna.distributions.FloatDistribution(-1.0, 0.0),
    }
    stranger.enqueue_trial({"@axis": link, "below": -0.5})
    trial = stranger.ask(axes)
    trial.set_user_attr("+note", "-1-1")
    stranger.tell(trial, -2.5e-7)
    for ask in serve(made, read_only=True):
        code, table = ask(f"/csv/{stranger._study_id}")
        names, row = csv.reader(io.StringIO(table.decode(), newline=""))
        assert code == 200
        assert names[2:] == ["Value", "Param @axis", "Param below", "UserAttribute +note"]
        assert row == ["0", "COMPLETE", "-2.5e-07", f"'{link}", "-0.5", "'-1-1"]


def test_a_taken_port_is_one_sentence(study: Study) -> None:
    """A port that another program uses is named."""
    server = make_server(study.storage, "127.0.0.1", 0)
    with pytest.raises(PhazeError, match="another --port"):
        make_server(study.storage, "127.0.0.1", server.server_port)
    server.server_close()


def test_addresses_are_those_a_browser_takes(study: Study) -> None:
    """An address everywhere is shown as one of this machine, IPv6 in brackets."""
    server = make_server(study.storage, "0.0.0.0", 0)
    assert address_of(server, "a b") == f"http://127.0.0.1:{server.server_port}/study/a%20b"
    server.server_close()
    if socket.has_ipv6:
        server = make_server(study.storage, "[::1]", 0)
        assert urlsplit(address_of(server)).netloc == f"[::1]:{server.server_port}"
        server.server_close()


def test_optuna_sees_feasibility_too(study: Study) -> None:
    """The best trial that Optuna itself names is feasible."""
    loaded = optuna.load_study(study_name=study.name, storage=study.storage.optuna)
    best = study.best()
    assert best is not None
    assert loaded.best_value == max(
        record.metrics.value for record in study.trials() if record.rank and record.metrics
    )
