import pytest
from slugs import Site, slug


class TestKept:
    """What works before."""

    @pytest.mark.parametrize(("title", "address"), [("Hello World", "hello-world"), ("A1 b2", "a1-b2"), ("", "")])
    def test_words_are_joined_by_dashes(self, title, address):
        assert slug(title) == address

    def test_a_page_without_a_title_has_an_address(self):
        assert Site().add("") == "page"


class TestRepaired:
    """What does not."""

    @pytest.mark.parametrize(("title", "address"), [("Hello!", "hello"), ("a -- b", "a-b"), (" (new) ", "new")])
    def test_dashes_are_only_between_words(self, title, address):
        assert slug(title) == address

    def test_no_two_pages_have_the_same_address(self):
        site = Site()
        assert [site.add("Hello"), site.add("Hello!"), site.add("hello")] == ["hello", "hello-2", "hello-3"]

    def test_an_address_that_a_title_has_taken_is_not_given_again(self):
        site = Site()
        assert [site.add("Hello 2"), site.add("Hello"), site.add("Hello")] == ["hello-2", "hello", "hello-3"]

    def test_sites_do_not_share_addresses(self):
        assert [Site().add("a b?"), Site().add("a b?")] == ["a-b", "a-b"]
