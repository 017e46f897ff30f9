"""Several machines on one server: what a worker may do there, TLS, who works, and the end."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url

from phaze_opt.errors import PhazeError
from phaze_opt.evaluation import Evaluation
from phaze_opt.report.layout import to_text
from phaze_opt.report.publishing import Publisher, publish
from phaze_opt.report.workers import workers_table
from phaze_opt.spec.space import known_values
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.leases import expire
from phaze_opt.store.opening import open_storage
from phaze_opt.store.workers import (
    WorkerRecord,
    list_workers,
    worker_to_json_dict,
)
from tests.databases import ROOT, Drive
from tests.sharing.test_merging import QUICK
from tests.study.fakes import quick_study, reopened, toy_evaluator, toy_study
from tests.study.test_processes import PATIENCE_S, counted, wait_until

TLS = ROOT / "tests" / "data" / "tls"
_TLS_REQUEST, _GSS_REQUEST = 80877103, 80877104


def recipe() -> list[str]:
    """Return the statements with which docs/postgresql.md makes the role of the workers."""
    document = (ROOT / "docs" / "postgresql.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sql [^\n]*\n(.*?)```", document, re.DOTALL)
    return [statement for statement in block.split(";") if statement.strip()]


@pytest.fixture
def database(postgresql: str) -> Iterator[URL]:
    """Make the database ``studies``, and remove it and the role of the workers afterwards."""
    url = make_url(postgresql).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE studies"))
    yield url.set(database="studies")
    with engine.connect() as connection:
        connection.execute(text("DROP DATABASE studies WITH (FORCE)"))
        connection.execute(text("DROP ROLE IF EXISTS worker"))
    engine.dispose()


def url_of(url: URL) -> str:
    """Return a URL with its password."""
    return url.render_as_string(hide_password=False)


@pytest.fixture
def worker_url(database: URL) -> str:
    """Make a study, and the role of the workers by the recipe; return the URL with the role.

    No worker finishes the study before the other one has started.
    """
    search = SearchSpec(sampler="nsga2", trials=600, seed=1)
    toy_study(url_of(database), search=search, space=QUICK)
    engine = create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in recipe():
            connection.execute(text(statement))
    engine.dispose()
    return url_of(database.set(username="worker", password="secret"))


def test_workers_step_by_step(database: URL, worker_url: str, drive: Drive) -> None:
    """Two processes under the role of the workers are listed and stopped; a third goes on."""
    study = reopened(url_of(database))
    assert list_workers(study) == []
    options = ("--evaluator", "slow_evaluator", "--lease", "5")
    running = [drive(worker_url, *options) for _ in "12"]
    looks = []

    def both() -> bool:
        # Between two trials a worker holds nothing, and is not listed.
        looks.append(list_workers(study))
        return len(looks[-1]) == 2

    wait_until(both)
    workers = [worker_to_json_dict(record) for record in looks[-1]]
    assert {worker["process"] for worker in workers} == {worker.pid for worker in running}
    assert {worker["host"] for worker in workers} == {socket.gethostname()}
    assert {worker["state"] for worker in workers} == {"working"}
    for worker in workers:
        assert 0.0 <= worker["since_s"] < PATIENCE_S
        assert 0.0 < worker["lease_left_s"] <= 5.0
    lines = to_text(workers_table(list_workers(study))).splitlines()
    heads = ["study", "host", "process", "trial", "since", "lease", "state", "code"]
    assert lines[0].split() == heads
    study.stop()
    for process in running:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, ""), out + err
    assert list_workers(study) == []
    done = study.office().counts().done
    assert done < 600
    last = drive(worker_url, "--total", str(done + 2))
    assert last.communicate(timeout=PATIENCE_S)[1] == ""
    kinds = counted(study)
    assert kinds["feasible"] + kinds["infeasible"] == study.office().counts().done == done + 2
    assert kinds["running"] == 0


def test_a_worker_may_not_harm(worker_url: str) -> None:
    """It reads and works; it neither makes, alters nor deletes studies, and drops no table."""
    study = reopened(worker_url)
    study.run(3, show=Publisher)
    publish(study)
    assert study.summary().trials["complete"] == 3
    assert study.best() is not None
    with pytest.raises(DatabaseError, match="permission denied"):
        study.delete()
    with pytest.raises(DatabaseError, match="permission denied"):
        quick_study(worker_url, name="another")
    for statement in (
        "UPDATE phaze_study SET resolved = ''",
        "UPDATE studies SET study_name = 'mine'",
        "DELETE FROM trials",
        "DELETE FROM phaze_ticket",
        "DROP TABLE phaze_evaluation",
        "ALTER TABLE phaze_study ADD COLUMN mine text",
        "CREATE TABLE mine (id integer)",
    ):
        with (
            pytest.raises(DatabaseError, match=r"permission denied|must be owner"),
            study.storage.writing() as session,
        ):
            session.execute(text(statement))
    assert study.run(4).counts.done == 4


def test_a_worker_that_is_gone(any_url: str) -> None:
    """A lease that is over, and a process of this machine that has ended, are said to be gone."""
    study = quick_study(any_url)
    office = study.office()
    office.issue(2)
    for token in ("a.1.x", "older token"):
        assert office.claim(token, 2) is not None
    expire(study.storage, ["a.1.x"])
    first, second = list_workers(study)
    assert (first.process, first.state, first.trial, first.params) == (1, "gone", None, None)
    assert (second.process, second.state) == (None, "working")


def test_a_worker_says_its_design(sqlite_url: str) -> None:
    """By the names and values of the axes, as trials have them, not as Optuna stores them."""
    study = quick_study(sqlite_url)
    looks: list[WorkerRecord] = []

    def looking(*args: Any) -> Evaluation:
        looks.extend(list_workers(study))
        return toy_evaluator(*args)

    study.evaluator = looking
    study.run(2)
    trials = {trial.number: trial.point for trial in study.trials()}
    assert looks  # a design above the area limit is not evaluated
    for record in looks:
        point = trials[record.trial or 0]
        assert point is not None and record.params == point.by_name
    shown = " ".join(to_text(workers_table(looks[-1:])).split())
    assert f"trial {looks[-1].trial} of toy: " in shown and "log2" not in shown
    known = known_values(study.resolved.spec.space, {"log2_num_tc": 3, "unknown": 1})
    assert known == {"num_tc": 8}


def _serve(
    listener: socket.socket, context: ssl.SSLContext | None, server: str, seen: list[str]
) -> None:
    """Speak TLS with every client, and pass what it says on to the server, or refuse to."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with suppress(OSError):
            request = int.from_bytes(client.recv(8)[4:], "big")
            if request == _GSS_REQUEST:
                client.sendall(b"N")
                request = int.from_bytes(client.recv(8)[4:], "big")
            assert request == _TLS_REQUEST
            if context is None:
                client.sendall(b"N")
                client.close()
                continue
            client.sendall(b"S")
            secret = context.wrap_socket(client, server_side=True)
            seen.append(str(secret.version()))
            plain = socket.socket(socket.AF_UNIX)
            plain.connect(server)
            for source, target in ((secret, plain), (plain, secret)):
                threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass on until one side ends."""
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for connection in (source, target):
        with suppress(OSError):
            connection.close()


@contextmanager
def tls_in_front_of(url: URL, *, offered: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Open a port at which a server without TLS is reached with it; give the versions seen."""
    context = None
    if offered:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"{url.query['host']}/.s.PGSQL.{url.port or 5432}"
        arguments = (listener, context, server, seen)
        threading.Thread(target=_serve, args=arguments, daemon=True).start()
        yield listener.getsockname()[1], seen


def test_tls_in_the_url(database: URL) -> None:
    """The options of the driver are passed on: the server's certificate is demanded and checked."""

    def through(port: int, certificate: Path) -> str:
        query = {"sslmode": "verify-full", "sslrootcert": str(certificate)}
        return url_of(database.set(host="localhost", port=port, query=query))

    with tls_in_front_of(database) as (port, seen):
        study = quick_study(through(port, TLS / "server.pem"))
        assert study.run().counts.done == 3
        study.storage.close()
        assert set(seen) <= {"TLSv1.2", "TLSv1.3"} and seen
        number = len(seen)
        with pytest.raises(PhazeError, match="certificate verify failed") as caught:
            open_storage(through(port, TLS / "other.pem"))
        assert "\n" not in str(caught.value)
        assert len(seen) == number
    with tls_in_front_of(database, offered=False) as (port, seen):
        with pytest.raises(PhazeError, match="does not support SSL"):
            open_storage(through(port, TLS / "server.pem"))
        assert seen == []
