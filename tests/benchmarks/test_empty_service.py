"""The framework doing nothing."""

import threading
from contextlib import closing

import httpx
import pytest

from benchmarks import empty_service
from services.inventory.serve import Server, bind, url_of


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/v1/reservations", 201), ("GET", "/v1/receipts/k", 200)]
)
def test_what_is_measured_is_answered_and_nothing_looked_at(method: str, path: str, status: int) -> None:
    """Under the inventory's own server: no token, no key, no JSON."""
    ready = threading.Event()
    with closing(bind("127.0.0.1", 0)) as listener:
        server = Server(empty_service.app(), url_of(listener), lambda _url: ready.set())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        assert ready.wait(30)
        answer = httpx.request(method, url_of(listener) + path, content=b"not JSON", trust_env=False)
        server.should_exit = True
        thread.join()
    assert (answer.status_code, answer.content) == (status, empty_service.BODY)
