"""The tools that a node offers, under the names of this wire: worlds ("envs") with their tools, and single tools."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolyard.core.environment import Environment, Toolset, full_name
from toolyard.core.output import JsonObject
from toolyard.core.retrieval import ToolIndex
from toolyard.core.search import indexed, own_first
from toolyard.core.tool import ToolSpec
from toolyard.tools.environment import ToolsEnvironment

_DESCRIBED = 1024
"""Characters of a description that are sent."""
NAMES_MOST = 50
"""Names of tools that are sent for each world when all worlds are listed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool that clients can call."""

    name: str
    """Its full name, by which clients call it."""
    environment: type[Environment]
    tool: str
    """Its name in the environment."""
    spec: ToolSpec
    hidden: bool = False

    def as_json(self) -> JsonObject:
        return {
            "name": self.name,
            "description": _shortened(self.spec.description),
            "parameters": _parameters(self.spec.input_schema),
        }


@dataclass(frozen=True, slots=True)
class World:
    """Tools that belong together. Their full names begin with its name."""

    name: str
    description: str
    offers: list[Offer] = field(default_factory=list)

    def as_json(self, most: int | None = None) -> JsonObject:
        return {
            "name": self.name,
            "description": self.description,
            "total_tools": len(self.offers),
            "tools": [offer.tool for offer in self.offers[:most]],
        }


class KnownOffers:
    """Offers by their names."""

    def __init__(self, offers: Iterable[Offer] = ()) -> None:
        self.by_name: dict[str, Offer] = {}
        self.by_tool: dict[str, list[Offer]] = {}
        for offer in offers:
            self.add(offer)

    def add(self, offer: Offer) -> None:
        self.by_name[offer.name] = offer
        self.by_tool.setdefault(offer.tool, []).append(offer)

    def named(self, name: str, world: str | None = None) -> Offer | None:
        """Find an offer by its full name, or by its world and its own name."""
        if not world:
            return self.by_name.get(name)
        offer = self.by_name.get(f"{world}_{name}")
        return offer if offer is not None and offer.tool == name else None

    def of(self, environment: type[Environment], tool: str) -> Offer | None:
        return next((offer for offer in self.by_tool.get(tool, ()) if offer.environment is environment), None)


class Offers(KnownOffers):
    """All offers of the environments of a server, read once."""

    def __init__(self, environments: Iterable[type[Environment]]) -> None:
        super().__init__()
        self.worlds: dict[str, World] = {}
        self._indexing: asyncio.Future[ToolIndex] | None = None
        for environment in environments:
            for offer, world in _offered(environment):
                self._add_to(world, offer)
        self.listed: Sequence[Offer] = [offer for offer in self.by_name.values() if not offer.hidden]

    def find(self, name: str, world: str | None, own: KnownOffers) -> Offer | None:
        """Find an offer by its full name, also among those of the node; or by its own name, if only one has it."""
        if (offer := self.named(name, world) or own.named(name, world)) is not None or world:
            return offer
        alike = [*self.by_tool.get(name, ()), *own.by_tool.get(name, ())]
        return alike[0] if len(alike) == 1 else None

    async def search(self, question: str, top_k: int, own: KnownOffers) -> Sequence[Offer]:
        """The offers that fit a question best, including hidden ones and those of the node."""
        if self._indexing is None:
            self._indexing = asyncio.ensure_future(asyncio.to_thread(indexed, _named_in_full(self)))
        index = await asyncio.shield(self._indexing)
        found = await asyncio.to_thread(own_first, _named_in_full(own), index.search, question, top_k)
        by_name = own.by_name | self.by_name
        return [by_name[spec.name] for spec in found]

    def _add_to(self, world: World | None, offer: Offer) -> None:
        if world is not None:
            world = self.worlds.setdefault(world.name, world)
        elif offer.name in self.by_name:  # two environments have this tool: the second's name gets a prefix
            offer = named_in(offer.environment, offer.tool, offer.spec, hidden=offer.hidden)
        if offer.name in self.by_name:
            return
        self.add(offer)
        if world is not None:
            world.offers.append(offer)


def _named_in_full(known: KnownOffers) -> list[ToolSpec]:
    return [offer.spec.model_copy(update={"name": name}) for name, offer in known.by_name.items()]


def named_in(environment: type[Environment], tool: str, spec: ToolSpec, *, hidden: bool = False) -> Offer:
    return Offer(f"{environment.name()}_{tool}", environment, tool, spec, hidden)


def of_session(environment: type[Environment], specs: Iterable[ToolSpec]) -> Iterator[Offer]:
    """Tools that only a session has."""
    for spec in specs:
        if issubclass(environment, ToolsEnvironment):
            yield Offer(spec.name, environment, spec.name, spec)
        else:
            yield named_in(environment, spec.name, spec)


def _offered(environment: type[Environment]) -> Iterator[tuple[Offer, World | None]]:
    """Each tool of an environment, with its world if it has one."""
    definition = environment._definition
    whole = World(environment.name(), _words(environment))
    for owner, spec, hidden in (
        *((tool.owner, tool.spec, False) for tool in definition.tools.values()),
        *((owner, spec, True) for owner, spec in definition.catalogue.values()),
    ):
        if not issubclass(environment, ToolsEnvironment) or not issubclass(owner, Toolset):
            yield named_in(environment, spec.name, spec, hidden=hidden), whole
        elif owner.prefixed:
            name = full_name(owner, spec.name)
            yield Offer(name, environment, spec.name, spec, hidden), World(owner.__name__, _words(owner))
        else:
            yield Offer(spec.name, environment, spec.name, spec, hidden), None


def _words(owner: type) -> str:
    """Its own docstring, not one that it inherits."""
    return inspect.cleandoc(owner.__doc__ or "")


def _shortened(description: str) -> str:
    return re.sub(r"\n[ \t]*\n\s*", "\n", description.strip(), count=1)[:_DESCRIBED]


def _parameters(schema: JsonObject | None) -> JsonObject:
    schema = schema or {}
    properties = {name: _property(about) for name, about in schema.get("properties", {}).items()}
    plain: dict[str, Any] = {"type": "object", "properties": properties, "required": list(schema.get("required", ()))}
    return {**plain, "$defs": schema["$defs"]} if "$defs" in schema else plain


def _property(about: object) -> object:
    """The schema of a property, as plain as models of that time expect it: a type, not a union of a type and null."""
    if not isinstance(about, Mapping):
        return about
    plain = {key: value for key, value in about.items() if key != "title"}
    choices = [choice for choice in plain.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1 and isinstance(choices[0], Mapping):
        del plain["anyOf"]
        plain = {**choices[0], **plain}
    if plain.get("default", ...) is None:
        del plain["default"]
    return plain
