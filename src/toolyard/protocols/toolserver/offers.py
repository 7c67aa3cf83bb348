"""What a node offers, under the names of this wire: worlds ("envs") with their tools, and tools that stand alone."""

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
"""Characters of a description that are told."""
NAMES_MOST = 50
"""Names of tools that are told of a world when all worlds are listed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool."""

    name: str
    """In full, as clients call it."""
    environment: type[Environment]
    tool: str
    """As the environment calls it."""
    spec: ToolSpec
    hidden: bool = False

    def as_json(self) -> JsonObject:
        return {
            "name": self.name,
            "description": _told(self.spec.description),
            "parameters": _parameters(self.spec.input_schema),
        }


@dataclass(frozen=True, slots=True)
class World:
    """Tools that belong together, and carry its name."""

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
        """By its full name, or by that of its world and its own."""
        if not world:
            return self.by_name.get(name)
        offer = self.by_name.get(f"{world}_{name}")
        return offer if offer is not None and offer.tool == name else None

    def of(self, environment: type[Environment], tool: str) -> Offer | None:
        return next((offer for offer in self.by_tool.get(tool, ()) if offer.environment is environment), None)


class Offers(KnownOffers):
    """Everything that the environments of a server offer; read once."""

    def __init__(self, environments: Iterable[type[Environment]]) -> None:
        super().__init__()
        self.worlds: dict[str, World] = {}
        self._indexing: asyncio.Future[ToolIndex] | None = None
        for environment in environments:
            for offer, world in _offered(environment):
                self._add_to(world, offer)
        self.listed: Sequence[Offer] = [offer for offer in self.by_name.values() if not offer.hidden]

    def find(self, name: str, world: str | None, own: KnownOffers) -> Offer | None:
        """By its full name, also among those that only a node has; or else, if no other has it, by its own name."""
        if (offer := self.named(name, world) or own.named(name, world)) is not None or world:
            return offer
        alike = [*self.by_tool.get(name, ()), *own.by_tool.get(name, ())]
        return alike[0] if len(alike) == 1 else None

    async def search(self, question: str, top_k: int, own: KnownOffers) -> Sequence[Offer]:
        """Those that fit best, hidden ones too, and those that only a node has."""
        if self._indexing is None:
            self._indexing = asyncio.ensure_future(asyncio.to_thread(indexed, _named_in_full(self)))
        index = await asyncio.shield(self._indexing)
        found = await asyncio.to_thread(own_first, _named_in_full(own), index.search, question, top_k)
        by_name = own.by_name | self.by_name
        return [by_name[spec.name] for spec in found]

    def _add_to(self, world: World | None, offer: Offer) -> None:
        if world is not None:
            world = self.worlds.setdefault(world.name, world)
        elif offer.name in self.by_name:  # two environments have the same one: the second is called by both names
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
    """Each tool of an environment, and the world that it is in."""
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


def _told(description: str) -> str:
    return re.sub(r"\n[ \t]*\n\s*", "\n", description.strip(), count=1)[:_DESCRIBED]


def _parameters(schema: JsonObject | None) -> JsonObject:
    schema = schema or {}
    properties = {name: _property(about) for name, about in schema.get("properties", {}).items()}
    told: dict[str, Any] = {"type": "object", "properties": properties, "required": list(schema.get("required", ()))}
    return {**told, "$defs": schema["$defs"]} if "$defs" in schema else told


def _property(about: object) -> object:
    """As plain as models of that time expect it: a type, not a choice between a type and null."""
    if not isinstance(about, Mapping):
        return about
    told = {key: value for key, value in about.items() if key != "title"}
    choices = [choice for choice in told.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1 and isinstance(choices[0], Mapping):
        del told["anyOf"]
        told = {**choices[0], **told}
    if told.get("default", ...) is None:
        del told["default"]
    return told
