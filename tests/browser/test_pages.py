"""How pages look as text, and what can be done in them."""

from __future__ import annotations

import re
import time

import anyio
import pytest

from tests.browser.site import Site
from toolyard.browser.actions import (
    Action,
    Click,
    CloseTab,
    FocusTab,
    GoBack,
    GoForward,
    Goto,
    Hover,
    Look,
    NewTab,
    Press,
    Scroll,
    TypeText,
)
from toolyard.browser.shared import Visit, open_visit
from toolyard.browser.tab import LONGEST
from toolyard.browser.views import PageView
from toolyard.core.errors import ToolError

pytestmark = pytest.mark.anyio


def number(view: PageView, words: str) -> int:
    """The number of the element with these words."""
    found = re.search(rf"\[(\d+)\] {re.escape(words)}", view.text)
    assert found, f"no {words} in:\n{view.text}"
    return int(found[1])


async def on(visit: Visit, view: PageView, words: str) -> PageView:
    return await visit.perform(Click(number(view, words)))


async def test_headings_lists_tables_and_numbered_elements_are_told_in_reading_order(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/index.html"))
    assert view.told() == "\n".join(
        [
            "Title: The yard",
            f"URL: {site.url}/index.html",
            "# Tools of the yard",
            'There are three kinds of tools. Read [1] link "about them" or [2] link "all of it".',
            "## Kinds",
            "- Cutting",
            "  1. Saw",
            "  2. Axe",
            "- Turning",
            "Tool | Price",
            "Saw | 12",
            "Axe | 30",
            'image "A shed" [3] button "Closed" disabled',
            "[4] clickable Ring the bell",
            "two",
            "  lines",
            "A page inside the page.",
            '[5] button "Press me"',
        ]
    )


async def test_links_are_followed_and_history_goes_both_ways(visit: Visit, site: Site):
    first = await visit.perform(Goto(f"{site.url}/index.html"))
    second = await on(visit, first, 'link "about them"')
    assert (second.title, second.url) == ("About", f"{site.url}/about.html")
    assert "The saw was made in 1820." in second.text
    assert (await visit.perform(GoBack())).title == "The yard"
    assert (await visit.perform(GoForward())).title == "About"
    with pytest.raises(ToolError, match="no page after"):
        await visit.perform(GoForward())
    await visit.perform(GoBack())
    with pytest.raises(ToolError, match="no page before"):
        await visit.perform(GoBack())


async def test_things_that_only_scripts_make_clickable_can_be_clicked_also_in_a_frame(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/index.html"))
    assert "It rang." in (await on(visit, view, "clickable Ring")).text
    assert '[5] button "Pressed"' in (await on(visit, view, 'button "Press me"')).text


async def test_elements_that_are_not_there_or_not_usable_are_errors_in_words(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/index.html"))
    with pytest.raises(ToolError, match=r"there is no element \[77\] on the page"):
        await visit.perform(Click(77))
    with pytest.raises(ToolError, match=r"element \[3\] is disabled"):
        await on(visit, view, 'button "Closed"')
    with pytest.raises(ToolError, match=r"element \[1\] takes no text"):
        await visit.perform(TypeText(1, "hello"))
    assert (await visit.perform(Look())).text == view.text


async def test_a_form_is_filled_and_sent(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/form.html"))
    for line in (
        '[1] textbox "Name" value "nobody"',
        '[2] textbox "Password"',
        '[3] textbox "A note"',
        '[4] combobox "Colour" value "Red" options "Red", "Green"',
        '[5] checkbox "As a gift"',
        '[9] textbox "Remark" value "old remark"',
    ):
        assert line in view.text
    for action in (
        TypeText(number(view, 'textbox "Name"'), "Ada [Lovelace]"),
        TypeText(number(view, 'textbox "Password"'), "geheim"),
        TypeText(number(view, 'textbox "A note"'), "x" * 600),
        TypeText(number(view, 'combobox "Colour"'), "green"),
        Click(number(view, 'checkbox "As a gift"')),
        TypeText(number(view, 'textbox "Day"'), "2024-02-29"),
    ):
        view = await visit.perform(action)
    assert '[2] textbox "Password" value "••••••"' in view.text
    assert "geheim" not in view.told()
    assert '[5] checkbox "As a gift" checked' in view.text
    sent = await on(visit, view, 'button "Send"')
    assert "name=Ada [Lovelace] secret=geheim" in sent.text
    assert f"note={'x' * 600} colour=g gift=on day=2024-02-29" in sent.text


async def test_enter_sends_a_form_and_an_empty_text_empties_a_field(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/form.html"))
    view = await visit.perform(TypeText(number(view, 'textbox "Name"'), ""))
    assert '[1] textbox "Name"\n' in view.text.replace(" Password", "\n")
    sent = await visit.perform(TypeText(number(view, 'textbox "Name"'), "Bob", enter=True))
    assert sent.title == "Echo"
    assert "name=Bob" in sent.text


async def test_keys_hovering_and_editable_text_work(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/form.html"))
    assert "last key Escape" in (await visit.perform(Press("esc"))).text
    remark = number(view, 'textbox "Remark"')
    assert 'value "new remark"' in (await visit.perform(TypeText(remark, "new remark"))).text
    await visit.perform(Press("ctrl+a"))
    assert 'value "z"' in (await visit.perform(Press("z"))).text
    await visit.perform(Hover(remark))
    with pytest.raises(ToolError, match="Nokey"):
        await visit.perform(Press("Nokey"))


@pytest.mark.thorough
@pytest.mark.parametrize("paste", ["Ctrl+v", "control+V", "Shift+Insert", "ControlLeft+KeyV", "Ctrl+Shift+v"])
async def test_what_one_session_copies_only_that_one_can_paste(visit: Visit, site: Site, paste: str):
    other = await open_visit()
    try:
        view = await visit.perform(Goto(f"{site.url}/form.html"))
        name, remark = number(view, 'textbox "Name"'), number(view, 'textbox "Remark"')
        await visit.perform(TypeText(name, "a secret"))
        await visit.perform(Press("Ctrl+a"))
        await visit.perform(Press("Ctrl+x"))
        await other.perform(Goto(f"{site.url}/form.html"))
        await other.perform(TypeText(name, ""))
        assert "secret" not in (await other.perform(Press(paste))).text
        view = await visit.perform(Look())
        assert '[1] textbox "Name" Password' in view.text
        await visit.perform(TypeText(remark, ""))
        assert 'textbox "Remark" value "a secret"' in (await visit.perform(Press(paste))).text
        await visit.perform(Press("Ctrl+a"))
        await visit.perform(Press("Ctrl+c"))
        await visit.perform(TypeText(name, "with "))
        assert 'textbox "Name" value "with a secret"' in (await visit.perform(Press(paste))).text
    finally:
        await other.close()


async def test_what_cannot_be_chosen_or_uploaded_is_said(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/form.html"))
    with pytest.raises(ToolError, match='no option "Blue"; there are "Red", "Green"'):
        await visit.perform(TypeText(number(view, "combobox"), "Blue"))
    with pytest.raises(ToolError, match="files cannot be uploaded"):
        await on(visit, view, "file input")
    with pytest.raises(ToolError, match="does not take"):
        await visit.perform(TypeText(number(view, 'textbox "Day"'), "tomorrow"))
    with pytest.raises(ToolError, match="takes no text: click it"):
        await visit.perform(TypeText(number(view, "checkbox"), "yes"))


@pytest.mark.parametrize(("page", "line"), [("long.html", "This is line {}."), ("pane.html", "Message {}.")])
async def test_a_long_page_is_read_part_by_part_and_nothing_is_left_out(visit: Visit, site: Site, page: str, line: str):
    view = await visit.perform(Goto(f"{site.url}/{page}"))
    assert re.search(r"\(part 1 of \d; scroll down for more\)$", view.told())
    seen = view.text.splitlines()
    while "scroll down" in view.told() or "or down" in view.told():
        before = view.top
        view = await visit.perform(Scroll("down"))
        assert view.top > before
        seen += view.text.splitlines()
    assert {line.format(i) for i in range(1, 121)} <= set(seen)
    assert re.search(r"\(part (\d) of \1; scroll up for more\)$", view.told())
    assert (await visit.perform(Scroll("up"))).top < view.top


async def test_numbers_do_not_change_by_scrolling_and_what_is_out_of_view_can_be_used(visit: Visit, site: Site):
    await visit.perform(Goto(f"{site.url}/long.html"))
    view = await visit.perform(Click(1))
    assert '[1] button "At the end"' in view.text
    assert "line 1." not in view.text


async def test_one_text_longer_than_the_window_is_read_by_its_lines(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/one-text.html"))
    first = view.text.splitlines()
    assert first[0] == "row 1"
    assert 30 < len(first) < 70
    second = (await visit.perform(Scroll("down"))).text.splitlines()
    assert int(second[0].split()[1]) in (len(first) - 1, len(first), len(first) + 1)


async def test_a_page_is_read_when_its_scripts_have_got_what_they_asked_for(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/late.html"))
    assert view.text.splitlines() == ["Here it is.", '[1] button "More"', "In the shadow", '[2] button "Shadow button"']


async def test_an_element_keeps_its_number_when_others_come_before_it(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/late.html"))
    after = await on(visit, view, 'button "More"')
    assert after.text.splitlines()[:3] == ['[3] button "Before"', "Here it is.", '[1] button "More"']


async def test_a_dialog_is_dismissed_and_told(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    warned = await on(visit, view, 'button "Warn"')
    assert warned.notes == ["the page showed a dialog, which was dismissed: alert 'Beware'"]
    assert 'button "Warned"' in warned.text
    assert (await visit.perform(Look())).notes == []


async def test_a_new_tab_is_followed_and_left_by_going_back(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    opened = await on(visit, view, 'link "In a new tab"')
    assert opened.title == "About"
    assert "a new tab was opened, and is shown now; go back to return" in opened.notes
    assert f"Tab 0: {site.url}/tricks.html\nTab 1 (current): {site.url}/about.html" in opened.told()
    assert (await visit.perform(FocusTab(0))).title == "Tricks"
    assert (await visit.perform(FocusTab(1))).title == "About"
    back = await visit.perform(GoBack())
    assert (back.title, back.tabs) == ("Tricks", ())


async def test_a_new_tab_is_waited_for_when_its_server_is_slow(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    opened = await on(visit, view, 'link "Slowly in a new tab"')
    assert (opened.text, opened.tab) == ("Here it is.", 1)


@pytest.mark.thorough
@pytest.mark.alone
async def test_a_new_tab_that_is_only_a_download_is_refused(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    begun = time.monotonic()
    refused = await on(visit, view, 'link "A file in a new tab"')
    assert time.monotonic() - begun < 2
    assert "a download was refused: 'tools.bin'" in refused.notes
    assert refused.title == "Tricks"


@pytest.mark.thorough
async def test_tabs_are_opened_and_closed_and_there_is_always_one(visit: Visit, site: Site):
    await visit.perform(Goto(f"{site.url}/about.html"))
    assert (await visit.perform(NewTab())).url == "about:blank"
    assert (await visit.perform(Goto(f"{site.url}/form.html", new_tab=True))).tab == 2
    with pytest.raises(ToolError, match="no tab 3"):
        await visit.perform(FocusTab(3))
    for _ in range(3):
        view = await visit.perform(CloseTab())
    assert (view.url, view.tabs) == ("about:blank", ())
    for _ in range(7):
        await visit.perform(NewTab())
    with pytest.raises(ToolError, match="8 tabs"):
        await visit.perform(NewTab())


async def test_a_download_is_refused_and_told(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    for action in (Click(number(view, 'link "Get the file"')), Goto(f"{site.url}/download")):
        refused = await visit.perform(action)
        assert refused.notes == ["a download was refused: 'tools.bin'"]
        assert refused.title == "Tricks"


async def test_a_covered_button_is_clicked_all_the_same(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    assert 'button "Reached"' in (await on(visit, view, 'button "Covered"')).text


async def test_a_page_that_tampers_with_its_own_world_is_read_as_it_is(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    assert "a lie" not in view.text
    assert '[1] button "Warn"' in view.text


@pytest.mark.thorough
async def test_a_page_that_hangs_is_closed_and_the_window_lives_on(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    with pytest.raises(ToolError, match="stopped responding and was closed"):
        await on(visit, view, 'button "Hang"')
    assert (await visit.perform(Goto(f"{site.url}/about.html"))).title == "About"


async def test_a_page_that_never_has_all_it_wants_is_shown_and_waited_for_only_once(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/unending"))
    assert "The beginning." in view.text
    assert view.notes == ["the page is still loading"]
    begun = time.monotonic()
    await visit.perform(Look())
    assert time.monotonic() - begun < 2


async def test_a_link_to_a_page_that_never_answers_leaves_the_page_as_it_was(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    begun = time.monotonic()
    silent = await on(visit, view, 'link "Never answers"')
    assert 2 < time.monotonic() - begun < 8
    assert silent.title == "Tricks"
    assert "the page is still loading" in silent.notes


@pytest.mark.thorough
async def test_a_page_that_leaves_by_itself_for_nowhere_stays_usable(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/tricks.html"))
    asked = site.asked.count("/silent")
    await on(visit, view, 'button "Leave soon"')
    with anyio.fail_after(5):
        while site.asked.count("/silent") == asked:
            await anyio.sleep(0.01)
    with pytest.raises(ToolError, match="about to be replaced by another, which does not answer"):
        await visit.perform(Scroll("down"))
    assert 'button "Warned"' in (await on(visit, view, 'button "Warn"')).text


async def test_redirects_are_followed(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/redirect?to=/redirect?to=/about.html"))
    assert view.url == f"{site.url}/about.html"


@pytest.mark.parametrize(
    ("path", "reason"), [("/gone", "ERR_EMPTY_RESPONSE|ERR_CONNECTION"), ("/redirect?to=http://127.0.0.1:1/", "UNSAFE")]
)
async def test_a_page_that_cannot_be_opened_says_why(visit: Visit, site: Site, path: str, reason: str):
    with pytest.raises(ToolError, match=reason):
        await visit.perform(Goto(site.url + path))


async def test_the_page_of_an_address_without_answer_is_explained(visit: Visit, site: Site):
    with pytest.raises(ToolError, match="ERR_EMPTY_RESPONSE"):
        await visit.perform(Goto(f"{site.url}/gone"))
    view = await visit.perform(Look())
    assert (view.url, view.text) == (f"{site.url}/gone", "This page could not be opened: ERR_EMPTY_RESPONSE.")


@pytest.mark.parametrize("action", [Look(), Scroll("down"), Press("a")], ids=str)
async def test_a_window_without_a_page_is_empty_and_harmless(visit: Visit, action: Action):
    assert (await visit.perform(action)).told() == "Title: \nURL: about:blank\n(there is no text here)"


async def test_the_text_of_a_page_is_bounded(visit: Visit, site: Site):
    view = await visit.perform(Goto(f"{site.url}/dense.html"))
    assert LONGEST - 100 < len(view.text) <= LONGEST
    assert view.told().endswith("(the rest is left out: too long)")
