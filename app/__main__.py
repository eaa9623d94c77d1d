"""`python -m app`, `samestep`: serve the wiki."""

import argparse
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

import uvicorn
from uvicorn.supervisors import ChangeReload, Multiprocess

from samestep.app.book.markdown.pieces import BookError
from samestep.app.main import create_app
from samestep.app.settings import Settings, SettingsError
from samestep.app.web.protocol import BoundedHeadProtocol


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; 1, with one line that says what to do, when that cannot begin."""
    options = _parser().parse_args(arguments)
    try:
        given = Settings.from_environment()
    except SettingsError as error:
        print(f"samestep: {error}", file=sys.stderr)
        return 1
    ahead = not (options.reload or options.no_ahead)
    settings = replace(given, root_path=options.root_path.rstrip("/"), reload=options.reload, ahead=ahead)
    settings.to_environment()
    try:
        listening = _listen(options.host, options.port)
    except OSError as error:
        print(
            f"samestep: cannot listen on {options.host} port {options.port} ({error.strerror}); "
            "choose another with --port, e.g. --port 8001",
            file=sys.stderr,
        )
        return 1
    return _serve(options, settings, listening)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="samestep", description="Serve the SameStep wiki.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on (default %(default)s; 0: any free)")
    parser.add_argument("--workers", type=_count, default=1, help="server processes (default %(default)s)")
    parser.add_argument("--root-path", default="", help="path below which a proxy serves the wiki, e.g. /wiki")
    parser.add_argument("--no-ahead", action="store_true", help="make a page when it is asked for, none before")
    parser.add_argument("--reload", action="store_true", help="show saved chapters, templates and code at once")
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError("must be a number from 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return int(text)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    listening.listen(2048)
    listening.set_inheritable(True)
    return listening


def _serve(options: argparse.Namespace, settings: Settings, listening: socket.socket) -> int:
    try:
        app = create_app(settings)
    except (BookError, FileNotFoundError) as error:
        print(f"samestep: the wiki cannot start; put this right and start again:\n{error}", file=sys.stderr)
        return 1
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else "localhost" if host == "0.0.0.0" else host
    print(f"SameStep: http://{shown}:{port}{settings.root_path}/", flush=True)
    many = options.workers > 1 or options.reload
    config = uvicorn.Config(
        "samestep.app.main:create_app" if many else app,
        factory=many,
        host=options.host,
        port=port,
        workers=options.workers,
        reload=options.reload,
        log_level="warning",
        access_log=False,
        http=BoundedHeadProtocol,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    if options.reload:
        ChangeReload(config, target=server.run, sockets=[listening]).run()
    elif options.workers > 1:
        Multiprocess(config, sockets=[listening]).run()
    else:
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has closed everything, then raises it again
            server.run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())
