"""The playground in a real browser: `make test-page`."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.core.engine_core import EngineCore
from server.http.auth import KeyRing
from tests.support.engine.running import oracle
from tests.support.engine.tiny_models import VOCAB
from tests.support.server.fakes import FakeEngine, app_with, served
from tests.support.server.responses import events_of
from tests.support.server.tiny_service import TinyService, tiny_service

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra [page]")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra [page]")

pytestmark = pytest.mark.page

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
WIDTHS = [(1440, 900), (375, 812)]
OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """open_page(url) opens the playground; no request may leave its origin, no script may fail."""
    opened: list[tuple[str, list[str], list[str]]] = []
    contexts = []

    def opening(url: str, *, size: tuple[int, int] = WIDTHS[0], **options: Any) -> Any:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        contexts.append(context)
        requests: list[str] = []
        errors: list[str] = []
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if "Content Security" in m.text else 0)
        page.goto(url)
        opened.append((url, requests, errors))
        return page

    yield opening
    for context in contexts:
        context.close()
    for url, requests, errors in opened:
        origin = "/".join(url.split("/")[:3]) + "/"
        assert [address for address in requests if not address.startswith(origin)] == []
        assert errors == []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyService]:
    with tiny_service(tmp_path_factory.mktemp("tiny")) as service:
        yield service


@contextmanager
def slow_steps(seconds: float = 0.03) -> Iterator[None]:
    step = EngineCore.step

    def slowly(self: EngineCore, **options: Any) -> Any:
        time.sleep(seconds)
        return step(self, **options)

    with patch.object(EngineCore, "step", slowly):
        yield


@contextmanager
def good_drafts(tiny: TinyService, text: str, num_tokens: int) -> Iterator[None]:
    """Draft two correct tokens and then wrong ones, after this message."""
    chat = {"messages": [{"role": "user", "content": text}]}
    prompt = httpx.post(f"{tiny.url}/tokenize", json=chat).json()["tokens"]
    params = {"max_new_tokens": num_tokens, "temperature": 0, "num_draft_tokens": 0}
    plain = httpx.post(f"{tiny.url}/generate", json={**chat, "sampling_params": params}).json()
    with oracle([prompt + plain["output_ids"]], good=2, vocab=VOCAB):
        yield


def set_sampling(page: Any, **values: object) -> None:
    for name, value in values.items():
        page.fill(f"#sampling [name={name}]", str(value))


def send(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.click("#send")


def wait_for_completion(page: Any) -> None:
    page.wait_for_selector("#send:not([hidden])")


def test_a_chat_is_streamed_and_kept_in_the_history(tiny: TinyService, open_page: OpenPage) -> None:
    page = open_page(f"{tiny.url}/")
    set_sampling(page, max_new_tokens=24, temperature=0)
    with slow_steps():
        send(page, "hello")
        page.wait_for_selector(".assistant .token", state="attached")
        num_early = page.locator(".assistant .token").count()
        wait_for_completion(page)
    assert num_early < 24
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "sampling_params": {"max_new_tokens": 24, "temperature": 0},
    }
    whole = httpx.post(f"{tiny.url}/generate", json=body).json()
    assert page.locator(".assistant .tokens").text_content() == whole["text"]
    assert page.locator(".foot").last.inner_text().startswith("24 tokens")
    page.reload()
    page.click("#open-history")
    page.click("#history button")
    assert page.locator(".assistant .tokens").text_content() == whole["text"]
    assert page.locator(".assistant .token").count() == 24


def test_a_chat_sends_its_system_prompt_and_earlier_messages(open_page: OpenPage) -> None:
    engine = FakeEngine("hello")
    with served(app_with(engine)) as url:
        page = open_page(f"{url}/")
        page.click("#system-row summary")
        page.fill("#system", "Be kind.")
        for text in ("one", "two"):
            send(page, text)
            wait_for_completion(page)
    prompt = bytes(i for i in engine.requests[-1].prompt_ids if i < 256).decode()
    assert [prompt.index(part) for part in ("Be kind.", "one", "hello", "two")] == sorted(
        prompt.index(part) for part in ("Be kind.", "one", "hello", "two")
    )


def test_a_completion_continues_the_text_as_it_is(open_page: OpenPage) -> None:
    engine = FakeEngine("defg")
    with served(app_with(engine)) as url:
        page = open_page(f"{url}/")
        page.click("#tab-completion")
        send(page, "abc")
        wait_for_completion(page)
        assert page.locator(".assistant .tokens").text_content() == "defg"
        assert bytes(i for i in engine.requests[0].prompt_ids if i < 256) == b"abc"


def test_stop_aborts_the_request_and_frees_its_pages(
    tiny: TinyService, open_page: OpenPage
) -> None:
    page = open_page(f"{tiny.url}/")
    tiny.wait_until_idle()
    set_sampling(page, max_new_tokens=80, temperature=0)
    with slow_steps(0.1):
        send(page, "a long story")
        page.wait_for_selector(".assistant .token", state="attached")
        assert tiny.live()["num_used_pages"] > 0
        page.click("#stop")
        wait_for_completion(page)
    tiny.wait_until_idle()
    assert page.locator(".foot").last.inner_text().endswith("stopped")
    assert 0 < page.locator(".assistant .token").count() < 80


def test_tokens_are_coloured_by_the_source_that_the_api_reports(
    tiny: TinyService, open_page: OpenPage
) -> None:
    text = "where from"
    page = open_page(f"{tiny.url}/")
    set_sampling(page, max_new_tokens=20, temperature=0)
    with good_drafts(tiny, text, 20):
        body = {
            "messages": [{"role": "user", "content": text}],
            "sampling_params": {"max_new_tokens": 20, "temperature": 0},
            **dict.fromkeys(
                ("stream", "incremental_stream_output", "token_by_token", "return_rounds"), True
            ),
        }
        rounds = [
            event["meta_info"]["rounds"][0]
            for event in events_of(httpx.post(f"{tiny.url}/generate", json=body).text)
        ]
        send(page, text)
        wait_for_completion(page)
    expected = [
        [r["source"] if r["position"] < r["accepted"] else "target", str(r["position"] + 1)]
        for r in rounds
    ]
    assert {source for source, _ in expected} == {"draft", "target"}
    spans = page.locator(".assistant .token")
    found = spans.evaluate_all("all => all.map(s => [s.dataset.source, s.dataset.position])")
    assert found == expected
    drafted = next(i for i, (source, _) in enumerate(expected) if source == "draft")
    colour = "s => getComputedStyle(s).backgroundColor"
    assert spans.nth(drafted).evaluate(colour) != spans.nth(0).evaluate(colour)
    spans.nth(drafted).hover()
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("draft model, position 1 · probability ")
    assert "round 2, 2 of " in tip
    page.check("#plain")
    assert spans.nth(drafted).evaluate(colour) == spans.nth(0).evaluate(colour)


def test_tokens_of_lookups_are_coloured_and_counted_live(
    tmp_path: Path, open_page: OpenPage
) -> None:
    body = {
        "messages": [{"role": "user", "content": "again and again and again"}],
        "sampling_params": {"max_new_tokens": 80, "temperature": 0},
        **dict.fromkeys(
            ("stream", "incremental_stream_output", "token_by_token", "return_rounds"), True
        ),
    }
    with tiny_service(tmp_path, engine={"lookup": "on"}) as service:
        rounds = [
            event["meta_info"]["rounds"][0]
            for event in events_of(httpx.post(f"{service.url}/generate", json=body).text)
        ]
        page = open_page(f"{service.url}/")
        set_sampling(page, max_new_tokens=80, temperature=0)
        send(page, "again and again and again")
        wait_for_completion(page)
        expected = [r["source"] if r["position"] < r["accepted"] else "target" for r in rounds]
        assert "lookup" in expected
        spans = page.locator(".assistant .token")
        assert spans.evaluate_all("all => all.map(s => s.dataset.source)") == expected
        first = expected.index("lookup")
        spans.nth(first).hover()
        position = rounds[first]["position"] + 1
        assert page.locator("#tip").inner_text().startswith(f"lookup, position {position} · ")
        percent = math.floor(100 * expected.count("lookup") / len(expected) + 0.5)
        page.wait_for_selector(f"#live-sources:has-text('lookup {percent} %')")
        most = max(r["drafted"] for r in rounds)
        page.wait_for_selector(f"#live-positions [aria-label^='position {most}:']")


def test_arrow_keys_read_out_where_tokens_came_from(open_page: OpenPage) -> None:
    with served(app_with(FakeEngine("abc"))) as url:
        page = open_page(f"{url}/")
        send(page, "x")
        wait_for_completion(page)
        page.focus(".assistant .tokens")
        page.keyboard.press("ArrowRight")
        assert page.locator("#status").text_content().startswith("a: draft model, position 1")
        page.keyboard.press("ArrowRight")
        assert page.locator("#status").text_content().startswith("b: draft model, position 2")
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()


def test_a_race_reports_the_same_tokens(tiny: TinyService, open_page: OpenPage) -> None:
    page = open_page(f"{tiny.url}/")
    page.click("#tab-race")
    page.check("#race-third")
    page.fill("#race-tokens", "24")
    page.click("#race-start")
    page.wait_for_selector("#verdict:not([hidden])")
    assert page.locator("#verdict").inner_text().startswith("Same tokens in all lanes.")
    assert page.locator(".lane .result strong").count() == 3
    assert len(set(page.locator(".lane .tokens").all_text_contents())) == 1


def test_a_race_names_the_first_difference(tiny: TinyService, open_page: OpenPage) -> None:
    page = open_page(f"{tiny.url}/")
    page.click("#tab-race")
    page.fill("#race-tokens", "12")
    page.locator(".lane input").nth(1).fill('{"logit_bias": {"40": 100}}')
    page.click("#race-start")
    page.wait_for_selector("#verdict:not([hidden])")
    assert page.locator("#verdict").inner_text().startswith("First difference at token ")
    page.fill("#race-temperature", "0.8")
    page.click("#race-start")
    page.wait_for_selector("#verdict:has-text('share only the distribution')")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_race_that_switches_the_server_asks_and_restores_the_mode(
    is_stopped: bool, tiny: TinyService, open_page: OpenPage
) -> None:
    def mode() -> str:
        found: str = httpx.get(f"{tiny.url}/server_info").json()["context_kv"]["mode"]
        return found

    assert mode() == "auto"
    page = open_page(f"{tiny.url}/")
    page.click("#tab-race")
    page.fill("#race-tokens", "40")
    page.locator(".lane select").nth(0).select_option(label="Per-layer context KV")
    page.click("#race-start")
    page.click("#switch-dialog button[value=cancel]")
    assert page.locator(".lane .tokens").count() == 0
    with slow_steps():
        page.click("#race-start")
        page.click("#switch-dialog button[value=go]")
        page.wait_for_selector(".lane .token", state="attached")
        assert mode() == "off"
        if is_stopped:
            page.click("#race-stop")
        page.wait_for_selector("#race-start:not([hidden])")
    assert mode() == "auto"
    verdict = page.locator("#verdict").inner_text()
    assert verdict == "Stopped." if is_stopped else verdict.startswith("Same tokens")


def test_a_wrong_key_is_named_and_a_right_one_stays_in_the_tab(open_page: OpenPage) -> None:
    with served(app_with(FakeEngine("hello"), keys=KeyRing(callers=("right",)))) as url:
        page = open_page(f"{url}/")
        page.wait_for_selector("#key-dialog[open]")
        assert "needs a key" in page.locator("#key-message").inner_text()
        page.fill("#key", "wrong")
        page.click("#key-form button[value=save]")
        page.wait_for_selector("#key-message:has-text('does not accept this key')")
        page.fill("#key", "right")
        page.click("#key-form button[value=save]")
        send(page, "hi")
        page.wait_for_selector(".assistant .tokens:has-text('hello')")
        kept = page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
        assert ["right" in text for text in kept] == [False, True]


def test_the_context_kv_switch_uses_the_admin_key(open_page: OpenPage) -> None:
    engine = FakeEngine()
    keys = KeyRing(callers=("right",), admins=("boss",))
    with served(app_with(engine, keys=keys)) as url:
        page = open_page(f"{url}/")
        page.fill("#key", "right")
        page.click("#key-form button[value=save]")
        page.wait_for_selector("#kv-reason:has-text('layer 1 has a bias')")
        page.click("#kv-mode label:has-text('off')")
        page.wait_for_selector("#key-message:has-text('admin key')")
        page.fill("#admin-key", "boss")
        page.click("#key-form button[value=save]")
        page.click("#kv-mode label:has-text('off')")
        page.wait_for_function("document.querySelector('#kv-mode [value=off]').checked")
        page.wait_for_timeout(200)
        assert engine.mode == "off"
        page.click("#kv-mode label:has-text('on')")
        page.wait_for_selector("#kv-error:has-text('stacked cannot hold')")


class CutStreams:
    """Ends each completion after its first chunk: with an error, or as if it were complete."""

    def __init__(self, app: ASGIApp, *, cleanly: bool) -> None:
        self._app = app
        self._cleanly = cleanly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/generate":
            return await self._app(scope, receive, send)
        is_cut = False

        async def cutting(message: Message) -> None:
            nonlocal is_cut
            if is_cut:
                return
            await send(message)
            if message["type"] == "http.response.body":
                is_cut = True
                if not self._cleanly:
                    raise ConnectionError("cut")
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await self._app(scope, receive, cutting)
        except ConnectionError:
            scope["transport_is_cut"] = True


@pytest.mark.parametrize(
    ("cleanly", "message"),
    [
        (True, "ended the stream before the completion"),
        (False, "connection to the server was lost"),
    ],
)
def test_a_server_that_ends_in_mid_stream_is_reported(
    cleanly: bool, message: str, open_page: OpenPage
) -> None:
    app: Any = CutStreams(app_with(FakeEngine("hello world")), cleanly=cleanly)
    with served(app) as url:
        page = open_page(f"{url}/")
        send(page, "x")
        page.wait_for_selector(f".assistant .note:has-text('{message}')")
        wait_for_completion(page)
        assert page.locator(".foot").last.inner_text().endswith("incomplete")


def test_a_server_that_is_gone_is_reported(open_page: OpenPage) -> None:
    with served(app_with(FakeEngine())) as url:
        page = open_page(f"{url}/")
    send(page, "x")
    page.wait_for_selector(".assistant .note:has-text('cannot be reached')")
    assert page.input_value("#prompt") == "x"


def test_an_error_of_the_server_is_shown_as_it_is(open_page: OpenPage) -> None:
    with served(app_with(FakeEngine())) as url:
        page = open_page(f"{url}/")
        set_sampling(page, top_p=7)
        send(page, "x")
        page.wait_for_selector(".assistant .note:has-text('sampling_params.top_p')")


@pytest.mark.parametrize("size", WIDTHS, ids=str)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_layout_holds_and_axe_finds_no_serious_fault(
    size: tuple[int, int], scheme: str, open_page: OpenPage
) -> None:
    with served(app_with(FakeEngine("hello world, " * 20, max_len=2000))) as url:
        page = open_page(f"{url}/", size=size, color_scheme=scheme)
        send(page, "x" * 200)
        wait_for_completion(page)
        page.wait_for_selector("#live-pages:has-text('8')")
        for tab in ("chat", "completion", "race"):
            page.click(f"#tab-{tab}")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            check_with_axe(page)
        page.click("#open-history")
        check_with_axe(page)


def check_with_axe(page: Any) -> None:
    violations = axe.Axe().run(page).response["violations"]
    serious = [v for v in violations if v["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(serious, indent=1)[:3000]


class UnderPrefix:
    """Serves an app under /llm, as a reverse proxy does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith("/llm/"), scope["path"]
        await self._app({**scope, "path": scope["path"][4:]}, receive, send)


def test_the_page_works_under_a_path(open_page: OpenPage) -> None:
    app: Any = UnderPrefix(app_with(FakeEngine("hello")))
    with served(app) as url:
        page = open_page(f"{url}/llm/")
        send(page, "x")
        page.wait_for_selector(".assistant .tokens:has-text('hello')")
        page.wait_for_selector("#model:has-text('tiny')")


def test_a_hidden_page_reads_nothing(open_page: OpenPage) -> None:
    with served(app_with(FakeEngine())) as url:
        page = open_page(f"{url}/")
        page.wait_for_selector("#model:has-text('tiny')")
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.wait_for_timeout(300)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.wait_for_timeout(2500)
        assert requests == []
        page.evaluate(
            "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.wait_for_timeout(500)
        assert requests
