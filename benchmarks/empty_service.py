"""The inventory's framework doing nothing: its server and protocol, with handlers that look at nothing.

python -m benchmarks.empty_service PORT
"""

import contextlib
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.inventory.serve import Server, bind, url_of

# As long as the receipt of a reservation of one line.
BODY = b'{"outcome":"committed","nothing":"' + b"x" * 600 + b'"}'


async def _post(request: Request) -> Response:
    await request.body()
    return Response(BODY, status_code=201, media_type="application/json")


async def _get(_request: Request) -> Response:
    return Response(BODY, media_type="application/json")


def app() -> Starlette:
    """The inventory's two paths that are measured."""
    made = Starlette(
        routes=[
            Route("/v1/reservations", _post, methods=["POST"]),
            Route("/v1/receipts/{key}", _get, methods=["GET"]),
        ]
    )
    made.state.draining = False
    return made


def main(port: int) -> None:
    """Serve until SIGTERM."""
    with contextlib.closing(bind("127.0.0.1", port)) as listener:
        Server(app(), url_of(listener), lambda _url: None).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]))
