"""A game of many turns: find the way out of a maze that you can only see from where you stand.

Shows: state that belongs to one session (where the player is), a reward for every step, a tool that returns plain
text, and a choice that the model can only make from a list (`Literal`). A step towards the exit earns as much as
the step back costs, so the rewards of an episode that gets out add up to 1, less 0.05 for each wall walked into.

    toolyard serve examples/maze.py
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolyard import Environment, TextBlock, ToolOutput, tool

Cell = tuple[int, int]
Direction = Literal["north", "east", "south", "west"]
STEPS: dict[Direction, Cell] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}


class Maze(Environment):
    """Walk from the north-west corner to the south-east corner."""

    replayable = True  # the same calls lead to the same state, so a session can be forked or made again

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        count = {"train": 100, "test": 20}[split]
        return [{"size": 3 + number % 4, "seed": f"{split}/{number}"} for number in range(count)]

    def __init__(self, task_spec: Mapping[str, Any] = {}, secrets: Mapping[str, str] = {}) -> None:
        super().__init__(task_spec, secrets)
        size: int = task_spec["size"]
        self.size = size
        self.passages = carve(size, random.Random(task_spec["seed"]))
        self.exit = (size - 1, size - 1)
        self.to_exit = distances(self.passages, self.exit)
        self.player: Cell = (0, 0)
        self.seen: set[Cell] = {self.player}
        self.moves_left = 4 * len(self.passages)

    def get_prompt(self) -> str:
        return (
            f"You are in a maze of {self.size} by {self.size} rooms, in its north-west corner. "
            f"The exit is in the south-east corner. Use move to walk, and look_at_map to see where you have been.\n\n"
            f"{self.describe_room()}"
        )

    @tool
    def move(self, direction: Direction) -> ToolOutput:
        """Walk into the next room, if there is no wall between.

        Args:
            direction: Where to go.
        """
        self.moves_left -= 1
        before = self.to_exit[self.player]
        target = neighbour(self.player, direction)
        if target in self.passages[self.player]:
            self.player = target
            self.seen.add(target)
            reward = (before - self.to_exit[target]) / self.to_exit[0, 0]
            text = "You found the exit." if target == self.exit else self.describe_room()
        else:
            reward = -0.05
            text = f"There is a wall to the {direction}. {self.describe_room()}"
        out_of_moves = self.moves_left == 0 and self.player != self.exit
        return ToolOutput(
            blocks=[TextBlock(text=text + " You have no moves left." * out_of_moves)],
            reward=reward,
            finished=self.player == self.exit or out_of_moves,
            metadata={"player": self.player, "moves_left": self.moves_left},
        )

    @tool
    def look_at_map(self) -> str:
        """Draw the rooms seen so far. @ is you, o a room you have been in, X the exit. This takes no move."""
        return draw(self.size, {room: self.passages[room] for room in self.seen}, {self.exit: "X", self.player: "@"})

    def describe_room(self) -> str:
        column, row = self.player
        ways = [direction for direction in STEPS if neighbour(self.player, direction) in self.passages[self.player]]
        return f"You are in column {column + 1}, row {row + 1}. There is a way {' and '.join(ways)}."


def neighbour(room: Cell, direction: Direction) -> Cell:
    return room[0] + STEPS[direction][0], room[1] + STEPS[direction][1]


def carve(size: int, dice: random.Random) -> dict[Cell, set[Cell]]:
    """A maze in which exactly one way leads from any room to any other: which rooms each room opens to."""
    passages: dict[Cell, set[Cell]] = {(x, y): set() for x in range(size) for y in range(size)}
    path: list[Cell] = [(0, 0)]
    while path:
        room = path[-1]
        around = [neighbour(room, direction) for direction in STEPS]
        if unopened := [near for near in around if near in passages and not passages[near]]:
            chosen = dice.choice(unopened)
            passages[room].add(chosen)
            passages[chosen].add(room)
            path.append(chosen)
        else:
            path.pop()
    return passages


def distances(passages: Mapping[Cell, set[Cell]], start: Cell) -> dict[Cell, int]:
    """How many steps each room is away from `start`."""
    found = {start: 0}
    queue = deque([start])
    while queue:
        room = queue.popleft()
        for near in passages[room] - found.keys():
            found[near] = found[room] + 1
            queue.append(near)
    return found


def draw(size: int, rooms: Mapping[Cell, set[Cell]], marks: Mapping[Cell, str]) -> str:
    """Rooms as letters, ways between them as lines; what is not in `rooms` stays blank."""
    canvas = [[" "] * (4 * size - 3) for _ in range(2 * size - 1)]
    for (x, y), opens in rooms.items():
        canvas[2 * y][4 * x] = "o"
        for other_x, other_y in opens:
            row, column = y + other_y, 2 * (x + other_x)
            canvas[row][column] = "|" if x == other_x else "-"
    for (x, y), mark in marks.items():
        canvas[2 * y][4 * x] = mark
    return "\n".join("".join(line).rstrip() for line in canvas)
