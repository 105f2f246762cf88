"""The HTTP server of the dashboard.

Each page has one address. It answers HTML, the same data as JSON (`Accept: application/json`, or
`?format=json`), or a stream of changes (`Accept: text/event-stream`) that the open page listens to.

Nothing can be changed here, and nobody has to log in. So the server accepts only requests to the name of this
machine's loopback, which no page of another host can forge by a name of its own (DNS rebinding).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from types import MappingProxyType

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from dledger.client import ClientError
from dledger.dashboard.facts import Facts
from dledger.dashboard.pages.page import Asked, NotThere, Page, WrongWords
from dledger.dashboard.pages.registry import PAGES
from dledger.dashboard.rendering import render, render_problem
from dledger.dashboard.watching import Watching
from dledger.dashboard.wording import LANGUAGES, Wording, choose_language
from dledger.web.port import HttpPort

LIVE_EVERY_S = 3.0
"""Time between two looks of an open page, in seconds."""
MAX_LIVE = 32
"""Largest number of open pages that get changes. Further ones stay as they are."""
PAGE_LIMIT_S = 20.0
"""Longest time to load a page, in seconds. After it the page says that the cluster is too slow."""
MAX_ADDRESS = 4096
"""Longest address that is accepted, in characters."""
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
"""Names in the header Host that mean this machine."""
LANGUAGE_COOKIE = "dledger-language"
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
"""Headers of every answer: a page runs no script but ours, and is shown in no frame."""
FILES = MappingProxyType(
    {
        "dashboard.css": ("static", "text/css"),
        "dashboard.js": ("static", "text/javascript"),
        "icon.svg": ("static", "image/svg+xml"),
        "uPlot.iife.min.js": ("vendor", "text/javascript"),
        "uPlot.min.css": ("vendor", "text/css"),
        "idiomorph.min.js": ("vendor", "text/javascript"),
    }
)
"""The files that pages use, each with its folder and its type."""


class Dashboard:
    """Serves the pages of some clusters."""

    def __init__(self, clusters: Sequence[Watching]) -> None:
        self._clusters = {one.name: one for one in clusters}
        self._facts = {one.name: Facts() for one in clusters}
        self._live = 0
        self._closing = asyncio.Event()
        package = resources.files("dledger.dashboard")
        self._files = {name: (package / at / name).read_bytes() for name, (at, _) in FILES.items()}
        self._port = HttpPort()
        app = self._port.application
        app.middlewares.append(self._guarded)
        app.router.add_get("/", self._root)
        app.router.add_get("/static/{file}", self._file)
        for page in PAGES:
            app.router.add_get(f"/{{cluster}}/{page.path}", self._handler(page))

    async def start(self, host: str, port: int) -> int:
        """Begin to listen. Returns the port. Raises OSError, which names the address, if that fails."""
        await self._port.start(host, port)
        return self._port.addresses[0][1]

    async def close(self) -> None:
        """Stop the server. Open pages get no further changes."""
        self._closing.set()
        await self._port.close()

    # Every request

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.url.host if "Host" in request.headers else None
        if host not in LOOPBACK:
            raise web.HTTPForbidden(
                text=f"this dashboard answers only on this machine, not as {host!r}\n", headers=HEADERS
            )
        fetched = request.headers.get("Sec-Fetch-Site") == "cross-site"
        if fetched and request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise web.HTTPForbidden(text="a page of another host may not load this\n", headers=HEADERS)
        if len(request.raw_path) > MAX_ADDRESS:
            raise web.HTTPBadRequest(text="the address is too long\n", headers=HEADERS)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _wording(self, request: web.Request) -> Wording:
        asked = request.query.get("lang") or request.cookies.get(LANGUAGE_COOKIE, "")
        return Wording(choose_language(asked, request.headers.get("Accept-Language", "")[:200]))

    async def _root(self, request: web.Request) -> web.StreamResponse:
        if len(self._clusters) == 1:
            raise web.HTTPFound(f"/{next(iter(self._clusters))}/")
        wording = self._wording(request)
        text = render_problem(wording("Clusters"), "", wording=wording, clusters=tuple(self._clusters))
        return web.Response(text=text, content_type="text/html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound(text="there is no such file\n")
        return web.Response(body=self._files[name], content_type=FILES[name][1], charset="utf-8")

    # Pages

    def _handler(self, page: Page) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            cluster = self._clusters.get(request.match_info["cluster"])
            if cluster is None:
                raise web.HTTPNotFound(text=f"there is no cluster {request.match_info['cluster']!r} here\n")
            names = {key: text for key, text in request.match_info.items() if key != "cluster"}
            asked = Asked(cluster, self._facts[cluster.name], names, dict(request.query))
            cluster.asked()
            accepted = request.headers.get("Accept", "")
            if "text/event-stream" in accepted:
                return await self._stream(request, page, asked)
            as_json = request.query.get("format") == "json" or (
                "application/json" in accepted and "text/html" not in accepted
            )
            return await self._answer(request, page, asked, as_json=as_json)

        return handle

    async def _answer(
        self, request: web.Request, page: Page, asked: Asked, *, as_json: bool
    ) -> web.StreamResponse:
        wording = self._wording(request)
        try:
            async with asyncio.timeout(PAGE_LIMIT_S):
                data = await page.load(asked)
        except (NotThere, WrongWords, ClientError, TimeoutError) as error:
            status, title, text = _problem(error)
            if as_json:
                return web.json_response({"error": text or title}, status=status)
            told = render_problem(wording(title), text, wording=wording, clusters=tuple(self._clusters))
            return web.Response(text=told, status=status, content_type="text/html")
        if as_json:
            return web.Response(body=msgspec.json.encode(data), content_type="application/json")
        answer = web.Response(text=self._render(request, page, asked, data), content_type="text/html")
        if request.query.get("lang") in LANGUAGES:
            answer.set_cookie(LANGUAGE_COOKIE, request.query["lang"], httponly=True, samesite="Strict")
        return answer

    def _render(
        self, request: web.Request, page: Page, asked: Asked, data: msgspec.Struct, *, only_main: bool = False
    ) -> str:
        return render(
            page,
            data,
            wording=self._wording(request),
            cluster=asked.cluster.name,
            clusters=tuple(self._clusters),
            command=page.command(asked),
            address=str(request.rel_url),
            languages={code: str(request.rel_url.update_query(lang=code)) for code in LANGUAGES},
            only_main=only_main,
        )

    async def _stream(self, request: web.Request, page: Page, asked: Asked) -> web.StreamResponse:
        """Send the changing part of a page whenever it is another one, until the browser leaves."""
        if self._live >= MAX_LIVE:
            raise web.HTTPServiceUnavailable(text="too many open pages\n")
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._live += 1
        try:
            await answer.prepare(request)
            before = ""
            while not self._closing.is_set():
                asked.cluster.asked()
                self._port.served(request)
                try:
                    async with asyncio.timeout(PAGE_LIMIT_S):
                        data = await page.load(asked)
                    text = self._render(request, page, asked, data, only_main=True)
                    event = msgspec.json.encode({"main": text}).decode()
                except (NotThere, WrongWords, ClientError, TimeoutError) as error:
                    _, title, told = _problem(error)
                    event = msgspec.json.encode({"problem": told or self._wording(request)(title)}).decode()
                await answer.write(b": nothing new\n\n" if event == before else f"data: {event}\n\n".encode())
                before = event
                with suppress(TimeoutError):
                    async with asyncio.timeout(LIVE_EVERY_S):
                        await self._closing.wait()
        except ConnectionResetError:
            return answer  # the browser has left
        finally:
            self._live -= 1
        return answer


def _problem(error: Exception) -> tuple[int, str, str]:
    """The status, the title and the text for what went wrong."""
    if isinstance(error, NotThere):
        return 404, "There is no such thing", str(error)
    if isinstance(error, WrongWords):
        return 400, "This cannot be asked", str(error)
    if isinstance(error, TimeoutError):
        return 504, "The cluster answers too slowly", ""
    return 502, "The cluster does not answer", str(error)
