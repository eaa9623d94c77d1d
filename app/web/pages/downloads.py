"""Published evidence as files: every file of a bag with its digest, and the whole bag as a zip."""

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from samestep.app.evidence.bags import DamagedError, Library, UnknownEvidenceError, repr_digest
from samestep.app.evidence.zips import Zips
from samestep.app.paths import cache_folder
from samestep.app.web.ready import matches


def evidence_routes(library: Library) -> list[Route]:
    """`/evidence/NAME.zip` and `/evidence/NAME/FILE…`, with GET, HEAD and ranges."""
    downloads = Downloads(library)
    return [
        Route("/evidence/{name}.zip", downloads.bag),
        Route("/evidence/{name}/{path:path}", downloads.file),
    ]


class Downloads:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._zips = Zips(cache_folder() / "evidence")

    async def file(self, request: Request) -> Response:
        """One file as it was published; 409 when it no longer is what the manifest promises."""
        name, path = request.path_params["name"], request.path_params["path"]
        try:
            bag = await run_in_threadpool(self._library.bag, name)
            file = bag.file(path)
        except UnknownEvidenceError:
            raise HTTPException(404) from None
        if file.state != "whole" or file.found is None:
            return refusal(DamagedError(name, file))
        return _download(request, str(bag.folder / path), file.media_type, file.found)

    async def bag(self, request: Request) -> Response:
        """The whole bag; 409 when any of its files is damaged."""
        name = request.path_params["name"]
        try:
            bag = await run_in_threadpool(self._library.bag, name)
            made = await run_in_threadpool(self._zips.of, bag)
        except UnknownEvidenceError:
            raise HTTPException(404) from None
        except DamagedError as error:
            return refusal(error)
        if made.place is not None:
            return _download(request, str(made.place), "application/zip", made.digest, f"{name}.zip")
        headers = _headers(made.digest) | {"content-disposition": f'attachment; filename="{name}.zip"'}
        return Response(made.content, media_type="application/zip", headers=headers)


def _download(request: Request, place: str, media_type: str, sha256: str, filename: str | None = None) -> Response:
    headers = _headers(sha256)
    if matches(request.scope, headers["etag"].encode()):
        return Response(status_code=304, headers=headers)
    return FileResponse(place, media_type=media_type, headers=headers, filename=filename)


def _headers(sha256: str) -> dict[str, str]:
    return {"etag": f'"{sha256}"', "repr-digest": repr_digest(sha256), "cache-control": "no-cache"}


def refusal(error: DamagedError) -> Response:
    """Why a file is not served: the reason in both languages, and the two digests."""
    file = error.file
    body = {
        "detail": file.complaint["en"],
        "detail_zh": file.complaint["zh"],
        "file": f"{error.name}/{file.path}",
        "state": file.state,
        "promised_sha256": file.promised,
        "found_sha256": file.found,
    }
    return JSONResponse(body, 409, {"cache-control": "no-store"})
