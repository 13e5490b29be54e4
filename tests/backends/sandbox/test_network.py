"""The network: a script downloads, but sends nothing unless that is allowed."""

from __future__ import annotations

import http.server
import importlib.util
import textwrap
import threading

import pytest


@pytest.fixture
def server():
    """A server of another process; it lists the requests that reach it."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            requests.append((self.command, self.path))
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"data")

        do_GET = do_HEAD = do_POST = do_PUT = answer

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.requests = requests
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def address(server):
    return f"http://127.0.0.1:{server.server_address[1]}/file"


def test_downloads_work_and_posts_are_refused(run_sandboxed, server):
    source = """
        import http.client, sys, urllib.error, urllib.request
        url = sys.argv[1]
        print(urllib.request.urlopen(url).read())
        print(urllib.request.urlopen(urllib.request.Request(url, method="HEAD")).status)
        for method in ("POST", "PUT"):
            try: urllib.request.urlopen(urllib.request.Request(url, data=b"x", method=method))
            except urllib.error.URLError as error: print("pinchpoint sends nothing" in str(error))
        step()
    """
    end = run_sandboxed(source, address(server), steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == ["b'data'", "200", "True", "True"]
    assert server.requests == [("GET", "/file"), ("HEAD", "/file")]
    port = server.server_address[1]
    assert end.notes == [
        "the script could not send data, and these requests were refused: "
        f"POST 127.0.0.1:{port}, PUT 127.0.0.1:{port} (--allow-network permits them)"
    ]


LIBRARIES = {
    "requests": """
        import requests as library
        print(library.get(url).text)
        try: library.post(url, json={})
        except library.exceptions.ConnectionError: print("refused")
    """,
    "urllib3": """
        import urllib3 as library
        print(library.request("GET", url, retries=False).data.decode())
        try: library.request("POST", url, retries=False)
        except library.exceptions.HTTPError: print("refused")
    """,
    "httpx": """
        import httpx as library
        print(library.get(url).text)
        try: library.post(url)
        except library.ConnectError: print("refused")
    """,
    "httpx2": """
        import asyncio
        import httpx2 as library
        print(library.get(url).text)
        async def send():
            async with library.AsyncClient() as client:
                assert (await client.get(url)).status_code == 200
                await client.post(url)
        try: asyncio.run(send())
        except library.ConnectError: print("refused")
    """,
    "aiohttp": """
        import asyncio
        import aiohttp as library
        async def run():
            async with library.ClientSession() as session:
                async with session.get(url) as answer: print(await answer.text())
                for send in (lambda: session.post(url), lambda: session.ws_connect(url)):
                    try:
                        async with send(): print("sent")
                    except library.ClientConnectionError as error: last = error
                print("refused" if isinstance(last, OSError) else last)
        asyncio.run(run())
    """,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_http_libraries_raise_their_own_errors(run_sandboxed, server, library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    source = f"import sys\nurl = sys.argv[1]\n{textwrap.dedent(LIBRARIES[library])}\nstep()\n"
    end = run_sandboxed(source, address(server), steps=1, env={"NO_PROXY": "127.0.0.1"})
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == ["data", "refused"]
    assert {method for method, _ in server.requests} == {"GET"}


def test_other_connections_are_refused_except_to_the_script_itself(run_sandboxed, server):
    source = """
        import asyncio, errno, http.server, os, smtplib, socket, sys, threading, urllib.request
        port = int(sys.argv[1])
        ways = {
            "create_connection": lambda: socket.create_connection(("127.0.0.1", port)),
            "smtp": lambda: smtplib.SMTP("127.0.0.1", port),
            "asyncio": lambda: asyncio.run(asyncio.open_connection("127.0.0.1", port)),
            "sendto": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
            "unix": lambda: socket.socket(socket.AF_UNIX).connect("/run/other.sock"),
        }
        for name, way in ways.items():
            try: way()
            except ConnectionRefusedError as error: assert "pinchpoint sends nothing" in str(error)
            else: print("connected:", name)
        assert socket.socket().connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        socket.socket(type=socket.SOCK_DGRAM).connect(("127.0.0.1", 9))

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(204)
                self.end_headers()
            def log_message(self, *args): pass

        own = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=own.serve_forever, daemon=True).start()
        request = urllib.request.Request(f"http://localhost:{own.server_address[1]}/", data=b"x")
        print(urllib.request.urlopen(request).status)
        socket.create_connection(own.server_address)
        step()
    """
    end = run_sandboxed(source, str(server.server_address[1]), steps=1, env={"NO_PROXY": "*"})
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == ["204"]
    assert server.requests == []


def test_a_script_that_needs_to_send_gets_the_name_of_the_option(run_sandboxed, server):
    source = """
        import sys, urllib.request
        print(urllib.request.urlopen(sys.argv[1], data=b"x").status)
        step()
    """
    end = run_sandboxed(source, address(server), steps=1)
    assert end.exit_code == 2
    assert "'train.py' sends data at" in end.fault["what"]
    assert end.fault["hint"].startswith("Add --allow-network")
    end = run_sandboxed(source, address(server), steps=1, allow_network=True)
    assert (end.kind, end.output, end.notes) == ("stopped", ["200"], [])
    assert server.requests == [("POST", "/file")]


def test_lists_of_files_on_the_hub_may_be_asked_for(run_sandboxed, server):
    source = """
        import sys, urllib.request
        url = sys.argv[1] + "/api/datasets/a/b/paths-info/main"
        print(urllib.request.urlopen(url, data=b"paths=x").status)
        step()
    """
    end = run_sandboxed(source, address(server), steps=1)
    assert (end.kind, end.output, end.notes) == ("stopped", ["200"], [])
