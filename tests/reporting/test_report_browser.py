"""The report in a real browser: it loads without errors, draws its plots, loads nothing else, and prints.

The system's Chromium is driven over its debugging pipe, NUL-separated JSON on two file descriptors,
which needs no driver package. Nothing is injected into the page, so the tests see what ships.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from pinchpoint.core.records import Forecast, Line, Record, Study
from pinchpoint.reporting import palette
from pinchpoint.reporting.report import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
NASTY = """<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'</script>%{x}"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium or Chrome on this machine; install the distribution's package"
    ),
]


class Browser:
    """One browser with one tab.

    `logs` holds console errors, warnings and uncaught exceptions; `requests` holds every requested address.
    """

    def __init__(self, executable: str, profile: Path, *, timeout_s: float = 40.0) -> None:
        self.logs: list[str] = []
        self.requests: list[str] = []
        self._timeout_s = timeout_s
        self._buffer = b""
        self._count = 0
        self._events: list[str] = []
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser expects its ends at 3 and 4; a shell moves them there without touching ours.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        tab = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=tab["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A browser started with a pipe ends when the pipe is closed.
        os.close(self._out)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, page: Path) -> None:
        """Load a page from disk and wait until its load event and its plots are done."""
        self._events.clear()
        self.send("Page.navigate", url=page.resolve().as_uri())
        self._read_until(lambda: "Page.loadEventFired" in self._events)
        self.evaluate(
            "new Promise(done => { const look = () => window.plotsReady ? done(1) : setTimeout(look, 20);"
            " look(); })"
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def view(self, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Set the window's size and the system's colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            media="",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def pdf(self) -> bytes:
        return base64.b64decode(
            self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        )

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        answer: dict[str, Any] = {}
        self._read_until(lambda: bool(answer), number=number, answer=answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read_until(
        self, done: Callable[[], bool], *, number: int = -1, answer: dict[str, Any] | None = None
    ) -> None:
        end = time.monotonic() + self._timeout_s
        while not done():
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"the browser did not answer within {self._timeout_s} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise AssertionError(f"the browser ended with {self._process.poll()}")
            *whole, self._buffer = (self._buffer + part).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if message.get("id") == number and answer is not None:
                    answer.update(message)
                elif "method" in message:
                    self._note(message["method"], message["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self._events.append(method)
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.logs.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.logs.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.logs.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@pytest.fixture(scope="module")
def browser(report_records: dict[str, Record], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page of every kind, with hostile text in it, open in a light window of 1280 pixels."""
    forecast, study = report_records["forecast"], report_records["study"]
    assert isinstance(forecast, Forecast)
    assert isinstance(study, Study)
    line = Line(f"/home/{NASTY}/model.py", 7, 10**8, "forward", f"x = {NASTY}")
    modules = ({"name": NASTY, "bytes": 10**9}, *forecast.modules)
    hostile = replace(forecast, target=NASTY, notes=(NASTY,), lines=(line, *forecast.lines), modules=modules)
    unknown = {"theory_bytes": None, "breakdown": None, "time_s": None, "modules": ()}
    axis = replace(
        study,
        axis=NASTY,
        points=tuple(replace(p, variant=NASTY, **unknown) for p in study.points[:6]),
        laws=(),
    )
    fewer = replace(study, points=tuple(p for p in study.points if p.variant == "eager"))
    folder = tmp_path_factory.mktemp("report")
    path = report(
        [hostile, axis, fewer, report_records["plan"], report_records["verdict"]], folder / "report.html"
    )
    assert CHROMIUM is not None
    with Browser(CHROMIUM, folder / "profile") as session:
        session.view(width=1280)
        session.open(path)
        yield session


def test_the_page_loads_without_errors_and_requests_nothing_else(browser: Browser) -> None:
    assert browser.logs == []
    assert [a.rpartition("/")[2] for a in browser.requests if not a.startswith("data:")] == ["report.html"]


def test_every_plot_is_drawn_with_marks_in_it(browser: Browser) -> None:
    drawn = browser.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => [p.ariaLabel,"
        " p.querySelectorAll('.main-svg').length,"
        " p.querySelectorAll('.scatterlayer path, .barlayer path').length, p.getBoundingClientRect().width])"
    )
    assert len(drawn) == 18  # forecast 3, plan 1, the hostile study 2, the other 9, verdict 3
    assert [
        title for title, pictures, marks, width in drawn if not (pictures and marks and width > 300)
    ] == []


def test_hostile_text_is_shown_unchanged_and_never_executed(browser: Browser) -> None:
    assert browser.evaluate("window.hacked === undefined")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    expected = json.dumps(NASTY)
    assert browser.evaluate(f"document.querySelector('#r1 h3').textContent === {expected}")
    assert browser.evaluate(f"document.querySelector('#r1 .notes li').textContent === {expected}")
    assert browser.evaluate(
        f"[...document.querySelectorAll('#r1 code')].some(c => c.textContent.includes({expected}))"
    )
    # The same holds in the plots, where plotly.js interprets HTML: a whole axis title, and the end of a
    # module's name.
    titles = "[...document.querySelectorAll('.plot .xtitle')].map(t => t.textContent)"
    assert browser.evaluate(f"{titles}.includes({expected})")
    ticks = "[...document.querySelectorAll('#r1 .plot .ytick text')].map(t => t.textContent)"
    assert browser.evaluate(f"{ticks}.includes('…' + {expected}.slice(-33))")


def test_no_plot_offers_to_send_its_data_away(browser: Browser) -> None:
    buttons = set(
        browser.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
    )
    assert buttons == {"Download plot", "Zoom", "Pan", "Reset axes"}
    assert browser.evaluate("document.querySelectorAll('.plot a[href]').length") == 0


def test_the_theme_follows_the_system_until_the_button_is_pressed(browser: Browser) -> None:
    def colours() -> tuple[str, str]:
        page = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        return page, browser.evaluate("document.querySelector('.plot').layout.paper_bgcolor")

    def expected(theme: dict[str, str]) -> tuple[str, str]:
        red, green, blue = (int(theme["page"][i : i + 2], 16) for i in (1, 3, 5))
        return f"rgb({red}, {green}, {blue})", theme["surface"]

    def require(theme: dict[str, str]) -> None:
        """The plots follow the page some frames later; a busy machine draws few frames."""
        for _ in range(100):
            if colours() == expected(theme):
                return
            browser.evaluate("new Promise(requestAnimationFrame)")
        assert colours() == expected(theme)

    require(palette.LIGHT)
    browser.view(width=1280, scheme="dark")
    require(palette.DARK)
    browser.evaluate("document.querySelector('#theme').click()")
    require(palette.LIGHT)
    browser.evaluate("document.querySelector('#theme').click()")
    require(palette.DARK)


def test_a_legend_entry_hides_its_trace_and_its_law(browser: Browser) -> None:
    figure = "[...document.querySelectorAll('.plot')].filter(p => p.ariaLabel === 'Peak vs points')[0]"
    hidden = f"{figure}.data.filter(t => t.visible === false).map(t => t.name || t.legendgroup)"
    assert browser.evaluate(hidden) == []
    key = f"{figure}.closest('figure').querySelector('.key[data-name=\"eager, train\"]')"
    browser.evaluate(f"{key}.click()")
    assert browser.evaluate(hidden) == ["eager, train"] * 3  # band, law and marks
    assert browser.evaluate(f"{key}.ariaPressed") == "false"
    browser.evaluate(f"{key}.click()")
    assert browser.evaluate(hidden) == []


def test_print_is_light_narrow_and_unfolded_and_the_screen_is_restored(browser: Browser) -> None:
    state = (
        "[document.querySelector('.plot').layout.paper_bgcolor,"
        " document.querySelectorAll('details:not([open])').length,"
        " Math.max(...[...document.querySelectorAll('.plot')].map(p => p._fullLayout.width))]"
    )
    before = browser.evaluate(state)
    # This listener runs after the page's own, so it sees what is printed.
    browser.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {state}; }})")
    document = browser.pdf()
    surface, folded, widest = browser.evaluate("window.printed")
    assert (surface, folded) == (palette.LIGHT["surface"], 0)
    assert widest <= 662  # what A4 leaves between margins of 14 mm and a panel's own
    assert browser.evaluate(state) == before
    assert document.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", document)) > 5


def test_a_narrow_screen_needs_no_horizontal_scrolling(browser: Browser) -> None:
    browser.view(width=390, height=844)
    widths = "[...document.querySelectorAll('.plot .main-svg')].map(s => s.getBoundingClientRect().width)"
    shrunk = (
        f"new Promise(done => {{ const look = () => Math.max(...{widths}) <= 390"
        " ? done(true) : setTimeout(look, 20); look(); })"
    )
    assert browser.evaluate(shrunk)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.logs == []
