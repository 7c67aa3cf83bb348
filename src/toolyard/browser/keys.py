"""Key combinations as a model writes them, and which of them copy and paste."""

from __future__ import annotations

from collections.abc import Set

_KEYS = {
    **{"ctrl": "Control", "control": "Control", "cmd": "Meta", "meta": "Meta", "alt": "Alt", "shift": "Shift"},
    **{"enter": "Enter", "return": "Enter", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "Space"},
    **{"backspace": "Backspace", "delete": "Delete", "del": "Delete", "insert": "Insert", "home": "Home", "end": "End"},
    **{"pageup": "PageUp", "pagedown": "PageDown", "arrowup": "ArrowUp", "arrowdown": "ArrowDown"},
    **{"arrowleft": "ArrowLeft", "arrowright": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown"},
    **{"left": "ArrowLeft", "right": "ArrowRight"},
}

_CONTROL = frozenset({"control", "controlleft", "controlright", "meta", "metaleft", "metaright", "controlormeta"})
_SHIFT = frozenset({"shift", "shiftleft", "shiftright"})


def spelled(written: str) -> str:
    """Spell keys as Playwright does: `ctrl+v` becomes Control+v."""
    return "+".join(_KEYS.get(part.strip().lower(), part.strip()) for part in written.split("+"))


def copies(keys: str) -> bool:
    """True for copying and cutting."""
    pressed = _pressed(keys)
    if pressed & _CONTROL:
        return bool(pressed & {"c", "x", "insert"})
    return bool(pressed & _SHIFT) and "delete" in pressed


def pastes(keys: str) -> bool:
    pressed = _pressed(keys)
    return ("v" in pressed and bool(pressed & _CONTROL)) or ("insert" in pressed and bool(pressed & _SHIFT))


def _pressed(keys: str) -> Set[str]:
    """The names of the keys; letters may also be written as places on the keyboard, such as KeyV."""
    return frozenset(key.lower().removeprefix("key") for key in keys.split("+"))
